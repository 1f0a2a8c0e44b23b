// The part of writing into blocks that is worth vectors: keys into lanes, numbers into codes (as
// attention/quantization.h defines them, bit for bit). One translation unit compiled for AVX2,
// which every level has; the rules of kernels.h on what such a unit may emit hold for it too.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ziggurat::cpu {

struct WriteKernels {
  /// Keys of up to 8 tokens of one head into neighbouring lanes of an area [cells][slots].
  ///   codes      [tokens, cells] of 4 bytes
  ///   to         the first token's lane of the first row of cells
  ///   row_bytes  from a row of cells to the next
  void (*store_keys)(const std::byte* codes, int tokens, int cells, std::byte* to,
                     size_t row_bytes);
  /// The first slot with the lowest score among those with a position of at most `newest`, if that
  /// is lower than `lowest` (NaN: whatever it is), which then becomes it; otherwise -1. A score
  /// that is NaN counts as infinity.
  int (*lowest_score)(const float* scores, const int32_t* positions, int slots, int32_t newest,
                      float* lowest);

  /// One token of one head, head_dim a multiple of 4. Returns the scale.
  ///   codes  [head_dim]
  float (*encode_int8)(const float* x, int head_dim, uint8_t* codes);
  float (*encode_fp8)(const float* x, int head_dim, uint8_t* codes);

  /// The keys of one group of tokens of one head, in codes of 4 or 2 bits that fill whole cells.
  ///   x              [group, head_dim]
  ///   scales, zeros  [head_dim] bf16
  ///   cells          [head_dim * bits / 32, group]
  void (*encode_keys)(const float* x, int group, int head_dim, int bits, uint16_t* scales,
                      uint16_t* zeros, uint32_t* cells);
  /// The value of one token of one head; `group` is a multiple of 8 that divides head_dim.
  ///   scales, zeros  [head_dim / group] bf16
  ///   codes          [head_dim * bits / 8]
  void (*encode_value)(const float* x, int group, int head_dim, int bits, uint16_t* scales,
                       uint16_t* zeros, std::byte* codes);
};

const WriteKernels& Avx2WriteKernels();

}  // namespace ziggurat::cpu

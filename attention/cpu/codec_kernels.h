// Numbers into codes, as attention/quantization.h defines them, bit for bit: the part of writing
// that is worth vectors. One translation unit compiled for AVX2, which every level has; the rules
// of kernels.h on what such a unit may emit hold for it too.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ziggurat::cpu {

struct CodecKernels {
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

const CodecKernels& Avx2CodecKernels();

}  // namespace ziggurat::cpu

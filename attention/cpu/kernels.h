// The table of single-threaded kernels that one instruction set level provides.
//
// Each level (AVX2, AVX-512, AVX512-BF16) is one translation unit compiled with its own flags and
// gives out one such table; cpu_backend.cc picks a table at run time and spreads jobs over threads.
//
// This header is all that the two sides share, and it holds plain data only. A level must not emit
// any inline function that another translation unit may emit too (of std, absl or ours): the linker
// would keep one of the copies, perhaps the one with instructions that the machine lacks. For the
// same reason everything else that a level includes lives in an unnamed namespace.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ziggurat::cpu {

/// Slots (decode) or keys (prefill) whose scores are held at a time.
constexpr int kChunk = 128;
/// Room behind a row of scores for the last vector that is stored whole.
constexpr int kScoreStride = kChunk + 16;
/// Query rows that one micro kernel takes at a time.
constexpr int kMaxQueries = 8;

/// The areas of a plane of some neighbouring heads, in all blocks of a segment.
struct HeadBlocks {
  const std::byte* base;   ///< pool base + offset of the first head's area inside a block
  size_t block_bytes;      ///< from a block to the one with the next number
  size_t head_stride;      ///< from the area of a head to that of the next one
  const uint32_t* blocks;  ///< block table of the segment
  uint32_t slots_per_block;
};

/// The query heads of `num_heads` neighbouring KV heads attend to slots [begin, end) of one
/// segment.
struct DecodeJob {
  int head_dim;
  int num_heads;
  int group_size;
  float scale;
  const float* q;  ///< [num_heads * group_size, head_dim]
  HeadBlocks keys;
  HeadBlocks values;
  int begin;
  int end;
  /// What this thread will do next, or nullptr: its first blocks are fetched meanwhile. It must
  /// hold the same element type.
  const DecodeJob* following;
  bool is_first;   ///< nothing was fetched ahead for this job
  float* scratch;  ///< ScratchFloats(num_heads * group_size, head_dim)
  float* out;      ///< [num_heads * group_size, head_dim], normalised
  float* lse;      ///< [num_heads * group_size]
};

/// `count` query tokens from position `first` of a sequence, all query heads of one KV head.
/// Token t, j-th head of the group lies at `q + t * q_row_bytes + j * head bytes`, `out` likewise.
struct PrefillJob {
  int head_dim;
  int group_size;
  float scale;
  int first;
  int count;
  const std::byte* q;  ///< row of token `first`
  std::byte* out;      ///< row of token `first`; may be `q`
  size_t q_row_bytes;
  const std::byte* k;  ///< row of position 0
  const std::byte* v;  ///< row of position 0
  size_t kv_row_bytes;
  float* lse;  ///< token `first`, first head of the group
  size_t lse_stride;
  float* scratch;  ///< ScratchFloats(count * group_size, head_dim)
};

/// scores[j] = mean over all rows of exp(scale * q.k_j - lse), for keys [begin, end).
struct WindowScoresJob {
  int head_dim;
  int group_size;
  float scale;
  int window;
  const std::byte* q;  ///< [window] rows, as in PrefillJob
  size_t q_row_bytes;
  const float* lse;
  size_t lse_stride;
  const std::byte* k;  ///< row of position 0
  size_t kv_row_bytes;
  int begin;
  int end;
  float* scores;   ///< entry of key `begin`
  float* scratch;  ///< ScratchFloats(window * group_size, head_dim)
};

/// Floats of scratch of a job with `rows` query rows: packed queries, accumulators, running maxima
/// and sums; a chunk of packed keys; scores of one sub-block of queries.
constexpr size_t ScratchFloats(size_t rows, size_t head_dim) {
  const size_t padded_dim = (head_dim + 31) / 32 * 32;
  return rows * (2 * padded_dim + 4 + kScoreStride) + (kChunk + 16) * (padded_dim + 1) +
         kMaxQueries * kScoreStride;
}

/// Kernels whose workspace or cache holds one element type.
struct ElementKernels {
  void (*decode)(const DecodeJob& job);
  void (*prefill)(const PrefillJob& job);
  void (*window_scores)(const WindowScoresJob& job);
  /// One row: out = x / sqrt(mean(x^2) + epsilon) * weight.
  void (*rms_norm)(const float* x, const float* weight, float epsilon, int width, void* out);
  /// One row of [2 * width].
  void (*swiglu)(const void* gate_up, int width, void* out);
  void (*add)(const void* x, size_t count, float* sum);
  void (*to_f32)(const void* x, size_t count, float* out);
  void (*from_f32)(const float* x, size_t count, void* out);
  /// Rotates one head; index: element type of the output.
  void (*rotate[2])(const void* x, const float* cos, const float* sin, int head_dim, void* out);
};

/// Index: ElementType.
struct CpuKernels {
  ElementKernels element[2];
};

const CpuKernels& Avx2Kernels();
const CpuKernels& Avx512Kernels();
const CpuKernels& Avx512Bf16Kernels();

}  // namespace ziggurat::cpu

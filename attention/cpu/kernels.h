// The table of single-threaded kernels that one instruction set level provides.
//
// Each level (AVX2, AVX-512, AVX512-BF16, AMD's Zen 4 and 5, AMX) gives out one such table and is
// one translation unit compiled with its own flags (Zen 4 and 5 share one); cpu_level.cc picks a
// table at run time and cpu_backend.h spreads jobs over threads.
//
// This header is all that the two sides share, and it holds plain data only. A level must not emit
// any inline function that another translation unit may emit too (of std, absl or ours): the linker
// would keep one of the copies, perhaps the one with instructions that the machine lacks. For the
// same reason everything else that a level includes lives in an unnamed namespace.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/head_dim.h"

namespace ziggurat {
enum class CpuLevel : uint8_t;  // attention/cpu_level.h
}

namespace ziggurat::cpu {

/// Slots (decode) or keys (prefill) whose scores are held at a time.
constexpr int kChunk = 128;
/// Room behind a row of scores for the last vector that is stored whole.
constexpr int kScoreStride = kChunk + 16;
/// Rows of x that a product packs at a time, at most.
constexpr int kMostBlockRows = 16;
/// The most query rows that are taken at a time: by a micro kernel of vectors, and by one of tiles.
constexpr int kMaxQueries = 8;
constexpr int kMaxTileQueries = 32;
/// Keys of one job of column sums, and query tokens that it takes at a time.
constexpr int kColumnsPerJob = 4 * kChunk;
constexpr int kQueryTokens = 64;

/// The areas of a plane (block_manager/segment_view.h) of some neighbouring heads, in all blocks of
/// a segment.
struct HeadBlocks {
  const std::byte* base;   ///< pool base + offset of the first head's area inside a block
  size_t block_bytes;      ///< from a block to the one with the next number
  size_t head_stride;      ///< from the area of a head to that of the next one
  const uint32_t* blocks;  ///< block table of the segment; null: it has no such plane
  uint32_t slots_per_block;
  uint32_t unit_bytes;  ///< scales of grouped codes: from the unit of a group to that of the next
};

/// The query heads of `num_heads` neighbouring KV heads attend to slots [begin, end) of one
/// segment.
struct DecodeJob {
  int head_dim;
  int num_heads;
  int group_size;
  float scale;
  const float* q;    ///< [num_heads * group_size, head_dim]
  size_t row_bytes;  ///< of one key, or value, of one head
  int code_group;    ///< grouped codes: tokens, or channels, of a group; otherwise 0
  HeadBlocks keys;
  HeadBlocks values;
  /// Grouped codes: scales and zeros. Otherwise a factor for each slot, [slots_per_block] f32.
  HeadBlocks key_scales;
  HeadBlocks value_scales;
  HeadBlocks key_norms;  ///< [slots_per_block] f32
  HeadBlocks value_norms;
  int begin;
  int end;
  /// What this thread will do next, or nullptr: what it begins with is fetched meanwhile.
  const DecodeJob* following;
  float* scratch;  ///< DecodeScratchFloats(num_heads * group_size, head_dim)
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
  float* scratch;  ///< PrefillScratchFloats(count * group_size, head_dim)
};

/// PrefillJob in which distant tokens, those from `sinks` on and at least `recent` before the
/// query, are attended with other queries and keys (PoD).
struct DistantPrefillJob {
  PrefillJob near;         ///< its scratch: DistantScratchFloats(count * group_size, head_dim)
  const std::byte* low_q;  ///< as near.q
  const std::byte* low_k;  ///< as near.k
  int sinks;
  int recent;
  double skip;  ///< the distant part is left out where the near part's share is at least this
  uint64_t* attended;  ///< query tokens with distant tokens, by whether those were attended to
  uint64_t* skipped;
};

/// sums[j] = sum over the query tokens i >= j of exp(scale * q.k_j - lse), for keys [begin, end).
struct ColumnSumsJob {
  int head_dim;
  int group_size;
  float scale;
  int first;           ///< position of the first query token
  int count;           ///< query tokens
  const std::byte* q;  ///< row of token `first`, all heads of the group, as in PrefillJob
  size_t q_row_bytes;
  const float* lse;
  size_t lse_stride;
  const std::byte* k;  ///< row of position 0
  size_t kv_row_bytes;
  int begin;
  int end;  ///< at most begin + kColumnsPerJob
  /// Entry of key `begin`. Heads of the group have `head_stride` between them; 0: one sum for all.
  float* sums;
  size_t head_stride;
  float* scratch;  ///< ColumnScratchFloats(group_size, head_dim)
};

// ---- Scratch, in floats ------------------------------------------------------------------------
//
// Of a job with `rows` query rows. Parts begin at multiples of 16 floats, as scratch itself does.

constexpr size_t PaddedFloats(size_t count) { return (count + 15) / 16 * 16; }
constexpr size_t PaddedDim(size_t head_dim) { return (head_dim + 31) / 32 * 32; }
/// Of queries and of their sums: tiles load and store whole sub-blocks.
constexpr size_t PaddedRows(size_t rows) {
  return (rows + kMaxTileQueries - 1) / kMaxTileQueries * kMaxTileQueries;
}
/// One chunk of keys, packed.
constexpr size_t KeyScratchFloats(size_t head_dim) { return (kChunk + 16) * PaddedDim(head_dim); }
/// One chunk of values, widened or in tiles.
constexpr size_t ValueScratchFloats(size_t head_dim) { return kChunk * PaddedDim(head_dim); }
/// Packed queries, accumulators, running maxima and sums, scores; queries scaled for a group of
/// codes.
constexpr size_t DecodeScratchFloats(size_t rows, size_t head_dim) {
  return rows * (3 * PaddedDim(head_dim) + kScoreStride) + 4 * PaddedFloats(rows);
}
/// Packed queries, accumulators, running maxima and sums.
constexpr size_t AttendedFloats(size_t rows, size_t head_dim) {
  return PaddedRows(rows) * 2 * PaddedDim(head_dim) + PaddedFloats(2 * rows);
}
/// What is attended; a chunk of keys and values; scores of one sub-block of queries.
constexpr size_t PrefillScratchFloats(size_t rows, size_t head_dim) {
  return AttendedFloats(rows, head_dim) + KeyScratchFloats(head_dim) +
         ValueScratchFloats(head_dim) + kMaxTileQueries * kScoreStride;
}
/// What is attended, twice.
constexpr size_t DistantScratchFloats(size_t rows, size_t head_dim) {
  return PrefillScratchFloats(rows, head_dim) + AttendedFloats(rows, head_dim);
}
/// Packed queries and sums of kQueryTokens tokens, kColumnsPerJob packed keys, scores.
constexpr size_t ColumnScratchFloats(size_t group_size, size_t head_dim) {
  return kQueryTokens * group_size * PaddedDim(head_dim) + group_size * kColumnsPerJob +
         kColumnsPerJob / kChunk * KeyScratchFloats(head_dim) + kMaxTileQueries * kScoreStride;
}

/// Kernels whose workspace holds one element type.
struct ElementKernels {
  void (*prefill)(const PrefillJob& job);
  void (*distant_prefill)(const DistantPrefillJob& job);
  void (*column_sums)(const ColumnSumsJob& job);
  /// One row: out = x / sqrt(mean(x^2) + epsilon) * weight.
  void (*rms_norm)(const float* x, const float* weight, float epsilon, int width, void* out);
  /// One row of [2 * width].
  void (*swiglu)(const void* gate_up, int width, void* out);
  void (*to_f32)(const void* x, size_t count, float* out);
  void (*from_f32)(const float* x, size_t count, void* out);
  /// Rotates one head; index: element type of the output.
  void (*rotate[2])(const void* x, const float* cos, const float* sin, int head_dim, void* out);
};

/// Floats of queries that stay in L1 beside what they meet.
constexpr int kJobQueryFloats = 2048;

/// Kernels over blocks of one encoding.
struct BlockKernels {
  void (*decode)(const DecodeJob& job);
  /// The same for a model of bf16: queries times scales need no more than 16 bits of the
  /// largest one of a chunk, weights times scales no more than bf16 has.
  void (*decode_rounded)(const DecodeJob& job);
  /// What every slot receives from a step's queries, over keys alone: sums[i][t] = sum over the
  /// query heads of head i of exp(scale * q.k - lse), t from job.begin on.
  ///   lse   [num_heads * group_size]
  ///   sums  [num_heads, end - begin]
  void (*slot_weights)(const DecodeJob& job, const float* lse, float* sums);
  /// A job of decode takes eight heads, whose areas of a block are contiguous, where their queries
  /// are no more floats than that, and so stay in cache; otherwise four.
  int decode_query_floats = kJobQueryFloats;
};

/// `count` rows of x times one panel of packed weights (attention/packed_product.h), or one row
/// times some neighbouring panels.
struct ProductJob {
  int in_features;           ///< even
  int count;                 ///< rows of x
  int panels;                ///< 1, or with one row of x up to ProductKernels::panels_at_once
  const float* packed;       ///< by ProductKernels::pack, block after block
  const std::byte* weights;  ///< of the first panel
  size_t panel_bytes;        ///< from a panel to the next
  /// [whole blocks, 64], added to; those behind `count` are of no use. Of several panels [panels,
  /// 64].
  float* sums;
};

struct ProductKernels {
  int block_rows;      ///< that are packed at a time: a divisor of kMostBlockRows
  int panels_at_once;  ///< that are best read side by side for one row of x
  size_t (*block_floats)(int in_features);
  /// A block of x: `count` rows [count, in_features] bf16, block_rows of them but at the end, into
  /// the block_floats at `packed`.
  void (*pack)(const uint16_t* x, int count, int in_features, float* packed);
  void (*add)(const ProductJob& job);
  /// y = sums + bias (may be null), or with `accumulates` y += that; `count` outputs of one row.
  void (*store)(const float* sums, const float* bias, int count, bool accumulates, bool is_bf16,
                void* y);
};

/// The values of Encoding (block_manager/cache_format.h), which levels do not include;
/// cpu_backend.cc makes sure.
enum BlockEncoding : uint8_t {
  kF32Blocks,
  kBf16Blocks,
  kInt8Blocks,
  kFp8Blocks,
  kInt4Blocks,
  kInt2Blocks,
  kBlockEncodings,
};

struct CpuKernels {
  ElementKernels element[2];             ///< index: ElementType
  BlockKernels blocks[kBlockEncodings];  ///< index: Encoding, as BlockEncoding
  ProductKernels product;
  /// Cosine of a and b; 1 where both are zero, 0 where one is.
  double (*cosine)(const float* a, const float* b, int width);
};

const CpuKernels& Avx2Kernels();
const CpuKernels& Avx512Kernels();
const CpuKernels& Avx512Bf16Kernels();
const CpuKernels& Zen4Kernels();
const CpuKernels& Zen5Kernels();
const CpuKernels& AmxKernels();
const CpuKernels& GraniteKernels();

const CpuKernels& KernelsOf(CpuLevel level);

}  // namespace ziggurat::cpu

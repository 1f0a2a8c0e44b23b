// Decode attention over bf16 on tile registers (amx_tiles.h), for several queries that share keys:
// a Format as decode_kernel.h wants it.
//
// A block's rows of cells are rows of B as they are. Values of two neighbouring tokens are
// interleaved for it, 32 tokens and 32 channels at a time; weights are rounded to bf16, as flash
// attention does.
#pragma once

#include "attention/cpu/amx_tiles.h"
#include "attention/cpu/amx_workspace.h"
#include "attention/cpu/decode_kernel.h"

namespace ziggurat::cpu {
namespace {

/// Keys and values of a step's next head, 16 slots of each a run of lines. Eight runs, or as many
/// parts of fewer, are fetched side by side while the present head is worked on, as evenly as can
/// be had for nothing: memory is idle whenever it is not asked for a tenth of a microsecond.
class TilesAhead {
 public:
  explicit TilesAhead(const HeadStep& step) {
    const int tiles = step.next.num_tiles();
    part_lines_ = (step.here.job().head_dim / 2 * tiles + kRuns - 1) / kRuns;
    for (int i = 0; i < kRuns; ++i) {
      const size_t at = static_cast<size_t>(i / tiles) * part_lines_ * 64;
      keys_[i] = step.next.TileAt(&Chunk::key_lines, i % tiles) + at;
      values_[i] = step.next.TileAt(&Chunk::values, i % tiles) + at;
    }
  }

  // Always inlined: GCC drops calls of what only prefetches.

  /// A line of all keys: a quarter of what a product of two tiles of keys reads.
  __attribute__((always_inline)) void FetchKeys() {
#pragma GCC unroll 8
    for (const std::byte* run : keys_) Prefetch(run + key_line_ * size_t{64}, 64);
    if (key_line_ < part_lines_) ++key_line_;
  }
  /// A line of all values, about once a query while weights are computed. The last products then
  /// fetch some lines behind the runs, which the head after the next begins with.
  __attribute__((always_inline)) void Turn() {
#pragma GCC unroll 8
    for (const std::byte* run : values_) Prefetch(run + value_line_ * size_t{64}, 64);
    ++value_line_;
  }
  /// Two lines of values: 16 calls for `row` 0 to 15 are as much as a product of two tiles of
  /// values reads.
  __attribute__((always_inline)) void FetchValues(int row) {
    const size_t at = (value_line_ + row / 4) * size_t{64};
    Prefetch(values_[row % 4 * 2] + at, 64);
    Prefetch(values_[row % 4 * 2 + 1] + at, 64);
    if (row == kTileRows - 1 && value_line_ < part_lines_) value_line_ += 4;
  }

 private:
  static constexpr int kRuns = kChunk / kTileRows;

  const std::byte* keys_[kRuns];
  const std::byte* values_[kRuns];
  int part_lines_;  ///< of each of these
  int key_line_ = 0;
  int value_line_ = 0;
};

static_assert(kTileRows == kTileSlots);

struct TileFormat {
  using Keys = void;
  using Values = TileValues;
  using Ahead = TilesAhead;

  /// C in 0 and 1, A in 4, B in 6 and 7: as many rows of A and C as there are queries. 2 and 5 are
  /// to stay awake.
  struct Registers : TileRegisters {
    explicit Registers(int queries) : Registers(Shape{queries, kTileRowBytes}) {}

   private:
    explicit Registers(Shape rows)
        : TileRegisters({rows, rows, {1, 64}, {}, rows, {1, 64}, {16, 64}, {16, 64}}) {}
  };

  static bool Takes(const DecodeJob& job) {
    return job.group_size <= kTileRows && job.head_dim % kTileDepth == 0 &&
           job.keys.slots_per_block % kTileRows == 0 &&
           job.values.slots_per_block % kTileRows == 0 && job.begin % kTileRows == 0;
  }

  /// Rounded to bf16, a row where head_dim floats would be.
  static void PackQueries(const DecodeJob& job, float* packed) {
    const int queries = job.num_heads * job.group_size;
    for (int i = 0; i < queries; ++i) {
      const float* const q = job.q + static_cast<size_t>(i) * job.head_dim;
      float* const to = packed + static_cast<size_t>(i) * job.head_dim;
      __builtin_memcpy(to, q, sizeof(float) * job.head_dim);
      PackPairs(job.head_dim, to);
    }
  }

  static void Score(const HeadStep& step, const float* packed, Ahead* ahead, float* spare,
                    float* scores);
  static void Accumulate(const HeadStep& step, float* weights, const float* shrink, Ahead* ahead,
                         float* sums);
};

inline void TileFormat::Score(const HeadStep& step, const float* packed, Ahead* ahead,
                              float* /*spare*/, float* scores) {
  const DecodeJob& job = step.here.job();
  const int steps = job.head_dim / kTileDepth;
  const size_t row_bytes = static_cast<size_t>(job.keys.slots_per_block) * 4;
  const int num_tiles = step.here.num_tiles();
  const auto* const q = reinterpret_cast<const std::byte*>(packed);
  const size_t q_stride = sizeof(float) * job.head_dim, step_bytes = kTileRows * row_bytes;
  constexpr size_t kStride = sizeof(float) * kScoreStride;
  for (int tile = 0; tile < num_tiles; tile += 2) {
    const int other = Smaller(tile + 1, num_tiles - 1);
    const std::byte* const keys = step.here.TileAt(&Chunk::keys, tile);
    const std::byte* const other_keys = step.here.TileAt(&Chunk::keys, other);
    ZeroTile<0>();
    ZeroTile<1>();
    for (int k = 0; k < steps; ++k) {
      LoadTile<4>(q + k * kTileRowBytes, q_stride);
      ahead->FetchKeys();
      LoadTile<6>(keys + k * step_bytes, row_bytes);
      ahead->FetchKeys();
      MultiplyTiles<0, 4, 6>();
      LoadTile<7>(other_keys + k * step_bytes, row_bytes);
      ahead->FetchKeys();
      MultiplyTiles<1, 4, 7>();
      ahead->FetchKeys();
    }
    StoreTile<1>(scores + other * kTileRows, kStride);
    StoreTile<0>(scores + tile * kTileRows, kStride);
  }
  MultiplyByFactors<Simd16>(&DecodeJob::key_norms, nullptr, step, job.scale * kLog2E, scores);
}

inline void TileFormat::Accumulate(const HeadStep& step, float* weights, const float* shrink,
                                   Ahead* ahead, float* sums) {
  KeepTilesAwake<2, 5, 6>();
  const DecodeJob& job = step.here.job();
  const int count = step.here.count(), whole = WholeTileTokens(count);
  const int stride = AccumulatorFloats<Values>(job.head_dim);
  MultiplyByFactors<Simd16>(&DecodeJob::value_norms, nullptr, step, 1, weights);
  for (int i = 0; i < job.group_size; ++i) {
    float* const row = weights + i * kScoreStride;
    for (int t = count; t < whole; ++t) row[t] = 0;
    PackPairs(whole, row);
    ShrinkSums(shrink[i], stride, sums + static_cast<size_t>(i) * stride);
  }
  const ValueRows values = ValuesOf(step);
  const auto* const a = reinterpret_cast<const std::byte*>(weights);
  constexpr size_t kStride = sizeof(float) * kScoreStride;
  const int steps = whole / kTileTokens, products = job.head_dim / Values::kChannels * steps;
  alignas(64) std::byte tiles[2][2 * kTileBytes];
  const auto multiply = [&](int product) __attribute__((always_inline)) {
    const int s = product % steps;
    float* const to = sums + product / steps * Values::kChannels;
    const size_t to_stride = sizeof(float) * stride;
    if (s == 0) {
      LoadTile<0>(to, to_stride);
      LoadTile<1>(to + 16, to_stride);
    }
    LoadTile<4>(a + s * kTileRowBytes, kStride);
    LoadTile<6>(tiles[product % 2], kTileRowBytes);
    MultiplyTiles<0, 4, 6>();
    LoadTile<7>(tiles[product % 2] + kTileBytes, kTileRowBytes);
    MultiplyTiles<1, 4, 7>();
    if (s + 1 == steps) {
      StoreTile<0>(to, to_stride);
      StoreTile<1>(to + 16, to_stride);
    }
  };
  for (int product = 0; product < products; ++product) {
    const int t = product % steps * kTileTokens;
    const size_t at = static_cast<size_t>(product / steps) * Values::kUnitBytes;
#pragma GCC unroll 16
    for (int row = 0; row < kTileRows; ++row) {
      ahead->FetchValues(row);
      InterleaveTokens(values.at(t + 2 * row, at), values.at(t + 2 * row + 1, at),
                       Values::kUnitBytes / 4, row, tiles[product % 2]);
    }
    // Tiles are not loaded before what was stored has arrived in the cache.
    if (product > 0) multiply(product - 1);
  }
  multiply(products - 1);
}

/// BlockKernels::decode_rounded of bf16: on tiles where several queries share keys that lie fit for
/// them, else by `vectors`.
inline void DecodeOnTiles(const DecodeJob& job, const BlockKernels& vectors) {
  if (job.group_size == 1 || !TileFormat::Takes(job)) return vectors.decode_rounded(job);
  const TileFormat::Registers registers(job.group_size);
  Decode<TileFormat>(job);
}

}  // namespace
}  // namespace ziggurat::cpu

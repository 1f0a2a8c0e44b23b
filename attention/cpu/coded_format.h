// Decode attention over codes (int8, fp8, int4, int2): a Format as decode_kernel.h wants it.
#pragma once

#include <type_traits>

#include "attention/cpu/coded_values.h"
#include "attention/cpu/decode_kernel.h"

namespace ziggurat::cpu {
namespace {

/// `count` bf16 numbers as f32.
template <class V>
inline void WidenScales(const std::byte* from, int count, float* to) {
  const auto* x = reinterpret_cast<const uint16_t*>(from);
  ForEachVector<V>(count, [&](size_t i, int lanes) {
    StoreUpTo<V, F32Element>(to + i, LoadUpTo<V, Bf16Element>(x + i, lanes), lanes);
  });
}

/// The unit of the group that slot `slot` of a block belongs to, in a head's area of that block.
inline const std::byte* UnitOf(const HeadBlocks& scales, int head, int slot, int group) {
  const int slots = static_cast<int>(scales.slots_per_block);
  return scales.base + scales.blocks[slot / slots] * scales.block_bytes +
         head * scales.head_stride + static_cast<size_t>(slot % slots / group) * scales.unit_bytes;
}

/// What does not depend on how values are read.
template <class Codes>
struct CodedScores {
  using V = typename Codes::Simd;
  using Keys = CodedKeys<Codes>;

  static void Score(const DecodeJob& job, int head, const float* packed, int begin, int count,
                    BlockFetcher* fetcher, float* spare, float* scores);

 protected:
  static void ScaleQueries(const DecodeJob& job, int head, int slot, const float* packed,
                           float* scaled, float* bias);
  static void LoadValueScales(const DecodeJob& job, int head, int begin, int count, float* scales,
                              float* zeros);
};

/// Values_: how values are read: LookedUpValues or WidenedValues, or by way of tiles F32Values.
template <class Codes, class Values_>
struct CodedFormat : CodedScores<Codes> {
  using V = typename Codes::Simd;
  using Values = Values_;
  using Tiles = F32Values<V>;

  static void Accumulate(const DecodeJob& job, int head, int begin, int count,
                         const std::byte* const* rows, BlockFetcher* fetcher, float* weights,
                         const float* shrink, float* sums);
};

/// What a group's scales and zeros make of the queries: score = scaled . codes + bias.
///   slot    the first one of the group
///   scaled  as `packed`
template <class Codes>
void CodedScores<Codes>::ScaleQueries(const DecodeJob& job, int head, int slot, const float* packed,
                                      float* scaled, float* bias) {
  constexpr int kCells = Keys::kCells;
  const int dim = job.head_dim;
  alignas(64) float scale_zero[2 * kMaxHeadDim];
  WidenScales<V>(UnitOf(job.key_scales, head, slot, job.code_group), 2 * dim, scale_zero);
  using Cells = typename Codes::QueryCells;
  for (int i = 0; i < job.group_size;) {
    const int size = NextSubBlock(job.group_size - i);
    for (int j = 0; j < size; ++j) {
      size_t at = static_cast<size_t>(i) * dim + j * kCells;
      Cells sums = {};
      for (int c = 0; c < dim; c += kCells, at += static_cast<size_t>(size) * kCells) {
        Cells query, scale, zero;
        __builtin_memcpy(&query, packed + at, sizeof(Cells));
        __builtin_memcpy(&scale, scale_zero + c, sizeof(Cells));
        __builtin_memcpy(&zero, scale_zero + dim + c, sizeof(Cells));
        const Cells product = query * scale;
        __builtin_memcpy(scaled + at, &product, sizeof(Cells));
        sums += query * zero;
      }
      bias[i + j] = 0;
      for (int c = 0; c < kCells; ++c) bias[i + j] += sums[c];
    }
    i += size;
  }
}

/// Scales of values [begin, begin + count) of one head, those of each value side by side.
template <class Codes>
void CodedScores<Codes>::LoadValueScales(const DecodeJob& job, int head, int begin, int count,
                                         float* scales, float* zeros) {
  const int group = job.code_group, groups = job.head_dim / group;
  const size_t zeros_at = static_cast<size_t>(job.head_dim) * 2;  // [group][groups] bf16 behind
  for (int t = 0; t < count;) {
    const int first = (begin + t) % group, run = Smaller(count - t, group - first);
    const std::byte* from =
        UnitOf(job.value_scales, head, begin + t, group) + static_cast<size_t>(first) * groups * 2;
    WidenScales<V>(from, run * groups, scales + t * groups);
    WidenScales<V>(from + zeros_at, run * groups, zeros + t * groups);
    t += run;
  }
}

template <class Codes>
void CodedScores<Codes>::Score(const DecodeJob& job, int head, const float* packed, int begin,
                               int count, BlockFetcher* fetcher, float* spare, float* scores) {
  const int dim = job.head_dim, group = job.code_group, rows = dim / Keys::kCells;
  const int slots_per_block = static_cast<int>(job.keys.slots_per_block);
  const size_t row_bytes = static_cast<size_t>(slots_per_block) * 4;
  const float scale = job.scale * kLog2E;
  const float* queries = packed;
  float* const scaled = spare;
  float* const bias = spare + static_cast<size_t>(job.group_size) * dim;
  int unit = -1;  // that `scaled` is for
  for (int t = 0; t < count;) {
    const int slot = begin + t, first = slot % slots_per_block;
    int slots = Smaller(Smaller(V::kLanes, count - t), slots_per_block - first);
    const std::byte* cells = job.keys.base +
                             job.keys.blocks[slot / slots_per_block] * job.keys.block_bytes +
                             head * job.keys.head_stride + static_cast<size_t>(first) * 4;
    if constexpr (Codes::kGrouped) {
      slots = Smaller(slots, group - slot % group);
      if (slot / group != unit) {
        unit = slot / group;
        ScaleQueries(job, head, slot, packed, scaled, bias);
        queries = scaled;
        const size_t bytes = static_cast<size_t>(dim) * 4;  // the keys' scales of a group
        Prefetch(fetcher->Take(bytes, cells), bytes);
      }
    }
    const std::byte* ahead = fetcher->Take(rows * slots * size_t{4}, cells);
    for (int i = 0; i < job.group_size;) {
      const int size = NextSubBlock(job.group_size - i);
      const float* query = queries + static_cast<size_t>(i) * dim;
      float* out = scores + i * kScoreStride + t;
      if (slots == V::kLanes) {
        ScoreSubBlock<Keys, TileRead::kFetching>(size, query, rows, cells, row_bytes, ahead, scale,
                                                 out);
      } else {
        ScorePartialTile<Keys>(size, query, rows, cells, row_bytes, scale, out, slots);
      }
      i += size;
    }
    if constexpr (Codes::kGrouped) {
      for (int i = 0; i < job.group_size; ++i) {
        float* out = scores + i * kScoreStride + t;
        V::Store(out, V::Add(V::Load(out), V::Set(bias[i] * scale)));
      }
    }
    t += slots;
  }
  float factors[kScoreStride];
  if (LoadFactors(Codes::kGrouped ? nullptr : &job.key_scales, &job.key_norms, head, begin, count,
                  Codes::kFactor, factors)) {
    MultiplyRows<V>(job.group_size, factors, count, scores);
  }
}

template <class Codes, class Values_>
void CodedFormat<Codes, Values_>::Accumulate(const DecodeJob& job, int head, int begin, int count,
                                             const std::byte* const* rows, BlockFetcher* fetcher,
                                             float* weights, const float* shrink, float* sums) {
  constexpr bool kInTiles = std::is_same_v<Values, Tiles>;
  const int dim = job.head_dim, group = job.code_group;
  const int stride = AccumulatorFloats<Values>(dim);
  alignas(64) float tile[kInTiles ? kValueTileFloats : 1];
  alignas(64) float scales[Codes::kGrouped ? kValueTileFloats : 1];
  alignas(64) float zeros[Codes::kGrouped ? kValueTileFloats : 1];
  float factors[kScoreStride];
  if (LoadFactors(Codes::kGrouped ? nullptr : &job.value_scales, &job.value_norms, head, begin,
                  count, Codes::kFactor, factors)) {
    MultiplyRows<V>(job.group_size, factors, count, weights);
  }
  float keep[kMaxQueries];  // what was accumulated from this chunk does not shrink
  for (float& one : keep) one = 1;
  // As many as a tile, or the scales, have room for.
  const int most = kValueTileFloats / stride;
  const std::byte* tile_rows[kChunk];
  // Tiles are in cache: what is ahead is fetched while they are made.
  NoFetcher no_fetcher;
  std::conditional_t<kInTiles, NoFetcher, BlockFetcher>* ahead;
  if constexpr (kInTiles) {
    ahead = &no_fetcher;
  } else {
    ahead = fetcher;
  }
  for (int t = 0; t < count; t += most) {
    const int some = Smaller(most, count - t);
    ValueRows values = {rows + t, head * job.values.head_stride};
    if constexpr (Codes::kGrouped) {
      CodedScores<Codes>::LoadValueScales(job, head, begin + t, some, scales, zeros);
      values.scales = scales;
      values.zeros = zeros;
      values.groups = dim / group;
      values.units_per_group = group / Values::kChannels;
    }
    if constexpr (kInTiles) {
      const size_t bytes = some * (job.row_bytes + (Codes::kGrouped ? 4 * values.groups : 0));
      Prefetch(fetcher->Take(bytes, values.at(0, 0)), bytes);
      UnpackValues<Codes>(values, some, dim, stride, tile);
      for (int i = 0; i < some; ++i) {
        tile_rows[i] = reinterpret_cast<const std::byte*>(tile + i * stride);
      }
      values = {tile_rows, 0};
    }
    for (int i = 0; i < job.group_size;) {
      const int size = NextSubBlock(job.group_size - i);
      AccumulateSubBlock<Values>(size, weights + i * kScoreStride + t, t == 0 ? shrink + i : keep,
                                 values, ahead, some, dim, sums + static_cast<size_t>(i) * stride,
                                 stride);
      i += size;
    }
  }
}

}  // namespace
}  // namespace ziggurat::cpu

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

/// The unit of the group that slot begin + t belongs to, of scales of a step's head; what stands
/// there for the next is fetched.   bytes  that are needed of it
inline const std::byte* UnitOf(const HeadStep& step, HeadBlocks DecodeJob::*scales, int t,
                               size_t bytes) {
  const HeadBlocks& plane = step.here.job().*scales;
  const int slot = (step.here.begin() + t) % static_cast<int>(plane.slots_per_block);
  const std::byte* area = step.here.AreaAt(scales, t, nullptr);
  const size_t at = static_cast<size_t>(slot / step.here.job().code_group) * plane.unit_bytes;
  Prefetch(step.next.AreaAt(scales, t, area) + at, bytes);
  return area + at;
}

/// What does not depend on how values are read.
template <class Codes>
struct CodedScores {
  using V = typename Codes::Simd;
  using Keys = CodedKeys<Codes>;
  using Ahead = NothingAhead;

  static void Score(const HeadStep& step, const float* packed, Ahead* ahead, float* spare,
                    float* scores);

 protected:
  static void ScaleQueries(const HeadStep& step, int t, const float* packed, float* scaled,
                           float* bias);
  static void LoadValueScales(const HeadStep& step, int first, int count, float* scales,
                              float* zeros);
};

/// Values_: how values are read: LookedUpValues or WidenedValues, or by way of tiles F32Values.
template <class Codes, class Values_>
struct CodedFormat : CodedScores<Codes> {
  using V = typename Codes::Simd;
  using Values = Values_;
  using Tiles = F32Values<V>;

  static void Accumulate(const HeadStep& step, float* weights, const float* shrink,
                         NothingAhead* ahead, float* sums);
};

/// What a group's scales and zeros make of the queries: score = scaled . codes + bias.
///   t       the first slot of the group, from the step's first
///   scaled  as `packed`
template <class Codes>
void CodedScores<Codes>::ScaleQueries(const HeadStep& step, int t, const float* packed,
                                      float* scaled, float* bias) {
  constexpr int kCells = Keys::kCells;
  const DecodeJob& job = step.here.job();
  const int dim = job.head_dim;
  alignas(64) float scale_zero[2 * kMaxHeadDim];
  WidenScales<V>(UnitOf(step, &DecodeJob::key_scales, t, size_t{4} * dim), 2 * dim, scale_zero);
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

/// Scales of values [first, first + count) of a step, those of each value side by side.
template <class Codes>
void CodedScores<Codes>::LoadValueScales(const HeadStep& step, int first, int count, float* scales,
                                         float* zeros) {
  const DecodeJob& job = step.here.job();
  const int group = job.code_group, groups = job.head_dim / group;
  const size_t zeros_at = static_cast<size_t>(job.head_dim) * 2;  // [group][groups] bf16 behind
  for (int t = 0; t < count;) {
    const int slot = (step.here.begin() + first + t) % group,
              run = Smaller(count - t, group - slot);
    const std::byte* from = UnitOf(step, &DecodeJob::value_scales, first + t, 2 * zeros_at) +
                            static_cast<size_t>(slot) * groups * 2;
    WidenScales<V>(from, run * groups, scales + t * groups);
    WidenScales<V>(from + zeros_at, run * groups, zeros + t * groups);
    t += run;
  }
}

template <class Codes>
void CodedScores<Codes>::Score(const HeadStep& step, const float* packed, Ahead* /*ahead*/,
                               float* spare, float* scores) {
  const DecodeJob& job = step.here.job();
  const int begin = step.here.begin(), count = step.here.count();
  const int dim = job.head_dim, group = job.code_group, rows = dim / Keys::kCells;
  const int slots_per_block = static_cast<int>(job.keys.slots_per_block);
  const size_t row_bytes = static_cast<size_t>(slots_per_block) * 4;
  const float scale = job.scale * kLog2E;
  float* const scaled = spare;
  float* const bias = spare + static_cast<size_t>(job.group_size) * dim;
  TileBatch<Keys> tiles(job, Codes::kGrouped ? scaled : packed, row_bytes, scores);
  int first = -1;  // slot of the group that `scaled` is for
  const auto finish_group = [&](int end) {
    tiles.Score();
    for (int i = 0; Codes::kGrouped && first >= 0 && i < job.group_size; ++i) {
      float* out = scores + i * kScoreStride;
      for (int t = first; t < end; t += V::kLanes) {
        V::Store(out + t, V::Add(V::Load(out + t), V::Set(bias[i] * scale)));
      }
    }
    first = end;
  };
  step.ForEachRun(&DecodeJob::keys,
                  [&](int t, int run, int slot, const std::byte* area, const std::byte* ahead) {
                    for (int end = slot + run, slots; slot < end; slot += slots, t += slots) {
                      slots = Smaller(V::kLanes, end - slot);
                      if constexpr (Codes::kGrouped) {
                        const int in_group = (begin + t) % group;
                        if (first < 0 || in_group == 0) {
                          finish_group(t);
                          ScaleQueries(step, t, packed, scaled, bias);
                        }
                        slots = Smaller(slots, group - in_group);
                      }
                      const size_t at = static_cast<size_t>(slot) * 4;
                      const BlockTile tile = {area + at, ahead + at * rows, t};
                      if (slots == V::kLanes) {
                        tiles.Add(tile);
                      } else {
                        tiles.ScorePartial(tile, slots);
                      }
                    }
                  });
  finish_group(count);
  MultiplyByFactors<V>(Codes::kGrouped ? nullptr : &DecodeJob::key_scales, &DecodeJob::key_norms,
                       step, Codes::kFactor, scores);
}

template <class Codes, class Values_>
void CodedFormat<Codes, Values_>::Accumulate(const HeadStep& step, float* weights,
                                             const float* shrink, NothingAhead* /*ahead*/,
                                             float* sums) {
  constexpr bool kInTiles = std::is_same_v<Values, Tiles>;
  const DecodeJob& job = step.here.job();
  const int dim = job.head_dim, group = job.code_group, count = step.here.count();
  const int stride = AccumulatorFloats<Values>(dim);
  alignas(64) float tile[kInTiles ? kValueTileFloats : 1];
  alignas(64) float scales[Codes::kGrouped ? kValueTileFloats : 1];
  alignas(64) float zeros[Codes::kGrouped ? kValueTileFloats : 1];
  MultiplyByFactors<V>(Codes::kGrouped ? nullptr : &DecodeJob::value_scales,
                       &DecodeJob::value_norms, step, Codes::kFactor, weights);
  float keep[kMaxQueries];  // what was accumulated from this chunk does not shrink
  for (float& one : keep) one = 1;
  // As many as a tile, or the scales, have room for.
  const int most = kValueTileFloats / (kInTiles ? stride : kMaxHeadDim / Values::kChannels);
  const std::byte* tile_rows[kChunk];
  for (int t = 0; t < count; t += most) {
    const int some = Smaller(most, count - t);
    ValueRows values = ValuesOf(step);
    values.rows += t;
    values.rows_ahead += t;
    if constexpr (Codes::kGrouped) {
      CodedScores<Codes>::LoadValueScales(step, t, some, scales, zeros);
      values.scales = scales;
      values.zeros = zeros;
      values.groups = dim / group;
      values.units_per_group = group / Values::kChannels;
    }
    if constexpr (kInTiles) {
      for (int i = 0; i < some; ++i) Prefetch(values.ahead(i, 0), job.row_bytes);
      UnpackValues<Codes>(values, some, dim, stride, tile);
      for (int i = 0; i < some; ++i) {
        tile_rows[i] = reinterpret_cast<const std::byte*>(tile + i * stride);
      }
      values = {tile_rows};
    }
    for (int i = 0; i < job.group_size;) {
      const int size = NextSubBlock(job.group_size - i);
      AccumulateSubBlock<Values, /*kFetches=*/!kInTiles>(
          size, weights + i * kScoreStride + t, t == 0 ? shrink + i : keep, values, some, dim,
          sums + static_cast<size_t>(i) * stride, stride);
      values.FetchNoMore();
      i += size;
    }
  }
}

}  // namespace
}  // namespace ziggurat::cpu

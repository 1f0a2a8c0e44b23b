// Decode attention over codes (int8, fp8, int4, int2): a Format as decode_kernel.h wants it.
#pragma once

#include "attention/cpu/coded_tiles.h"
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

/// Bytes to fetch while a key, or a value, of one head is unpacked: as many as it has, with its
/// part of the scales of its group.
inline size_t AheadOfSlot(const DecodeJob& job) {
  return job.row_bytes + (job.code_group > 0 ? 4 * job.head_dim / job.code_group : 0);
}

template <class V>
struct CodedFormat {
  using Values = F32Values<V>;

  const CodeTiles& tiles;

  static void Pack(int count, int head_dim, const float* q, float* packed) {
    PackQueries<F32Keys<V>>(
        count, head_dim, [&](int i) { return q + static_cast<size_t>(i) * head_dim; }, packed);
  }
  void Score(const DecodeJob& job, int head, const float* packed, int begin, int count,
             BlockFetcher* fetcher, float* scores) const;
  void Accumulate(const DecodeJob& job, int head, int begin, int count,
                  const std::byte* const* rows, BlockFetcher* fetcher, float* weights,
                  const float* shrink, float* sums) const;

 private:
  /// Scales of values [begin, begin + count) of one head, those of each value side by side.
  static void LoadValueScales(const DecodeJob& job, int head, int begin, int count, float* scales,
                              float* zeros) {
    const int group = job.code_group, groups = job.head_dim / group;
    const size_t zeros_at = static_cast<size_t>(job.head_dim) * 2;  // [group][groups] bf16 behind
    for (int t = 0; t < count;) {
      const int first = (begin + t) % group, run = Smaller(count - t, group - first);
      const std::byte* from = UnitOf(job.value_scales, head, begin + t, group) +
                              static_cast<size_t>(first) * groups * 2;
      WidenScales<V>(from, run * groups, scales + t * groups);
      WidenScales<V>(from + zeros_at, run * groups, zeros + t * groups);
      t += run;
    }
  }
};

template <class V>
void CodedFormat<V>::Score(const DecodeJob& job, int head, const float* packed, int begin,
                           int count, BlockFetcher* fetcher, float* scores) const {
  const int dim = job.head_dim, group = job.code_group;
  const int slots_per_block = static_cast<int>(job.keys.slots_per_block);
  alignas(64) float tile[kMaxHeadDim * V::kLanes];
  alignas(64) float scale_zero[2 * kMaxHeadDim];
  const size_t ahead_of_slot = AheadOfSlot(job);
  int unit = -1;  // of whose keys scale_zero is
  for (int t = 0; t < count;) {
    const int slot = begin + t, first = slot % slots_per_block;
    int slots = Smaller(Smaller(V::kLanes, count - t), slots_per_block - first);
    if (group > 0) {
      slots = Smaller(slots, group - slot % group);
      if (slot / group != unit) {
        unit = slot / group;
        WidenScales<V>(UnitOf(job.key_scales, head, slot, group), 2 * dim, scale_zero);
      }
    }
    CodedKeys keys;
    keys.cells = job.keys.base + job.keys.blocks[slot / slots_per_block] * job.keys.block_bytes +
                 head * job.keys.head_stride + static_cast<size_t>(first) * 4;
    keys.row_bytes = static_cast<size_t>(slots_per_block) * 4;
    keys.head_dim = dim;
    keys.slots = slots;
    keys.scale_zero = scale_zero;
    const size_t rows = job.row_bytes / 4;
    keys.ahead_bytes = slots * ahead_of_slot / rows;
    keys.ahead = fetcher->Take(rows * keys.ahead_bytes, keys.cells);
    tiles.unpack_keys(keys, tile);
    for (int i = 0; i < job.group_size;) {
      const int size = NextSubBlock(job.group_size - i);
      ScoreSubBlock<F32Keys<V>, TileRead::kWhole>(size, packed + static_cast<size_t>(i) * dim, dim,
                                                  reinterpret_cast<const std::byte*>(tile),
                                                  V::kLanes * 4, nullptr, job.scale * kLog2E,
                                                  scores + i * kScoreStride + t);
      i += size;
    }
    t += slots;
  }
  float factors[kScoreStride];
  if (LoadFactors(group > 0 ? nullptr : &job.key_scales, &job.key_norms, head, begin, count,
                  tiles.factor, factors)) {
    MultiplyRows<V>(job.group_size, factors, count, scores);
  }
}

template <class V>
void CodedFormat<V>::Accumulate(const DecodeJob& job, int head, int begin, int count,
                                const std::byte* const* rows, BlockFetcher* fetcher, float* weights,
                                const float* shrink, float* sums) const {
  const int dim = job.head_dim, group = job.code_group;
  const int stride = AccumulatorFloats<Values>(dim);
  alignas(64) float tile[kValueTileFloats];
  alignas(64) float scales[kValueTileFloats], zeros[kValueTileFloats];
  float factors[kScoreStride];
  if (LoadFactors(group > 0 ? nullptr : &job.value_scales, &job.value_norms, head, begin, count,
                  tiles.factor, factors)) {
    MultiplyRows<V>(job.group_size, factors, count, weights);
  }
  float keep[kMaxQueries];  // what was accumulated from this chunk does not shrink
  for (float& one : keep) one = 1;
  const int most = kValueTileFloats / stride;
  NoFetcher no_fetcher;
  const std::byte* tile_rows[kChunk];
  for (int t = 0; t < count; t += most) {
    CodedValues values;
    values.rows = rows + t;
    values.offset = head * job.values.head_stride;
    values.count = Smaller(most, count - t);
    values.head_dim = dim;
    values.group = group;
    values.scales = scales;
    values.zeros = zeros;
    if (group > 0) LoadValueScales(job, head, begin + t, values.count, scales, zeros);
    values.ahead_bytes = AheadOfSlot(job);
    values.ahead = fetcher->Take(values.count * values.ahead_bytes, rows[t] + values.offset);
    tiles.unpack_values(values, stride, tile);
    for (int i = 0; i < values.count; ++i) {
      tile_rows[i] = reinterpret_cast<const std::byte*>(tile + i * stride);
    }
    for (int i = 0; i < job.group_size;) {
      const int size = NextSubBlock(job.group_size - i);
      AccumulateSubBlock<Values>(size, weights + i * kScoreStride + t, t == 0 ? shrink + i : keep,
                                 tile_rows, &no_fetcher, values.count, 0, dim,
                                 sums + static_cast<size_t>(i) * stride, stride);
      i += size;
    }
  }
}

}  // namespace
}  // namespace ziggurat::cpu

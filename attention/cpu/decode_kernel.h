// Decode attention of one KV head's queries over a range of slots of one segment.
//
// The slots are taken kChunk at a time: scores of the chunk (tile by tile, all queries of the group
// on each tile while it is in cache), softmax, weighted sum of the values. While a chunk is worked
// on, the keys and values of the next one are fetched, since neither block table nor head areas are
// contiguous for long enough to leave that to the hardware.
#pragma once

#include "attention/cpu/attention_tiles.h"

namespace ziggurat::cpu {
namespace {

/// Scores of slots [begin, begin + count): scores[i][t], kScoreStride apart, in units of log2.
template <class Keys, class NarrowKeys>
inline void ScoreSlots(const DecodeJob& job, const float* packed, int begin, int count,
                       float* scores) {
  constexpr int kLanes = Keys::Simd::kLanes;
  const int rows = job.head_dim / Keys::kChannelsPerRow;
  const float scale = job.scale * kLog2E;
  const int slots_per_block = static_cast<int>(job.keys.slots_per_block);
  const size_t row_bytes = static_cast<size_t>(slots_per_block) * 4;
  const auto tile_at = [&](int slot) {
    return job.keys.base + job.keys.blocks[slot / slots_per_block] * job.keys.block_bytes +
           static_cast<size_t>(slot % slots_per_block) * 4;
  };
  for (int t = 0; t < count;) {
    const int slot = begin + t;
    const int left = slots_per_block - slot % slots_per_block;  // in this block
    const std::byte* tile = tile_at(slot);
    const std::byte* ahead = slot + kChunk < job.end ? tile_at(slot + kChunk) : tile;
    const int slots = Smaller(left, left >= kLanes ? kLanes : NarrowKeys::Simd::kLanes);
    for (int i = 0; i < job.num_queries;) {
      const int size = NextSubBlock(job.num_queries - i);
      const float* query = packed + static_cast<size_t>(i) * job.head_dim;
      float* out = scores + i * kScoreStride + t;
      if (slots == kLanes) {
        ScoreSubBlock<Keys>(size, query, rows, tile, row_bytes, ahead, scale, out);
      } else if (slots == NarrowKeys::Simd::kLanes) {
        ScoreSubBlock<NarrowKeys>(size, query, rows, tile, row_bytes, ahead, scale, out);
      } else {
        ScorePartialTile<NarrowKeys>(size, query, rows, tile, row_bytes, scale, out, slots);
      }
      i += size;
    }
    t += slots;
  }
}

/// Pointers to the values of slots [begin, begin + count).
inline void FindValueRows(const DecodeJob& job, size_t row_bytes, int begin, int count,
                          const std::byte** rows) {
  const int slots_per_block = static_cast<int>(job.values.slots_per_block);
  for (int t = 0; t < count;) {
    const int slot = begin + t, first = slot % slots_per_block;
    const std::byte* area =
        job.values.base + job.values.blocks[slot / slots_per_block] * job.values.block_bytes;
    const int run = Smaller(count - t, slots_per_block - first);
    for (int s = 0; s < run; ++s) rows[t + s] = area + (first + s) * row_bytes;
    t += run;
  }
}

template <class Keys, class NarrowKeys, class Values>
void Decode(const DecodeJob& job) {
  using V = typename Values::Simd;
  const int queries = job.num_queries, dim = job.head_dim;
  const int sums_stride = AccumulatorFloats<Values>(dim);
  const size_t padded_dim = (dim + 31) / 32 * 32;
  float* packed = job.scratch;
  float* sums = packed + queries * padded_dim;
  float* scores = sums + queries * padded_dim;
  float* shrink = scores + static_cast<size_t>(queries) * kScoreStride;
  Running* running = reinterpret_cast<Running*>(shrink + queries);
  PackQueries<Keys>(
      queries, dim, [&](int i) { return job.q + static_cast<size_t>(i) * dim; }, packed);
  for (int i = 0; i < queries; ++i) running[i] = Running();
  __builtin_memset(sums, 0, sizeof(float) * queries * sums_stride);

  const size_t row_bytes = dim * sizeof(typename Values::Element::Type);
  const std::byte* rows[2][kChunk];
  int now = 0;
  FindValueRows(job, row_bytes, job.begin, Smaller(kChunk, job.end - job.begin), rows[now]);
  for (int begin = job.begin; begin < job.end; begin += kChunk, now ^= 1) {
    const int count = Smaller(kChunk, job.end - begin);
    const int next = Larger(0, Smaller(kChunk, job.end - begin - kChunk));
    ScoreSlots<Keys, NarrowKeys>(job, packed, begin, count, scores);
    for (int i = 0; i < queries; ++i) {
      shrink[i] = SoftmaxChunk<V>(scores + i * kScoreStride, count, count, &running[i]);
    }
    const std::byte** ahead = rows[now ^ 1];
    FindValueRows(job, row_bytes, begin + kChunk, next, ahead);
    for (int t = next; t < count; ++t) ahead[t] = rows[now][t];  // nothing more to fetch
    for (int i = 0; i < queries;) {
      const int size = NextSubBlock(queries - i);
      AccumulateSubBlock<Values>(size, scores + i * kScoreStride, shrink + i, rows[now], ahead,
                                 count, dim, sums + static_cast<size_t>(i) * sums_stride,
                                 sums_stride);
      i += size;
    }
  }
  for (int i = 0; i < queries; ++i) {
    const float inverse = 1.0f / running[i].sum;
    for (int c = 0; c < dim; ++c) {
      job.out[static_cast<size_t>(i) * dim + c] =
          sums[static_cast<size_t>(i) * sums_stride + Values::Channel(c)] * inverse;
    }
    job.lse[i] = running[i].Lse();
  }
}

}  // namespace
}  // namespace ziggurat::cpu

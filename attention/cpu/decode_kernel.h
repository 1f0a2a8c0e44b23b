// Decode attention of the queries of some neighbouring KV heads over a range of slots of a segment.
//
// The slots are taken kChunk at a time, head by head: scores of the chunk (tile by tile, all
// queries of the group on each tile while it is in cache), softmax, weighted sum of the values.
#pragma once

#include "attention/cpu/attention_tiles.h"
#include "attention/cpu/block_fetcher.h"

namespace ziggurat::cpu {
namespace {

/// Scores of slots [begin, begin + count) of one head: scores[i][t], kScoreStride apart, in units
/// of log2.   packed: the group's queries
template <class Keys, class NarrowKeys>
inline void ScoreSlots(const DecodeJob& job, int head, const float* packed, int begin, int count,
                       BlockFetcher* fetcher, float* scores) {
  constexpr int kLanes = Keys::Simd::kLanes;
  const int rows = job.head_dim / Keys::kChannelsPerRow;
  const float scale = job.scale * kLog2E;
  const int slots_per_block = static_cast<int>(job.keys.slots_per_block);
  const size_t row_bytes = static_cast<size_t>(slots_per_block) * 4;
  for (int t = 0; t < count;) {
    const int block = (begin + t) / slots_per_block, first = (begin + t) % slots_per_block;
    const std::byte* tile = job.keys.base + job.keys.blocks[block] * job.keys.block_bytes +
                            head * job.keys.head_stride + static_cast<size_t>(first) * 4;
    const int left = slots_per_block - first;
    const int slots = Smaller(left, left >= kLanes ? kLanes : NarrowKeys::Simd::kLanes);
    const std::byte* ahead = fetcher->Take(static_cast<size_t>(rows) * slots * 4, tile);
    for (int i = 0; i < job.group_size;) {
      const int size = NextSubBlock(job.group_size - i);
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

/// Pointers to the values of slots [begin, begin + count) of the first head.
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

/// The state of a job's queries, in its scratch (ScratchFloats).
struct DecodeScratch {
  DecodeScratch(float* scratch, int queries, int head_dim) {
    const size_t padded = static_cast<size_t>(queries) * ((head_dim + 31) / 32 * 32);
    packed = scratch;
    sums = packed + padded;
    scores = sums + padded;
    shrink = scores + static_cast<size_t>(queries) * kScoreStride;
    running = reinterpret_cast<Running*>(shrink + queries);
  }
  float* packed;     ///< queries
  float* sums;       ///< [queries, AccumulatorFloats]
  float* scores;     ///< [group_size, kScoreStride]
  float* shrink;     ///< [group_size]
  Running* running;  ///< [queries]
};

/// One head's part of a chunk.   packed, sums, running: of that head's queries
template <class Keys, class NarrowKeys, class Values>
inline void DecodeChunk(const DecodeJob& job, int head, int begin, int count,
                        const std::byte* const* rows, BlockFetcher* fetcher,
                        const DecodeScratch& scratch) {
  using V = typename Values::Simd;
  const int sums_stride = AccumulatorFloats<Values>(job.head_dim);
  const size_t first = static_cast<size_t>(head) * job.group_size;
  ScoreSlots<Keys, NarrowKeys>(job, head, scratch.packed + first * job.head_dim, begin, count,
                               fetcher, scratch.scores);
  for (int i = 0; i < job.group_size; ++i) {
    scratch.shrink[i] = SoftmaxChunk<V>(scratch.scores + i * kScoreStride, count, count,
                                        &scratch.running[first + i]);
  }
  for (int i = 0; i < job.group_size;) {
    const int size = NextSubBlock(job.group_size - i);
    AccumulateSubBlock<Values>(size, scratch.scores + i * kScoreStride, scratch.shrink + i, rows,
                               fetcher, count, head * job.values.head_stride, job.head_dim,
                               scratch.sums + (first + i) * sums_stride, sums_stride);
    i += size;
  }
}

template <class Keys, class NarrowKeys, class Values>
void Decode(const DecodeJob& job) {
  const int queries = job.num_heads * job.group_size, dim = job.head_dim;
  const int sums_stride = AccumulatorFloats<Values>(dim);
  const size_t row_bytes = dim * sizeof(typename Values::Element::Type);
  const DecodeScratch scratch(job.scratch, queries, dim);
  BlockFetcher fetcher;
  if (job.is_first) {
    fetcher.Plan(job, job.begin, Smaller(job.begin + kChunk, job.end), row_bytes);
    fetcher.FetchAll();
  }
  for (int head = 0; head < job.num_heads; ++head) {
    const size_t first = static_cast<size_t>(head) * job.group_size * dim;
    PackQueries<Keys>(
        job.group_size, dim, [&](int i) { return job.q + first + static_cast<size_t>(i) * dim; },
        scratch.packed + first);
  }
  for (int i = 0; i < queries; ++i) scratch.running[i] = Running();
  __builtin_memset(scratch.sums, 0, sizeof(float) * queries * sums_stride);

  for (int begin = job.begin; begin < job.end; begin += kChunk) {
    const int count = Smaller(kChunk, job.end - begin);
    const int next = begin + kChunk;
    if (next < job.end) {
      fetcher.Plan(job, next, Smaller(next + kChunk, job.end), row_bytes);
    } else if (const DecodeJob* after = job.following) {
      fetcher.Plan(*after, after->begin, Smaller(after->begin + kChunk, after->end), row_bytes);
    }
    const std::byte* rows[kChunk];
    FindValueRows(job, row_bytes, begin, count, rows);
    for (int head = 0; head < job.num_heads; ++head) {
      DecodeChunk<Keys, NarrowKeys, Values>(job, head, begin, count, rows, &fetcher, scratch);
    }
    fetcher.FetchAll();  // the last chunk of a segment may be shorter than what comes next
  }
  for (int i = 0; i < queries; ++i) {
    PutInOrder<Values>(scratch.sums + static_cast<size_t>(i) * sums_stride,
                       1.0f / scratch.running[i].sum, dim, job.out + static_cast<size_t>(i) * dim);
    job.lse[i] = scratch.running[i].Lse();
  }
}

}  // namespace
}  // namespace ziggurat::cpu

// Decode attention of the queries of some neighbouring KV heads over a range of slots of a segment.
//
// The slots are taken kChunk at a time, head by head: scores of the chunk (tile by tile, all
// queries of the group on each tile while it is in cache), softmax, weighted sum of the values.
// How scores and sums come from blocks is the format's: plain numbers here, codes in
// coded_format.h.
#pragma once

#include <type_traits>

#include "attention/cpu/block_fetcher.h"
#include "attention/cpu/score_tiles.h"
#include "attention/cpu/slot_factors.h"
#include "attention/cpu/softmax_chunk.h"
#include "attention/cpu/value_tiles.h"

namespace ziggurat::cpu {
namespace {

/// Pointers to the values of slots [begin, begin + count) of the first head.
inline void FindValueRows(const DecodeJob& job, int begin, int count, const std::byte** rows) {
  const int slots_per_block = static_cast<int>(job.values.slots_per_block);
  for (int t = 0; t < count;) {
    const int slot = begin + t, first = slot % slots_per_block;
    const std::byte* area =
        job.values.base + job.values.blocks[slot / slots_per_block] * job.values.block_bytes;
    const int run = Smaller(count - t, slots_per_block - first);
    for (int s = 0; s < run; ++s) rows[t + s] = area + (first + s) * job.row_bytes;
    t += run;
  }
}

// A Format has Keys, how queries are packed for them (void: not at all), Values, how accumulators
// are put in order, Score and Accumulate.

/// Keys and values as they are, f32 or bf16.   Keys, NarrowKeys: how keys are read a full vector,
/// and a half one, at a time
template <class Keys_, class NarrowKeys, class Values_>
struct PlainFormat {
  using Keys = Keys_;
  using Values = Values_;

  /// Scores of slots [begin, begin + count) of one head: scores[i][t], kScoreStride apart, in units
  /// of log2.   packed: the group's queries; spare: room for as many floats, and one a query
  static void Score(const DecodeJob& job, int head, const float* packed, int begin, int count,
                    BlockFetcher* fetcher, float* spare, float* scores);
  /// For all queries i of one head: sums[i] = shrink[i] * sums[i] + sum over t of weights[i][t] *
  /// value t. Spoils the weights.   rows: of the first head's values (FindValueRows)
  static void Accumulate(const DecodeJob& job, int head, int begin, int count,
                         const std::byte* const* rows, BlockFetcher* fetcher, float* weights,
                         const float* shrink, float* sums) {
    float factors[kScoreStride];
    if (LoadFactors(&job.value_norms, nullptr, head, begin, count, 1, factors)) {
      MultiplyRows<typename Values::Simd>(job.group_size, factors, count, weights);
    }
    const int sums_stride = AccumulatorFloats<Values>(job.head_dim);
    for (int i = 0; i < job.group_size;) {
      const int size = NextSubBlock(job.group_size - i);
      AccumulateSubBlock<Values>(
          size, weights + i * kScoreStride, shrink + i, {rows, head * job.values.head_stride},
          fetcher, count, job.head_dim, sums + static_cast<size_t>(i) * sums_stride, sums_stride);
      i += size;
    }
  }
};

template <class Keys, class NarrowKeys, class Values_>
inline void PlainFormat<Keys, NarrowKeys, Values_>::Score(const DecodeJob& job, int head,
                                                          const float* packed, int begin, int count,
                                                          BlockFetcher* fetcher, float* /*spare*/,
                                                          float* scores) {
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
        ScoreSubBlock<Keys, TileRead::kFetching>(size, query, rows, tile, row_bytes, ahead, scale,
                                                 out);
      } else if (slots == NarrowKeys::Simd::kLanes) {
        ScoreSubBlock<NarrowKeys, TileRead::kFetching>(size, query, rows, tile, row_bytes, ahead,
                                                       scale, out);
      } else {
        ScorePartialTile<NarrowKeys>(size, query, rows, tile, row_bytes, scale, out, slots);
      }
      i += size;
    }
    t += slots;
  }
  float factors[kScoreStride];
  if (LoadFactors(&job.key_norms, nullptr, head, begin, count, 1, factors)) {
    MultiplyRows<typename Keys::Simd>(job.group_size, factors, count, scores);
  }
}

/// The state of a job's queries, in its scratch (DecodeScratchFloats).
struct DecodeScratch {
  DecodeScratch(float* scratch, int queries, int head_dim) {
    const size_t padded = queries * PaddedDim(head_dim);
    packed = scratch;
    sums = packed + padded;
    scores = sums + padded;
    shrink = scores + static_cast<size_t>(queries) * kScoreStride;
    running = reinterpret_cast<Running*>(shrink + PaddedFloats(queries));
    spare = shrink + 3 * PaddedFloats(queries);
  }
  float* packed;     ///< queries
  float* sums;       ///< [queries, AccumulatorFloats]
  float* scores;     ///< [group_size, kScoreStride]
  float* shrink;     ///< [group_size]
  Running* running;  ///< [queries]
  float* spare;      ///< for Format::Score
};

/// One head's part of a chunk.
template <class Format>
inline void DecodeChunk(const DecodeJob& job, int head, int begin, int count,
                        const std::byte* const* rows, BlockFetcher* fetcher,
                        const DecodeScratch& scratch) {
  using Values = typename Format::Values;
  using V = typename Values::Simd;
  const size_t first = static_cast<size_t>(head) * job.group_size;
  Format::Score(job, head, scratch.packed + first * job.head_dim, begin, count, fetcher,
                scratch.spare, scratch.scores);
  for (int i = 0; i < job.group_size; ++i) {
    scratch.shrink[i] = SoftmaxChunk<V>(scratch.scores + i * kScoreStride, /*scale=*/1, count,
                                        count, &scratch.running[first + i]);
  }
  Format::Accumulate(job, head, begin, count, rows, fetcher, scratch.scores, scratch.shrink,
                     scratch.sums + first * AccumulatorFloats<Values>(job.head_dim));
}

/// Fetches ahead for the chunk behind slot `next`, which may be the first of the following job.
inline void PlanNext(const DecodeJob& job, int next, BlockFetcher* fetcher) {
  if (next < job.end) {
    fetcher->Plan(job, next, Smaller(next + kChunk, job.end));
  } else if (const DecodeJob* after = job.following) {
    fetcher->Plan(*after, after->begin, Smaller(after->begin + kChunk, after->end));
  }
}

template <class Format>
inline void Start(const DecodeJob& job, BlockFetcher* fetcher, float* packed) {
  if (job.is_first) {
    fetcher->Plan(job, job.begin, Smaller(job.begin + kChunk, job.end));
    fetcher->FetchAll();
  }
  if constexpr (!std::is_void_v<typename Format::Keys>) {
    for (int head = 0; head < job.num_heads; ++head) {
      const size_t first = static_cast<size_t>(head) * job.group_size * job.head_dim;
      PackQueries<typename Format::Keys>(
          job.group_size, job.head_dim,
          [&](int i) { return job.q + first + static_cast<size_t>(i) * job.head_dim; },
          packed + first);
    }
  }
}

template <class Format>
void Decode(const DecodeJob& job) {
  using Values = typename Format::Values;
  const int queries = job.num_heads * job.group_size, dim = job.head_dim;
  const int sums_stride = AccumulatorFloats<Values>(dim);
  const DecodeScratch scratch(job.scratch, queries, dim);
  BlockFetcher fetcher;
  Start<Format>(job, &fetcher, scratch.packed);
  for (int i = 0; i < queries; ++i) scratch.running[i] = Running();
  __builtin_memset(scratch.sums, 0, sizeof(float) * queries * sums_stride);

  for (int begin = job.begin; begin < job.end; begin += kChunk) {
    const int count = Smaller(kChunk, job.end - begin);
    PlanNext(job, begin + kChunk, &fetcher);
    const std::byte* rows[kChunk];
    FindValueRows(job, begin, count, rows);
    for (int head = 0; head < job.num_heads; ++head) {
      DecodeChunk<Format>(job, head, begin, count, rows, &fetcher, scratch);
    }
    fetcher.FetchAll();  // the last chunk of a segment may be shorter than what comes next
  }
  for (int i = 0; i < queries; ++i) {
    PutInOrder<Values>(scratch.sums + static_cast<size_t>(i) * sums_stride,
                       1.0f / scratch.running[i].sum, dim, job.out + static_cast<size_t>(i) * dim);
    job.lse[i] = scratch.running[i].Lse();
  }
}

/// BlockKernels::slot_weights.
template <class Format>
void SlotWeights(const DecodeJob& job, const float* lse, float* sums) {
  using V = typename Format::Values::Simd;
  const DecodeScratch scratch(job.scratch, job.num_heads * job.group_size, job.head_dim);
  BlockFetcher fetcher;
  Start<Format>(job, &fetcher, scratch.packed);
  for (int begin = job.begin; begin < job.end; begin += kChunk) {
    const int count = Smaller(kChunk, job.end - begin);
    PlanNext(job, begin + kChunk, &fetcher);
    for (int head = 0; head < job.num_heads; ++head) {
      const size_t first = static_cast<size_t>(head) * job.group_size;
      Format::Score(job, head, scratch.packed + first * job.head_dim, begin, count, &fetcher,
                    scratch.spare, scratch.scores);
      float sum[kScoreStride] = {};
      for (int i = 0; i < job.group_size; ++i) {
        AddWeights<V>(scratch.scores + i * kScoreStride, /*scale=*/1, lse[first + i], count, sum);
      }
      __builtin_memcpy(sums + static_cast<size_t>(head) * (job.end - job.begin) + begin - job.begin,
                       sum, sizeof(float) * count);
    }
    fetcher.FetchAll();
  }
}

}  // namespace
}  // namespace ziggurat::cpu

// Decode attention of the queries of some neighbouring KV heads over a range of slots of a segment.
//
// The slots are taken kChunk at a time, head by head (chunk.h): scores of the chunk (all queries of
// the group on each row of keys while it is in registers), softmax, weighted sum of the values. How
// scores and sums come from blocks is the format's: plain numbers here, codes in coded_format.h.
#pragma once

#include <type_traits>

#include "attention/cpu/chunk.h"
#include "attention/cpu/read_order.h"
#include "attention/cpu/score_tiles.h"
#include "attention/cpu/slot_factors.h"
#include "attention/cpu/softmax_chunk.h"
#include "attention/cpu/value_tiles.h"

namespace ziggurat::cpu {
namespace {

/// Tiles of keys that lie alike, to be multiplied together.
template <class Keys, ReadOrder kOrder = ReadOrder::kWholeChunk>
class TileBatch {
 public:
  static constexpr int kLanes = Keys::Simd::kLanes;

  /// of    job; packed, scores  as Format::Score has them
  TileBatch(const DecodeJob& job, const float* packed, size_t row_bytes, float* scores)
      : job_(job),
        packed_(packed),
        rows_(job.head_dim / Keys::kChannelsPerRow),
        row_bytes_(row_bytes),
        scale_(job.scale * kLog2E),
        scores_(scores) {}

  void Add(const BlockTile& tile) { tiles_[count_++] = tile; }
  /// Scores of all that were added.
  void Score() {
    if (count_ == 0) return;
    ForSubBlocks([&](int size, const float* query, float* scores) {
      ScoreBlocks<Keys, kOrder>(size, query, rows_, tiles_, count_, row_bytes_, scale_, scores);
      // What was fetched once need not be again.
      for (int v = 0; v < count_; ++v) tiles_[v].ahead = tiles_[v].keys;
    });
    count_ = 0;
  }
  /// Scores of a tile of fewer slots, at once.
  void ScorePartial(const BlockTile& tile, int slots) {
    ForSubBlocks([&](int size, const float* query, float* scores) {
      ScorePartialTile<Keys>(size, query, rows_, tile.keys, row_bytes_, scale_, scores + tile.slot,
                             slots);
    });
  }

 private:
  template <class Run>
  void ForSubBlocks(Run run) {
    for (int i = 0; i < job_.group_size;) {
      const int size = NextSubBlock(job_.group_size - i);
      run(size, packed_ + static_cast<size_t>(i) * job_.head_dim, scores_ + i * kScoreStride);
      i += size;
    }
  }

  const DecodeJob& job_;
  const float* packed_;
  int rows_;
  size_t row_bytes_;
  float scale_;
  float* scores_;
  BlockTile tiles_[kChunk / kLanes + 1];
  int count_ = 0;
};

// A Format has Keys, how queries are packed for them (void: not at all, or by its own PackQueries),
// Values, how accumulators are put in order, Ahead, how what comes next is fetched (its Turn is
// called now and then), Score and Accumulate; and Takes where it is not for every job. Or, in place
// of Ahead, Score and Accumulate, DecodeSteps: all from zeros to `sums` and `running`.

/// Keys and values as they are, f32 or bf16.   Keys, NarrowKeys: how keys are read a full vector,
/// and a half one, at a time; kOrder: for jobs that can be read so
template <class Keys_, class NarrowKeys, class Values_, ReadOrder kOrder>
struct PlainFormat {
  using Keys = Keys_;
  using Values = Values_;
  using Ahead = Reading<kOrder>;

  static bool Takes(const DecodeJob& job) { return Reading<kOrder>::Takes(job); }

  /// Scores of a step's slots: scores[i][t], kScoreStride apart, in units of log2.
  ///   packed  the head's queries
  ///   spare   room for as many floats, and one a query
  static void Score(const HeadStep& step, const float* packed, Ahead* ahead, float* spare,
                    float* scores);
  /// For all queries i of the head: sums[i] = shrink[i] * sums[i] + sum over t of weights[i][t] *
  /// value t. Spoils the weights.
  static void Accumulate(const HeadStep& step, float* weights, const float* shrink, Ahead* ahead,
                         float* sums) {
    const DecodeJob& job = step.here.job();
    const int count = step.here.count();
    MultiplyByFactors<typename Values::Simd>(&DecodeJob::value_norms, nullptr, step, 1, weights);
    const int sums_stride = AccumulatorFloats<Values>(job.head_dim);
    ValueRows values = ahead->Values();
    for (int i = 0; i < job.group_size;) {
      const int size = NextSubBlock(job.group_size - i);
      AccumulateSubBlock<Values, /*kFetches=*/true, kOrder>(
          size, weights + i * kScoreStride, shrink + i, values, count, job.head_dim,
          sums + static_cast<size_t>(i) * sums_stride, sums_stride);
      values.FetchNoMore();
      i += size;
    }
  }
};

template <class Keys, class NarrowKeys, class Values_, ReadOrder kOrder>
inline void PlainFormat<Keys, NarrowKeys, Values_, kOrder>::Score(const HeadStep& step,
                                                                  const float* packed, Ahead* ahead,
                                                                  float* /*spare*/, float* scores) {
  const DecodeJob& job = step.here.job();
  const int rows = job.head_dim / Keys::kChannelsPerRow;
  const int slots_per_block = static_cast<int>(job.keys.slots_per_block);
  const size_t row_bytes = static_cast<size_t>(slots_per_block) * 4;
  TileBatch<Keys, kOrder> tiles(job, packed, row_bytes, scores);
  TileBatch<NarrowKeys, kOrder> narrow_tiles(job, packed, row_bytes, scores);
  step.ForEachRun(&DecodeJob::keys, [&](int t, int run, int slot, const std::byte* area,
                                        const std::byte* next_area) {
    for (int end = slot + run, slots; slot < end; slot += slots, t += slots) {
      const size_t at = static_cast<size_t>(slot) * 4;
      const BlockTile tile = {
          area + at, ahead->AfterKeys(/*lines=*/area + at * rows, next_area + at * rows), t};
      const int left = slots_per_block - slot;
      slots = left >= Keys::Simd::kLanes ? Keys::Simd::kLanes : NarrowKeys::Simd::kLanes;
      if (left >= Keys::Simd::kLanes) {
        tiles.Add(tile);
      } else if (left >= slots) {
        narrow_tiles.Add(tile);
      } else {
        slots = left;
        narrow_tiles.ScorePartial(tile, slots);
      }
    }
  });
  tiles.Score();
  narrow_tiles.Score();
  MultiplyByFactors<typename Keys::Simd>(&DecodeJob::key_norms, nullptr, step, 1, scores);
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
inline void DecodeStep(const HeadStep& step, const DecodeScratch& scratch) {
  using Values = typename Format::Values;
  using V = typename Values::Simd;
  const DecodeJob& job = step.here.job();
  const int count = step.here.count();
  const size_t first = static_cast<size_t>(step.here.head) * job.group_size;
  typename Format::Ahead ahead(step);
  Format::Score(step, scratch.packed + first * job.head_dim, &ahead, scratch.spare, scratch.scores);
  SoftmaxRows<V>(
      job.group_size, scratch.scores, count, &scratch.running[first],
      scratch.shrink, [&]() __attribute__((always_inline)) { ahead.Turn(); });
  Format::Accumulate(step, scratch.scores, scratch.shrink, &ahead,
                     scratch.sums + first * AccumulatorFloats<Values>(job.head_dim));
}

template <class Format>
inline void PackQueriesOf(const DecodeJob& job, float* packed) {
  if constexpr (requires { Format::PackQueries(job, packed); }) {
    Format::PackQueries(job, packed);
  } else if constexpr (!std::is_void_v<typename Format::Keys>) {
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
  PackQueriesOf<Format>(job, scratch.packed);
  for (int i = 0; i < queries; ++i) scratch.running[i] = Running();
  __builtin_memset(scratch.sums, 0, sizeof(float) * queries * sums_stride);

  if constexpr (requires { Format::DecodeSteps(job, scratch); }) {
    Format::DecodeSteps(job, scratch);
  } else {
    ForEachHeadStep(job, [&](const HeadStep& step) { DecodeStep<Format>(step, scratch); });
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
  PackQueriesOf<Format>(job, scratch.packed);
  ForEachHeadStep(job, [&](const HeadStep& step) {
    const int head = step.here.head, count = step.here.count();
    const size_t first = static_cast<size_t>(head) * job.group_size;
    typename Format::Ahead ahead(step);
    Format::Score(step, scratch.packed + first * job.head_dim, &ahead, scratch.spare,
                  scratch.scores);
    float sum[kScoreStride] = {};
    for (int i = 0; i < job.group_size; ++i) {
      AddWeights<V>(scratch.scores + i * kScoreStride, /*scale=*/1, lse[first + i], count, sum);
    }
    __builtin_memcpy(
        sums + static_cast<size_t>(head) * (job.end - job.begin) + step.here.begin() - job.begin,
        sum, sizeof(float) * count);
  });
}

}  // namespace
}  // namespace ziggurat::cpu

// Attention over a contiguous workspace: a tile of queries against all keys they may see, a chunk
// of keys at a time (flash attention).
#pragma once

#include "attention/cpu/packed_workspace.h"
#include "attention/cpu/softmax_chunk.h"
#include "attention/cpu/value_tiles.h"

namespace ziggurat::cpu {
namespace {

/// The attention of the queries of a job to some of the keys, as far as it has come.
struct Attended {
  Attended(float** scratch, int queries, int head_dim) {
    const size_t padded = queries * PaddedDim(head_dim);
    packed = *scratch;
    sums = packed + padded;
    running = reinterpret_cast<Running*>(sums + padded);
    *scratch = sums + padded + PaddedFloats(2 * static_cast<size_t>(queries));
  }

  template <class Keys>
  void Start(const PrefillJob& job, const std::byte* q) const {
    const int queries = job.count * job.group_size;
    PackQueryRows<Keys>(q, job.q_row_bytes, job.group_size, queries, job.head_dim, packed);
    for (int i = 0; i < queries; ++i) running[i] = Running();
    __builtin_memset(sums, 0, sizeof(float) * queries * PaddedDim(job.head_dim));
  }

  float* packed;     ///< queries
  float* sums;       ///< [queries, AccumulatorFloats]
  Running* running;  ///< [queries]
};

/// Keys of positions [begin, end) for the queries that are at least `nearest` and at most
/// `farthest` tokens behind them.
struct KeyRange {
  const std::byte* k;  ///< row of position 0
  int begin;
  int end;
  int nearest;
  int farthest;
};
constexpr int kAnyDistance = 1 << 30;

/// Attends to the keys of a range.
///   keys    scratch for one packed chunk
///   scores  scratch [kMaxQueries, kScoreStride]
template <class Keys, class Values>
void AttendRange(const PrefillJob& job, const KeyRange& range, float* keys, float* scores,
                 const Attended& state) {
  using V = typename Values::Simd;
  const int dim = job.head_dim, queries = job.count * job.group_size;
  const int rows = dim / Keys::kChannelsPerRow;
  const int sums_stride = AccumulatorFloats<Values>(dim);
  const float scale = job.scale * kLog2E;
  auto* packed_keys = reinterpret_cast<std::byte*>(keys);
  const std::byte* value_rows[kChunk];
  NoFetcher no_fetcher;
  for (int begin = range.begin; begin < range.end; begin += kChunk) {
    const int count = Smaller(kChunk, range.end - begin);
    PackKeys<Keys>(range.k, job.kv_row_bytes, rows, begin, count, packed_keys);
    for (int t = 0; t < count; ++t) value_rows[t] = job.v + (begin + t) * job.kv_row_bytes;
    for (int i = 0; i < queries;) {
      const int size = NextSubBlock(queries - i);
      // Keys of this chunk that query row r may see.
      const auto first_of = [&](int r) {
        return Larger(0, job.first + r / job.group_size - range.farthest - begin);
      };
      const auto end_of = [&](int r) {
        return Smaller(count, job.first + r / job.group_size - range.nearest + 1 - begin);
      };
      const int width = end_of(i + size - 1);
      if (first_of(i) < width) {
        float shrink[kMaxQueries];
        ScorePackedKeys<Keys>(size, state.packed + static_cast<size_t>(i) * dim, rows, packed_keys,
                              width, scale, scores);
        for (int j = 0; j < size; ++j) {
          shrink[j] = SoftmaxInterval<V>(scores + j * kScoreStride, first_of(i + j), end_of(i + j),
                                         width, &state.running[i + j]);
        }
        AccumulateSubBlock<Values>(size, scores, shrink, {value_rows, 0}, &no_fetcher, width, dim,
                                   state.sums + static_cast<size_t>(i) * sums_stride, sums_stride);
      }
      i += size;
    }
  }
}

/// Writes the normalised output and the log-sum-exp of query row `i`.
template <class Values>
inline void StoreRow(const PrefillJob& job, int i, const float* sums, const Running& running) {
  using V = typename Values::Simd;
  using Element = typename Values::Element;
  float channels[256 + 16];
  PutInOrder<Values>(sums, 1.0f / running.sum, job.head_dim, channels);
  const int token = i / job.group_size, head = i % job.group_size;
  auto* out = reinterpret_cast<typename Element::Type*>(job.out + token * job.q_row_bytes) +
              static_cast<size_t>(head) * job.head_dim;
  ForEachVector<V>(job.head_dim, [&](size_t c, int lanes) {
    StoreUpTo<V, Element>(out + c, V::Load(channels + c), lanes);
  });
  job.lse[token * job.lse_stride + head] = running.Lse();
}

template <class Keys, class Values>
void Prefill(const PrefillJob& job) {
  const int queries = job.count * job.group_size;
  const int sums_stride = AccumulatorFloats<Values>(job.head_dim);
  float* scratch = job.scratch;
  const Attended state(&scratch, queries, job.head_dim);
  state.Start<Keys>(job, job.q);
  float* scores = scratch + KeyScratchFloats(job.head_dim);
  // The last query's own key is the last one.
  AttendRange<Keys, Values>(job, {job.k, 0, job.first + job.count, 0, kAnyDistance}, scratch,
                            scores, state);
  for (int i = 0; i < queries; ++i) {
    StoreRow<Values>(job, i, state.sums + static_cast<size_t>(i) * sums_stride, state.running[i]);
  }
}

}  // namespace
}  // namespace ziggurat::cpu

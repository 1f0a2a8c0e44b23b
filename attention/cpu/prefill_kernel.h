// Attention over a contiguous workspace: a tile of queries against all keys they may see, a chunk
// of keys at a time (flash attention).
#pragma once

#include "attention/cpu/packed_workspace.h"

namespace ziggurat::cpu {
namespace {

/// The attention of the queries of a job to some of the keys, as far as it has come.
struct Attended {
  Attended(float** scratch, int queries, int head_dim) {
    const size_t padded = PaddedRows(queries) * PaddedDim(head_dim);
    packed = *scratch;
    sums = packed + padded;
    running = reinterpret_cast<Running*>(sums + padded);
    *scratch += AttendedFloats(queries, head_dim);
  }

  template <class Workspace>
  void Start(const PrefillJob& job, const std::byte* q) const {
    const int queries = job.count * job.group_size;
    Workspace::PackQueries(q, job.q_row_bytes, job.group_size, queries, job.head_dim, packed);
    for (int i = 0; i < queries; ++i) running[i] = Running();
    __builtin_memset(sums, 0, sizeof(float) * queries * PaddedDim(job.head_dim));
  }

  float* packed;     ///< queries
  float* sums;       ///< [PaddedRows(queries), AccumulatorFloats]
  Running* running;  ///< [queries]
};

/// What is packed of one chunk, and the scores of a sub-block of queries.
struct ChunkScratch {
  ChunkScratch(float* scratch, int head_dim)
      : keys(scratch),
        values(keys + KeyScratchFloats(head_dim)),
        scores(values + ValueScratchFloats(head_dim)) {}

  float* keys;
  float* values;
  float* scores;  ///< [kMostQueries of the workspace, kScoreStride]
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
template <class Workspace>
void AttendRange(const PrefillJob& job, const KeyRange& range, const ChunkScratch& chunk,
                 const Attended& state) {
  const int dim = job.head_dim, queries = job.count * job.group_size;
  const size_t head_bytes = dim * sizeof(typename Workspace::Element::Type);
  const int sums_stride = AccumulatorFloats<typename Workspace::Values>(dim);
  const float scale = job.scale * kLog2E;
  float* const scores = chunk.scores;
  for (int begin = range.begin; begin < range.end; begin += kChunk) {
    const int count = Smaller(kChunk, range.end - begin);
    Workspace::PackKeys(range.k + begin * job.kv_row_bytes, job.kv_row_bytes, dim, count,
                        chunk.keys);
    const typename Workspace::ChunkValues values(job.v + begin * job.kv_row_bytes, job.kv_row_bytes,
                                                 dim, count, chunk.values);
    int fetched = begin + count;
    for (int i = 0; i < queries;) {
      const int size = Workspace::NextSubBlock(queries - i);
      // Rows of one head are too far apart for the hardware to see what comes next.
      const int last = Smaller(range.end, begin + kChunk + kChunk * (i + size) / queries);
      for (; fetched < last; ++fetched) {
        Prefetch(range.k + fetched * job.kv_row_bytes, head_bytes);
        Prefetch(job.v + fetched * job.kv_row_bytes, head_bytes);
      }
      // Keys of this chunk that query row r may see.
      const auto first_of = [&](int r) {
        return Larger(0, job.first + r / job.group_size - range.farthest - begin);
      };
      const auto end_of = [&](int r) {
        return Smaller(count, job.first + r / job.group_size - range.nearest + 1 - begin);
      };
      const int width = end_of(i + size - 1);
      if (first_of(i) < width) {
        float shrink[Workspace::kMostQueries];
        KeyInterval visible[Workspace::kMostQueries];
        for (int j = 0; j < size; ++j) visible[j] = {first_of(i + j), end_of(i + j)};
        Workspace::Weigh(size, state.packed + i * Workspace::QueryFloats(dim), dim, chunk.keys,
                         width, scale, visible, &state.running[i], shrink, scores);
        values.Accumulate(size, scores, shrink, width, dim,
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
  float channels[kMaxHeadDim + 16];
  PutInOrder<Values>(sums, 1.0f / running.sum, job.head_dim, channels);
  const int token = i / job.group_size, head = i % job.group_size;
  auto* out = reinterpret_cast<typename Element::Type*>(job.out + token * job.q_row_bytes) +
              static_cast<size_t>(head) * job.head_dim;
  ForEachVector<V>(job.head_dim, [&](size_t c, int lanes) {
    StoreUpTo<V, Element>(out + c, V::Load(channels + c), lanes);
  });
  job.lse[token * job.lse_stride + head] = running.Lse();
}

template <class Workspace>
void Prefill(const PrefillJob& job) {
  using Values = typename Workspace::Values;
  const typename Workspace::Registers registers;
  const int queries = job.count * job.group_size;
  const int sums_stride = AccumulatorFloats<Values>(job.head_dim);
  float* scratch = job.scratch;
  const Attended state(&scratch, queries, job.head_dim);
  state.Start<Workspace>(job, job.q);
  // The last query's own key is the last one.
  AttendRange<Workspace>(job, {job.k, 0, job.first + job.count, 0, kAnyDistance},
                         ChunkScratch(scratch, job.head_dim), state);
  for (int i = 0; i < queries; ++i) {
    StoreRow<Values>(job, i, state.sums + static_cast<size_t>(i) * sums_stride, state.running[i]);
  }
}

}  // namespace
}  // namespace ziggurat::cpu

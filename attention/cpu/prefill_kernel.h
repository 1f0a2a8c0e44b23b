// Attention over a contiguous workspace: a tile of queries against all keys they may see, a chunk
// of keys at a time (flash attention), and the window scores that policies select by.
#pragma once

#include "attention/cpu/attention_tiles.h"

namespace ziggurat::cpu {
namespace {

/// Packs keys [begin, begin + count) into tiles of [rows][kLanes] cells; lanes past the last key
/// are zero.
template <class Keys>
inline void PackKeys(const std::byte* k, size_t row_bytes, int rows, int begin, int count,
                     std::byte* packed) {
  constexpr int kLanes = Keys::Simd::kLanes;
  for (int t = 0; t < count; t += kLanes) {
    const std::byte* from = k + (begin + t) * row_bytes;
    const int lanes = Smaller(kLanes, count - t);
    if (lanes < kLanes) __builtin_memset(packed, 0, static_cast<size_t>(rows) * kLanes * 4);
    for (int r = 0; r < rows; ++r) {
      std::byte* to = packed + static_cast<size_t>(r) * kLanes * 4;
      for (int lane = 0; lane < lanes; ++lane) {
        __builtin_memcpy(to + lane * 4, from + lane * row_bytes + r * 4, 4);
      }
    }
    packed += static_cast<size_t>(rows) * kLanes * 4;
  }
}

/// Widens query rows of the workspace to f32 and packs them: row i is token i / group_size, query
/// head i % group_size of the group.
template <class Keys>
inline void PackQueryRows(const std::byte* q, size_t q_row_bytes, int group_size, int count,
                          int head_dim, float* packed) {
  using V = typename Keys::Simd;
  using Element = typename Keys::Element;
  float channels[256 + 16];
  PackQueries<Keys>(
      count, head_dim,
      [&](int i) -> const float* {
        const std::byte* row = q + static_cast<size_t>(i / group_size) * q_row_bytes;
        const auto* x = reinterpret_cast<const typename Element::Type*>(row) +
                        static_cast<size_t>(i % group_size) * head_dim;
        ForEachVector<V>(head_dim, [&](size_t c, int lanes) {
          V::Store(channels + c, LoadUpTo<V, Element>(x + c, lanes));
        });
        return channels;
      },
      packed);
}

/// Scores of `size` queries against the first `width` keys of a packed chunk.
template <class Keys>
inline void ScorePackedKeys(int size, const float* query, int rows, const std::byte* packed_keys,
                            int width, float scale, float* scores) {
  constexpr int kLanes = Keys::Simd::kLanes;
  for (int t = 0; t < width; t += kLanes) {
    const std::byte* tile = packed_keys + static_cast<size_t>(t) * rows * 4;
    ScoreSubBlock<Keys>(size, query, rows, tile, kLanes * 4, tile, scale, scores + t);
  }
}

/// Where the parts of a job's scratch lie (ScratchFloats).
struct PrefillScratch {
  PrefillScratch(float* scratch, int queries, int head_dim) {
    const size_t padded_dim = (head_dim + 31) / 32 * 32;
    packed = scratch;
    sums = packed + queries * padded_dim;
    running = reinterpret_cast<Running*>(sums + queries * padded_dim);
    keys = reinterpret_cast<std::byte*>(sums + queries * padded_dim + queries * 2);
    scores = sums + queries * padded_dim + queries * 2 + (kChunk + 16) * padded_dim;
  }
  float* packed;     ///< queries
  float* sums;       ///< [queries, padded head_dim]
  Running* running;  ///< [queries]
  std::byte* keys;   ///< one packed chunk
  float* scores;     ///< [kMaxQueries, kScoreStride]
};

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
  using V = typename Values::Simd;
  const int dim = job.head_dim, queries = job.count * job.group_size;
  const int rows = dim / Keys::kChannelsPerRow;
  const int sums_stride = AccumulatorFloats<Values>(dim);
  const float scale = job.scale * kLog2E;
  const PrefillScratch scratch(job.scratch, queries, dim);
  PackQueryRows<Keys>(job.q, job.q_row_bytes, job.group_size, queries, dim, scratch.packed);
  for (int i = 0; i < queries; ++i) scratch.running[i] = Running();
  __builtin_memset(scratch.sums, 0, sizeof(float) * queries * sums_stride);

  const int num_keys = job.first + job.count;  // the last query's own key included
  const std::byte* value_rows[kChunk];
  NoFetcher no_fetcher;
  for (int begin = 0; begin < num_keys; begin += kChunk) {
    const int count = Smaller(kChunk, num_keys - begin);
    PackKeys<Keys>(job.k, job.kv_row_bytes, rows, begin, count, scratch.keys);
    for (int t = 0; t < count; ++t) value_rows[t] = job.v + (begin + t) * job.kv_row_bytes;
    for (int i = 0; i < queries;) {
      const int size = NextSubBlock(queries - i);
      // Keys of this chunk that query row r may see: up to its own position.
      const auto visible = [&](int r) {
        return Larger(0, Smaller(count, job.first + r / job.group_size + 1 - begin));
      };
      const int width = visible(i + size - 1);
      if (width > 0) {
        float shrink[kMaxQueries];
        ScorePackedKeys<Keys>(size, scratch.packed + static_cast<size_t>(i) * dim, rows,
                              scratch.keys, width, scale, scratch.scores);
        for (int j = 0; j < size; ++j) {
          shrink[j] = SoftmaxChunk<V>(scratch.scores + j * kScoreStride, visible(i + j), width,
                                      &scratch.running[i + j]);
        }
        AccumulateSubBlock<Values>(size, scratch.scores, shrink, value_rows, &no_fetcher, width, 0,
                                   dim, scratch.sums + static_cast<size_t>(i) * sums_stride,
                                   sums_stride);
      }
      i += size;
    }
  }
  for (int i = 0; i < queries; ++i) {
    StoreRow<Values>(job, i, scratch.sums + static_cast<size_t>(i) * sums_stride,
                     scratch.running[i]);
  }
}

template <class Keys>
void WindowScores(const WindowScoresJob& job) {
  using V = typename Keys::Simd;
  const int dim = job.head_dim, queries = job.window * job.group_size;
  const int rows = dim / Keys::kChannelsPerRow;
  const PrefillScratch scratch(job.scratch, queries, dim);
  PackQueryRows<Keys>(job.q, job.q_row_bytes, job.group_size, queries, dim, scratch.packed);
  for (int begin = job.begin; begin < job.end; begin += kChunk) {
    const int count = Smaller(kChunk, job.end - begin);
    PackKeys<Keys>(job.k, job.kv_row_bytes, rows, begin, count, scratch.keys);
    float sums[kChunk + V::kLanes] = {};
    for (int i = 0; i < queries;) {
      const int size = NextSubBlock(queries - i);
      ScorePackedKeys<Keys>(size, scratch.packed + static_cast<size_t>(i) * dim, rows, scratch.keys,
                            count, job.scale * kLog2E, scratch.scores);
      for (int j = 0; j < size; ++j) {
        const int token = (i + j) / job.group_size, head = (i + j) % job.group_size;
        const auto lse = V::Set(job.lse[token * job.lse_stride + head] * kLog2E);
        for (int t = 0; t < count; t += V::kLanes) {
          const auto weight = Exp2<V>(V::Sub(V::Load(scratch.scores + j * kScoreStride + t), lse));
          V::Store(sums + t, V::Add(V::Load(sums + t), weight));
        }
      }
      i += size;
    }
    for (int t = 0; t < count; ++t) job.scores[begin - job.begin + t] = sums[t] / queries;
  }
}

}  // namespace
}  // namespace ziggurat::cpu

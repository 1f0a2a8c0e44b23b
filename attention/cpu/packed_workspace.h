// Queries, keys and values of a contiguous workspace, packed for the micro kernels, and how they
// are multiplied.
#pragma once

#include <type_traits>

#include "attention/cpu/score_tiles.h"
#include "attention/cpu/softmax_chunk.h"
#include "attention/cpu/value_tiles.h"

namespace ziggurat::cpu {
namespace {

// Packed once, keys and values meet many queries: what has to be widened to be multiplied is
// widened then.

/// Keys of a chunk that a query may see. Empty: begin >= end.
struct KeyInterval {
  int begin;
  int end;
};

template <class Keys>
constexpr bool kIsUnfolded =
    std::is_same_v<typename Keys::Many, UnfoldedBf16Keys<typename Keys::Simd>>;

/// How `Keys`, and `Values`, of a workspace are multiplied once they are packed.
template <class Keys>
using PackedKeys =
    std::conditional_t<std::is_same_v<typename Keys::Many, WidenedBf16Keys<typename Keys::Simd>>,
                       UnfoldedBf16Keys<typename Keys::Simd>, Keys>;
template <class Values>
using PackedValues = std::conditional_t<std::is_same_v<Values, Bf16Values<typename Values::Simd>>,
                                        UnfoldedBf16Values<typename Values::Simd>, Values>;

/// Keys of a tile: as many vectors as the queries that meet them at once have accumulators for.
template <class V>
constexpr int kTileKeys = V::kAccumulators / QueriesAtOnce<V>() * V::kLanes;

/// Writes a row of cells, one of each of kLanes keys, into a tile.
template <class Keys>
inline void StoreCells(typename Keys::Simd::Bits cells, int row, float* tile) {
  using V = typename Keys::Simd;
  if constexpr (kIsUnfolded<Keys>) {
    V::Store(tile + (2 * row) * kTileKeys<V>, V::Low(cells));
    V::Store(tile + (2 * row + 1) * kTileKeys<V>, V::High(cells));
  } else {
    V::Store(tile + row * kTileKeys<V>, V::AsFloat(cells));
  }
}

/// Packs the keys at `k`, of which there are `count`, into one vector of each row of a tile; lanes
/// past the last key are zero.
template <class Keys>
inline void PackLanes(const std::byte* k, size_t row_bytes, int cells, int count, float* tile) {
  using V = typename Keys::Simd;
  int c = 0;
  if (count >= V::kLanes) {
    for (; c + V::kLanes <= cells; c += V::kLanes) {
      typename V::Bits square[V::kLanes];
      for (int t = 0; t < V::kLanes; ++t) square[t] = V::LoadBits(k + t * row_bytes + c * 4);
      V::Transpose(square);
      for (int i = 0; i < V::kLanes; ++i) StoreCells<Keys>(square[i], c + i, tile);
    }
  }
  for (; c < cells; ++c) {
    uint32_t row[V::kLanes] = {};
    for (int t = 0; t < Smaller(V::kLanes, count); ++t) {
      __builtin_memcpy(&row[t], k + t * row_bytes + c * 4, 4);
    }
    StoreCells<Keys>(V::LoadBits(row), c, tile);
  }
}

/// Packs `count` keys into tiles of [rows][kTileKeys] cells; those past the last key are zero.
template <class Keys>
inline void PackKeys(const std::byte* k, size_t row_bytes, int rows, int count, float* packed) {
  using V = typename Keys::Simd;
  constexpr int kTile = kTileKeys<V>;
  const int cells = kIsUnfolded<Keys> ? rows / 2 : rows;
  for (int t = 0; t < count; t += kTile) {
    float* const tile = packed + static_cast<size_t>(t) * rows;
    for (int lane = 0; lane < kTile; lane += V::kLanes) {
      PackLanes<Keys>(k + (t + lane) * row_bytes, row_bytes, cells, count - t - lane, tile + lane);
    }
  }
}

/// Where the values of a chunk lie: those of the workspace at `v`, or widened ones in `scratch`,
/// [count][PaddedDim].
template <class Values>
inline void PackValues(const std::byte* v, size_t row_bytes, int head_dim, int count,
                       float* scratch, const std::byte** rows) {
  using V = typename Values::Simd;
  for (int t = 0; t < count; ++t) {
    const std::byte* row = v + t * row_bytes;
    if constexpr (std::is_same_v<Values, UnfoldedBf16Values<V>>) {
      float* const wide = scratch + t * PaddedDim(head_dim);
      ForEachVector<V>(head_dim, [&](size_t c, int lanes) {
        V::Store(wide + c,
                 LoadUpTo<V, Bf16Element>(reinterpret_cast<const uint16_t*>(row) + c, lanes));
      });
      row = reinterpret_cast<const std::byte*>(wide);
    }
    rows[t] = row;
  }
}

/// The values of neighbouring tokens as products of pairs take them, [pairs][accumulators of a
/// row]: made once for all queries.
///   count  of the tokens; the last one of an odd number stands beside itself
template <class Values>
inline void PairValues(const ValueRows& values, int count, int head_dim, float* paired) {
  using V = typename Values::Simd;
  static_assert(Values::kTokens == 2 && Values::kVectors == 2);
  for (int t = 0; t < count; t += 2) {
    for (int c = 0; c < head_dim; c += Values::kChannels, paired += Values::kChannels) {
      const int cells = Smaller(V::kLanes, (head_dim - c) / 2);
      const auto load = [cells](const std::byte* p) {
        return cells < V::kLanes ? V::LoadBits(p, cells) : V::LoadBits(p);
      };
      typename Values::Value of_pair[2];
      Values::Read(load, values, t, count, c / Values::kChannels, of_pair);
      V::Store(paired, V::AsFloat(of_pair[0]));
      V::Store(paired + V::kLanes, V::AsFloat(of_pair[1]));
    }
  }
}

/// For NQ queries and `Vectors` accumulators of each, as AccumulateUnits, over whole pairs; a loop
/// of its own, since that one finds each row by a pointer, which costs 3 to 7 % here.
///   weights  packed by Values::PackWeights
///   paired   of the first accumulator; `stride` floats from a pair to the next
template <class Values, int NQ, int Vectors>
inline void AccumulatePaired(const float* weights, const float* shrink, const float* paired,
                             size_t stride, int pairs, float* sums, int sums_stride) {
  using V = typename Values::Simd;
  typename V::Float sum[NQ][Vectors];
#pragma GCC unroll 4
  for (int i = 0; i < NQ; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      sum[i][v] = V::Mul(V::Load(sums + i * sums_stride + v * V::kLanes), V::Set(shrink[i]));
    }
  }
  for (int pair = 0; pair < pairs; ++pair, paired += stride) {
    typename Values::Value value[Vectors];
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      value[v] = V::LoadBits(reinterpret_cast<const std::byte*>(paired + v * V::kLanes));
    }
#pragma GCC unroll 4
    for (int i = 0; i < NQ; ++i) {
      const auto weight = Values::WeightOf(weights + i * kScoreStride, 2 * pair);
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) sum[i][v] = Values::Add(sum[i][v], value[v], weight);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < NQ; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      V::Store(sums + i * sums_stride + v * V::kLanes, sum[i][v]);
    }
  }
}

/// All accumulators, for a sub-block of queries. Spoils the weights.
template <class Values>
inline void AccumulatePairedSubBlock(int queries, float* weights, const float* shrink,
                                     const float* paired, int pairs, int head_dim, float* sums,
                                     int sums_stride) {
  const int floats = AccumulatorFloats<Values>(head_dim);
  constexpr int kLanes = Values::Simd::kLanes;
  for (int i = 0; i < queries; ++i) Values::PackWeights(weights + i * kScoreStride, 2 * pairs);
  ForSubBlock(queries, [&]<int NQ>() {
    constexpr int kAtOnce = Smaller(NQ, 4);
    for (int i = 0; i < NQ; i += kAtOnce) {
      const auto accumulate = [&]<int Vectors>(int first) {
        AccumulatePaired<Values, kAtOnce, Vectors>(weights + i * kScoreStride, shrink + i,
                                                   paired + first, floats, pairs,
                                                   sums + i * sums_stride + first, sums_stride);
      };
      int first = 0;
      for (; first + 4 * kLanes <= floats; first += 4 * kLanes) {
        accumulate.template operator()<4>(first);
      }
      if (first < floats) accumulate.template operator()<2>(first);
    }
  });
}

/// Widens query rows of the workspace to f32 and packs them: row i is token i / group_size, query
/// head i % group_size of the group.
template <class Keys>
inline void PackQueryRows(const std::byte* q, size_t q_row_bytes, int group_size, int count,
                          int head_dim, float* packed) {
  using V = typename Keys::Simd;
  using Element = typename Keys::Element;
  float channels[kMaxHeadDim + 16];
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

/// `scale` times the products of `size` queries with the first `width` keys of a packed chunk, and
/// some behind them.
template <class Keys>
inline void ScorePackedKeys(int size, const float* query, int rows, const float* packed_keys,
                            int width, float scale, float* scores) {
  using V = typename Keys::Simd;
  constexpr int kTile = kTileKeys<V>;
  for (int t = 0; t < width; t += kTile) {
    const float* tile = packed_keys + static_cast<size_t>(t) * rows;
    ScoreSubBlock<Keys, kTile / V::kLanes>(
        size, query, rows, reinterpret_cast<const std::byte*>(tile), kTile * 4, scale, scores + t);
  }
}

/// A workspace is how prefill_kernel.h and column_sums_kernel.h multiply; this one with the micro
/// kernels for vectors, TileWorkspace (amx_workspace.h) on tiles. Queries are taken in sub-blocks,
/// of which only the last may have fewer rows than NextSubBlock's largest that is left; it may
/// read, and write, up to PaddedRows of queries and sums, and kMostQueries rows of scores, of which
/// those behind the last query are of no use.
///   Values  says how the sums are laid out, too
template <class Keys, class Values_>
struct VectorWorkspace {
  using Values = Values_;
  using Element = typename Keys::Element;
  using V = typename Keys::Simd;
  static constexpr int kMostQueries = kMaxQueries;  ///< of a sub-block

  /// What the registers need while a job runs: nothing.
  struct Registers {
    Registers() {}
  };

  static int NextSubBlock(int queries_left) { return cpu::NextSubBlock(queries_left); }

  // Floats of a packed query, and of a packed key.
  static constexpr size_t QueryFloats(int head_dim) { return head_dim; }
  static constexpr size_t KeyFloats(int head_dim) { return head_dim / Keys::kChannelsPerRow; }

  /// Query i is that of token i / group_size, query head i % group_size of the group.
  static void PackQueries(const std::byte* q, size_t q_row_bytes, int group_size, int count,
                          int head_dim, float* packed) {
    PackQueryRows<Keys>(q, q_row_bytes, group_size, count, head_dim, packed);
  }
  static void PackKeys(const std::byte* k, size_t row_bytes, int head_dim, int count,
                       float* packed) {
    cpu::PackKeys<Keys>(k, row_bytes, head_dim / Keys::kChannelsPerRow, count, packed);
  }
  /// Products of `size` queries, kScoreStride apart, with the first `width` keys of a packed chunk
  /// and some behind them.
  static void Score(int size, const float* query, int head_dim, const float* keys, int width,
                    float* scores) {
    ScorePackedKeys<Keys>(size, query, head_dim / Keys::kChannelsPerRow, keys, width, /*scale=*/1,
                          scores);
  }
  /// The weights of these queries among the first `width` keys, kScoreStride apart, as Accumulate
  /// takes them.
  ///   scale    of the products, in units of log2
  ///   visible  [size]: of a key that is not a query's the weight is 0
  ///   shrink   [size]: as SoftmaxInterval returns it
  static void Weigh(int size, const float* query, int head_dim, const float* keys, int width,
                    float scale, const KeyInterval* visible, Running* running, float* shrink,
                    float* weights) {
    ScorePackedKeys<Keys>(size, query, head_dim / Keys::kChannelsPerRow, keys, width, scale,
                          weights);
    bool all = true;
    for (int j = 0; j < size; ++j) all = all && visible[j].begin == 0 && visible[j].end == width;
    if (all) return SoftmaxRows<V>(size, weights, width, running, shrink, [] {});
    for (int j = 0; j < size; ++j) {
      shrink[j] = SoftmaxInterval<V>(weights + j * kScoreStride, visible[j].begin, visible[j].end,
                                     width, &running[j]);
    }
  }

  /// The values of a chunk.
  class ChunkValues {
   public:
    ChunkValues(const std::byte* v, size_t row_bytes, int head_dim, int count, float* scratch) {
      PackValues<Values>(v, row_bytes, head_dim, count, scratch, rows_);
      if constexpr (Values::kTokens == 2) {
        PairValues<Values>({rows_}, count, head_dim, scratch);
        paired_ = scratch;
      }
    }
    /// As AccumulateSubBlock, over the first `width` values.
    void Accumulate(int size, float* weights, const float* shrink, int width, int head_dim,
                    float* sums, int sums_stride) const {
      if constexpr (Values::kTokens == 2) {
        // What stands beside the last one of an odd number may not be seen.
        if (width % 2 == 0) {
          return AccumulatePairedSubBlock<Values>(size, weights, shrink, paired_, width / 2,
                                                  head_dim, sums, sums_stride);
        }
      }
      AccumulateSubBlock<Values, /*kFetches=*/false>(size, weights, shrink, {rows_}, width,
                                                     head_dim, sums, sums_stride);
    }

   private:
    const std::byte* rows_[kChunk];
    const float* paired_ = nullptr;  ///< of values that are multiplied in pairs
  };
};

}  // namespace
}  // namespace ziggurat::cpu

// Scores of a tile of keys. Decode, prefill and the statistics are built of these.
//
// Keys come in *rows* of 4-byte cells: row r holds channels r*x .. r*x+x-1 (x = 1 for f32, 2 for
// bf16, 4 to 16 for codes) of neighbouring slots side by side, so that one lane is one slot and the
// scores of a whole vector of slots are a sum over rows, without any horizontal sum. Blocks store
// keys in this layout, and prefill packs its keys into it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "attention/cpu/fetch.h"
#include "attention/cpu/kernels.h"
#include "attention/cpu/vector_math.h"

namespace ziggurat::cpu {
namespace {

// ---- How a row of cells is multiplied by a query's cells of the same channels -------------------

// `Many` is how keys are best read for several queries at once, `One` for a single query.

/// Row of f32 keys; a query has one float per row.
template <class V>
struct F32Keys {
  using Simd = V;
  using Element = F32Element;
  using One = F32Keys;
  using Many = F32Keys;
  static constexpr int kChannelsPerRow = 1;
  static constexpr int kCells = 1;  ///< 4-byte query cells per row
  using Row = typename V::Float;

  static Row Load(const std::byte* p) { return V::AsFloat(V::LoadBits(p)); }
  static Row Load(const std::byte* p, int slots) { return V::AsFloat(V::LoadBits(p, slots)); }
  static typename V::Float Dot(typename V::Float sum, Row row, const float* query) {
    return V::Fma(row, V::Set(query[0]), sum);
  }
  static void PackRow(const float* channels, float* cells) { cells[0] = channels[0]; }
};

/// Rows of f32 that were made of bf16 when they were packed, two of a row of cells.
template <class V>
struct UnfoldedBf16Keys : F32Keys<V> {
  using Element = Bf16Element;
  using One = UnfoldedBf16Keys;
  using Many = UnfoldedBf16Keys;
};

/// Row of bf16 keys without BF16 instructions: both halves widened, two FMAs.
template <class V>
struct WidenedBf16Keys {
  using Simd = V;
  using Element = Bf16Element;
  using One = WidenedBf16Keys;
  using Many = WidenedBf16Keys;
  static constexpr int kChannelsPerRow = 2;
  static constexpr int kCells = 2;
  struct Row {
    typename V::Float low, high;
  };

  static Row Widen(typename V::Bits bits) { return {V::Low(bits), V::High(bits)}; }
  static Row Load(const std::byte* p) { return Widen(V::LoadBits(p)); }
  static Row Load(const std::byte* p, int slots) { return Widen(V::LoadBits(p, slots)); }
  static typename V::Float Dot(typename V::Float sum, Row row, const float* query) {
    return V::Fma(row.high, V::Set(query[1]), V::Fma(row.low, V::Set(query[0]), sum));
  }
  static void PackRow(const float* channels, float* cells) {
    cells[0] = channels[0];
    cells[1] = channels[1];
  }
};

/// The same, widened before: the low halves of so many vectors, then the high halves of all.
template <class V, int Vectors>
struct HalvesOfBf16Keys : WidenedBf16Keys<V> {
  using Row = typename WidenedBf16Keys<V>::Row;

  static Row Load(const std::byte* p) {
    return {V::AsFloat(V::LoadBits(p)),
            V::AsFloat(V::LoadBits(p + Vectors * V::kLanes * sizeof(float)))};
  }
};

/// How a tile of keys is read.
enum class TileRead {
  kWhole,    ///< whole vectors
  kPartial,  ///< fewer than kLanes slots; lanes behind them are not read
};

/// Calls add_row(r, u) for all rows, r % Sums being u but at the end: rows that follow each other
/// are added to different sums, so that none waits for the one before.
template <int Sums, class AddRow>
__attribute__((always_inline)) inline void ForEachRow(int rows, AddRow add_row) {
  int r = 0;
  for (; r + Sums <= rows; r += Sums) {
#pragma GCC unroll 4
    for (int u = 0; u < Sums; ++u) add_row(r + u, u);
  }
  for (; r < rows; ++r) add_row(r, 0);
}

/// Queries, of a sub-block, that meet keys and values at once: with two vectors of those. Of
/// 16 registers the sums of eight queries leave room for one vector, and a load for every product.
template <class V>
constexpr int QueriesAtOnce() {
  return V::kRegisters / 4;
}

/// Scores of NQ queries and `Vectors` vectors of keys while they are summed up.
template <class V, int NQ, int Vectors>
struct ScoreSums {
  /// Enough independent sums to hide the latency of a multiply-add.
  static constexpr int kSums = Smaller(4, Larger(1, V::kAccumulators / (NQ * Vectors)));
  typename V::Float of[NQ][kSums][Vectors];

  __attribute__((always_inline)) ScoreSums() {
#pragma GCC unroll 8
    for (int i = 0; i < NQ; ++i) {
#pragma GCC unroll 4
      for (int u = 0; u < kSums; ++u) {
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) of[i][u][v] = V::Zero();
      }
    }
  }
  /// Times `scale`, vector v to place_of(v) in every row of scores.
  template <class PlaceOf>
  __attribute__((always_inline)) void Store(float scale, float* scores, PlaceOf place_of) {
#pragma GCC unroll 8
    for (int i = 0; i < NQ; ++i) {
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) {
#pragma GCC unroll 4
        for (int u = 1; u < kSums; ++u) of[i][0][v] = V::Add(of[i][0][v], of[i][u][v]);
        V::Store(scores + i * kScoreStride + place_of(v), V::Mul(of[i][0][v], V::Set(scale)));
      }
    }
  }
};

/// scores[i][lane] = scale * (query i . key of that lane), for NQ queries and `Vectors` vectors of
/// keys, one behind the other in every row.
///   query       [rows][Of][kCells], of which the first NQ of each row are taken
///   keys        row r at keys + r * row_bytes
///   scores      [NQ] rows, kScoreStride apart
///   slots       kPartial: of the tile
template <class Keys, int NQ, TileRead kRead, int Vectors = 1, int Of = NQ>
inline void ScoreTile(const float* query, int rows, const std::byte* keys, size_t row_bytes,
                      float scale, float* scores, int slots = 0) {
  using V = typename Keys::Simd;
  constexpr int kVectorBytes = V::kLanes * 4;
  ScoreSums<V, NQ, Vectors> sums;
  const auto add_row = [&](int r, int u) __attribute__((always_inline)) {
    const std::byte* p = keys + r * row_bytes;
    typename Keys::Row row[Vectors];
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) {
      row[v] =
          kRead == TileRead::kPartial ? Keys::Load(p, slots) : Keys::Load(p + v * kVectorBytes);
    }
#pragma GCC unroll 8
    for (int i = 0; i < NQ; ++i) {
      const float* cells = query + (r * Of + i) * Keys::kCells;
#pragma GCC unroll 2
      for (int v = 0; v < Vectors; ++v) {
        sums.of[i][u][v] = Keys::Dot(sums.of[i][u][v], row[v], cells);
      }
    }
  };
  ForEachRow<sums.kSums>(rows, add_row);
  sums.Store(scale, scores, [](int v) { return v * V::kLanes; });
}

/// The largest power of two that is no more than n.
constexpr int FloorOfPowers(int n) {
  int power = 1;
  while (2 * power <= n) power *= 2;
  return power;
}

/// Queries are taken in sub-blocks of 8, 4, 3, 2 and 1: the size of the next one.
constexpr int NextSubBlock(int queries_left) {
  return queries_left >= 8 ? 8 : queries_left >= 4 ? 4 : queries_left;
}

/// Calls run.operator()<NQ> for a sub-block of `queries` in {1, 2, 3, 4, 8}.
template <class Run>
inline void ForSubBlock(int queries, Run run) {
  switch (queries) {
    case 8:
      return run.template operator()<8>();
    case 4:
      return run.template operator()<4>();
    case 3:
      return run.template operator()<3>();
    case 2:
      return run.template operator()<2>();
    default:
      return run.template operator()<1>();
  }
}

/// How keys are read for so many queries.
template <class Keys, int NQ>
using KeysFor = std::conditional_t<NQ == 1, typename Keys::One, typename Keys::Many>;

/// ScoreTile for a sub-block of queries, whole vectors.
template <class Keys, int Vectors>
inline void ScoreSubBlock(int queries, const float* query, int rows, const std::byte* keys,
                          size_t row_bytes, float scale, float* scores) {
  ForSubBlock(queries, [&]<int NQ>() {
    using How = KeysFor<Keys, NQ>;
    constexpr int kAtOnce = Smaller(NQ, QueriesAtOnce<typename Keys::Simd>());
    static_assert(NQ % kAtOnce == 0);
#pragma GCC unroll 2
    for (int i = 0; i < NQ; i += kAtOnce) {
      ScoreTile<How, kAtOnce, TileRead::kWhole, Vectors, NQ>(
          query + i * How::kCells, rows, keys, row_bytes, scale, scores + i * kScoreStride);
    }
  });
}

/// The same with fewer than kLanes slots; rare, so one query at a time.
template <class Keys>
inline void ScorePartialTile(int queries, const float* query, int rows, const std::byte* keys,
                             size_t row_bytes, float scale, float* scores, int slots) {
  using Many = typename Keys::Many;
  using One = typename Keys::One;
  if (queries == 1) {
    return ScoreTile<One, 1, TileRead::kPartial>(query, rows, keys, row_bytes, scale, scores,
                                                 slots);
  }
  float one[kMaxHeadDim];  // rows * kCells <= head_dim
  for (int i = 0; i < queries; ++i) {
    for (int r = 0; r < rows; ++r) {
      __builtin_memcpy(&one[r * Many::kCells], &query[(r * queries + i) * Many::kCells],
                       sizeof(float) * Many::kCells);
    }
    ScoreTile<Many, 1, TileRead::kPartial>(one, rows, keys, row_bytes, scale,
                                           scores + i * kScoreStride, slots);
  }
}

/// A tile of whole vectors in a block.
struct BlockTile {
  const std::byte* keys;
  const std::byte* ahead;  ///< as many bytes that will be needed soon, fetched meanwhile
  int slot;                ///< the first one's place in a row of scores
};

/// ScoreTile, of the first NQ of `Of` queries, for several tiles, of which row by row is read: each
/// is one run of addresses. In one of `Passes` passes over the tiles, number `Pass`, which each
/// fetch ahead for their share of them.
template <class Keys, ReadOrder kOrder, int Pass, int Passes, int NQ, int Tiles, int Of>
inline void ScoreBlockTiles(const float* query, int rows, const BlockTile* tiles, size_t row_bytes,
                            float scale, float* scores) {
  using V = typename Keys::Simd;
  // What the inner loop passes again and again GCC 12 keeps in registers, if need be on the stack:
  // the cells of all queries, or the rows of all tiles. Of 16 registers the fewer.
  constexpr bool kRowsOutside = V::kRegisters == 16 && Tiles > 1 && Tiles < NQ;
  ScoreSums<V, NQ, Tiles> sums;
  const auto load = [&](int r, int v) __attribute__((always_inline)) {
    if (v % Smaller(Passes, Tiles) == Pass) {
      Prefetch<kOrder>(tiles[v].ahead + r * (V::kLanes * 4));
    }
    return Keys::Load(tiles[v].keys + r * row_bytes);
  };
  const auto add = [&](int r, int u, int i, int v, typename Keys::Row row)
      __attribute__((always_inline)) {
    sums.of[i][u][v] = Keys::Dot(sums.of[i][u][v], row, query + (r * Of + i) * Keys::kCells);
  };
  const auto add_row = [&](int r, int u) __attribute__((always_inline)) {
    if constexpr (kRowsOutside) {
      typename Keys::Row row[Tiles];
#pragma GCC unroll 8
      for (int v = 0; v < Tiles; ++v) row[v] = load(r, v);
#pragma GCC unroll 8
      for (int i = 0; i < NQ; ++i) {
#pragma GCC unroll 8
        for (int v = 0; v < Tiles; ++v) add(r, u, i, v, row[v]);
      }
    } else {
#pragma GCC unroll 8
      for (int v = 0; v < Tiles; ++v) {
        const typename Keys::Row row = load(r, v);
#pragma GCC unroll 8
        for (int i = 0; i < NQ; ++i) add(r, u, i, v, row);
      }
    }
  };
  ForEachRow<sums.kSums>(rows, add_row);
  sums.Store(scale, scores, [tiles](int v) { return tiles[v].slot; });
}

/// The same for a sub-block of queries and any number of tiles.
template <class Keys, ReadOrder kOrder>
inline void ScoreBlocks(int queries, const float* query, int rows, const BlockTile* tiles,
                        int count, size_t row_bytes, float scale, float* scores) {
  ForSubBlock(queries, [&]<int NQ>() {
    using How = KeysFor<Keys, NQ>;
    using V = typename How::Simd;
    // Cells of codes are too many to be kept for several tiles, and a row is best unpacked once.
    constexpr bool kManyCells = NQ * How::kCells > 16;
    constexpr int kAtOnce = kManyCells ? NQ : Smaller(NQ, QueriesAtOnce<V>());
    constexpr int kMost = kManyCells ? 1 : FloorOfPowers(Smaller(8, V::kAccumulators / kAtOnce));
    constexpr int kPasses = NQ / kAtOnce;
    static_assert(NQ % kAtOnce == 0 && kPasses <= 2);
    const auto score = [&]<int kPass>() {
      constexpr int i = kPass * kAtOnce;
      const float* const cells = query + i * How::kCells;
      float* const to = scores + i * kScoreStride;
      int v = 0;
      for (; v + kMost <= count; v += kMost) {
        ScoreBlockTiles<How, kOrder, kPass, kPasses, kAtOnce, kMost, NQ>(cells, rows, tiles + v,
                                                                         row_bytes, scale, to);
      }
      for (; v < count; ++v) {
        ScoreBlockTiles<How, kOrder, kPass, kPasses, kAtOnce, 1, NQ>(cells, rows, tiles + v,
                                                                     row_bytes, scale, to);
      }
    };
    score.template operator()<0>();
    if constexpr (kPasses == 2) score.template operator()<1>();
  });
}

/// One sub-block of queries, [rows][size][kCells].
template <class Keys>
inline void PackQuery(const float* channels, int rows, int size, float* packed) {
  for (int r = 0; r < rows; ++r) {
    Keys::PackRow(channels + r * Keys::kChannelsPerRow, packed + r * size * Keys::kCells);
  }
}

/// Packs `count` queries for ScoreSubBlock, sub-block after sub-block; the one that starts with
/// query i begins at float i * head_dim.
///   row_of(i)   pointer to the head_dim channels of query i, as f32
template <class Keys, class RowOf>
inline void PackQueries(int count, int head_dim, RowOf row_of, float* packed) {
  using Many = typename Keys::Many;
  using One = typename Keys::One;
  const int rows = head_dim / Keys::kChannelsPerRow;
  for (int i = 0; i < count;) {
    const int size = NextSubBlock(count - i);
    float* to = packed + static_cast<size_t>(i) * head_dim;
    if (size == 1) PackQuery<One>(row_of(i), rows, 1, to);
    for (int j = 0; size > 1 && j < size; ++j) {
      PackQuery<Many>(row_of(i + j), rows, size, to + j * Many::kCells);
    }
    i += size;
  }
}

}  // namespace
}  // namespace ziggurat::cpu

// Scores of a tile of keys. Decode, prefill and the statistics are built of these.
//
// Keys come in *rows* of 4-byte cells: row r holds channels r*x .. r*x+x-1 (x = 1 for f32, 2 for
// bf16, 4 to 16 for codes) of neighbouring slots side by side, so that one lane is one slot and the
// scores of a whole vector of slots are a sum over rows, without any horizontal sum. Blocks store
// keys in this layout, and prefill packs its keys into it.
#pragma once

#include <xmmintrin.h>

#include <cstddef>
#include <cstdint>

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

/// How a tile of keys is read.
enum class TileRead {
  kFetching,  ///< whole vectors; meanwhile as much of what will be needed soon is fetched into L2
  kWhole,     ///< whole vectors
  kPartial,   ///< fewer than kLanes slots; lanes behind them are not read
};

/// scores[i][lane] = scale * (query i . key of that lane), for NQ queries and one vector of keys.
///   query       [rows][NQ][kCells]
///   keys        row r at keys + r * row_bytes
///   ahead       kFetching: [rows * kLanes * 4] bytes to fetch
///   scores      [NQ] rows, kScoreStride apart
///   slots       kPartial: of the tile
template <class Keys, int NQ, TileRead kRead>
inline void ScoreTile(const float* query, int rows, const std::byte* keys, size_t row_bytes,
                      const std::byte* ahead, float scale, float* scores, int slots = 0) {
  using V = typename Keys::Simd;
  // Enough independent sums to hide the latency of a multiply-add.
  constexpr int kSums = Smaller(4, Larger(1, V::kAccumulators / NQ));
  typename V::Float sum[NQ][kSums];
#pragma GCC unroll 8
  for (int i = 0; i < NQ; ++i) {
#pragma GCC unroll 4
    for (int u = 0; u < kSums; ++u) sum[i][u] = V::Zero();
  }
  int r = 0;
  for (; r + kSums <= rows; r += kSums) {
#pragma GCC unroll 4
    for (int u = 0; u < kSums; ++u) {
      const std::byte* p = keys + (r + u) * row_bytes;
      typename Keys::Row row;
      if constexpr (kRead == TileRead::kPartial) {
        row = Keys::Load(p, slots);
      } else {
        row = Keys::Load(p);
      }
      if constexpr (kRead == TileRead::kFetching) {
        _mm_prefetch(reinterpret_cast<const char*>(ahead + (r + u) * (V::kLanes * 4)), _MM_HINT_T1);
      }
#pragma GCC unroll 8
      for (int i = 0; i < NQ; ++i) {
        sum[i][u] = Keys::Dot(sum[i][u], row, query + ((r + u) * NQ + i) * Keys::kCells);
      }
    }
  }
  for (; r < rows; ++r) {
    const std::byte* p = keys + r * row_bytes;
    typename Keys::Row row;
    if constexpr (kRead == TileRead::kPartial) {
      row = Keys::Load(p, slots);
    } else {
      row = Keys::Load(p);
    }
#pragma GCC unroll 8
    for (int i = 0; i < NQ; ++i) {
      sum[i][0] = Keys::Dot(sum[i][0], row, query + (r * NQ + i) * Keys::kCells);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < NQ; ++i) {
#pragma GCC unroll 4
    for (int u = 1; u < kSums; ++u) sum[i][0] = V::Add(sum[i][0], sum[i][u]);
    V::Store(scores + i * kScoreStride, V::Mul(sum[i][0], V::Set(scale)));
  }
}

/// Queries are taken in sub-blocks of 8, 4, 3, 2 and 1: the size of the next one.
constexpr int NextSubBlock(int queries_left) {
  return queries_left >= 8 ? 8 : queries_left >= 4 ? 4 : queries_left;
}

/// ScoreTile for a sub-block of `queries` in {1, 2, 3, 4, 8}, whole vectors.
template <class Keys, TileRead kRead>
inline void ScoreSubBlock(int queries, const float* query, int rows, const std::byte* keys,
                          size_t row_bytes, const std::byte* ahead, float scale, float* scores) {
  using Many = typename Keys::Many;
  using One = typename Keys::One;
  switch (queries) {
    case 8:
      return ScoreTile<Many, 8, kRead>(query, rows, keys, row_bytes, ahead, scale, scores);
    case 4:
      return ScoreTile<Many, 4, kRead>(query, rows, keys, row_bytes, ahead, scale, scores);
    case 3:
      return ScoreTile<Many, 3, kRead>(query, rows, keys, row_bytes, ahead, scale, scores);
    case 2:
      return ScoreTile<Many, 2, kRead>(query, rows, keys, row_bytes, ahead, scale, scores);
    default:
      return ScoreTile<One, 1, kRead>(query, rows, keys, row_bytes, ahead, scale, scores);
  }
}

/// The same with fewer than kLanes slots; rare, so one query at a time.
template <class Keys>
inline void ScorePartialTile(int queries, const float* query, int rows, const std::byte* keys,
                             size_t row_bytes, float scale, float* scores, int slots) {
  using Many = typename Keys::Many;
  using One = typename Keys::One;
  if (queries == 1) {
    return ScoreTile<One, 1, TileRead::kPartial>(query, rows, keys, row_bytes, nullptr, scale,
                                                 scores, slots);
  }
  float one[kMaxHeadDim];  // rows * kCells <= head_dim
  for (int i = 0; i < queries; ++i) {
    for (int r = 0; r < rows; ++r) {
      __builtin_memcpy(&one[r * Many::kCells], &query[(r * queries + i) * Many::kCells],
                       sizeof(float) * Many::kCells);
    }
    ScoreTile<Many, 1, TileRead::kPartial>(one, rows, keys, row_bytes, nullptr, scale,
                                           scores + i * kScoreStride, slots);
  }
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

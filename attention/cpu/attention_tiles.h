// The micro kernels of attention: scores of a tile of keys, online softmax of a chunk, and the sum
// of values weighted by it. Decode, prefill and the window scores are built of these.
//
// Keys come in *rows* of 4-byte cells: row r holds channels r*x .. r*x+x-1 (x = 1 for f32, 2 for
// bf16) of neighbouring slots side by side, so that one lane is one slot and the scores of a whole
// vector of slots are a sum over rows, without any horizontal sum. Blocks store keys in this
// layout; prefill packs its keys into it.
#pragma once

#include <xmmintrin.h>

#include <cstddef>
#include <cstdint>

#include "attention/cpu/kernels.h"
#include "attention/cpu/vector_math.h"

namespace ziggurat::cpu {
namespace {

// ---- Keys: how a row of cells is multiplied by a query's cells of the same channels ------------

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

/// scores[i][lane] = scale * (query i . key of that lane), for NQ queries and one vector of keys.
///   query       [rows][NQ][kCells]
///   keys        row r at keys + r * row_bytes
///   ahead       [rows * kLanes * 4] bytes that will be needed soon: fetched into L2 meanwhile
///   scores      [NQ] rows, kScoreStride apart
/// `slots` < kLanes (Partial): lanes from there on are not read.
template <class Keys, int NQ, bool Partial = false>
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
      if constexpr (Partial) {
        row = Keys::Load(p, slots);
      } else {
        row = Keys::Load(p);
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
    if constexpr (Partial) {
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

/// Queries are taken in sub-blocks of 8, 4, 2 and 1: the size of the next one.
constexpr int NextSubBlock(int queries_left) {
  return queries_left >= 8 ? 8 : queries_left >= 4 ? 4 : queries_left >= 2 ? 2 : 1;
}

/// ScoreTile for a sub-block of `queries` in {1, 2, 4, 8}.
template <class Keys>
inline void ScoreSubBlock(int queries, const float* query, int rows, const std::byte* keys,
                          size_t row_bytes, const std::byte* ahead, float scale, float* scores) {
  using Many = typename Keys::Many;
  using One = typename Keys::One;
  switch (queries) {
    case 8:
      return ScoreTile<Many, 8>(query, rows, keys, row_bytes, ahead, scale, scores);
    case 4:
      return ScoreTile<Many, 4>(query, rows, keys, row_bytes, ahead, scale, scores);
    case 2:
      return ScoreTile<Many, 2>(query, rows, keys, row_bytes, ahead, scale, scores);
    default:
      return ScoreTile<One, 1>(query, rows, keys, row_bytes, ahead, scale, scores);
  }
}

/// The same with fewer than kLanes slots; rare, so one query at a time.
template <class Keys>
inline void ScorePartialTile(int queries, const float* query, int rows, const std::byte* keys,
                             size_t row_bytes, float scale, float* scores, int slots) {
  using Many = typename Keys::Many;
  if (queries == 1) {
    return ScoreTile<typename Keys::One, 1, true>(query, rows, keys, row_bytes, keys, scale, scores,
                                                  slots);
  }
  float one[256];  // rows * kCells <= head_dim
  for (int i = 0; i < queries; ++i) {
    for (int r = 0; r < rows; ++r) {
      __builtin_memcpy(&one[r * Many::kCells], &query[(r * queries + i) * Many::kCells],
                       sizeof(float) * Many::kCells);
    }
    ScoreTile<Many, 1, true>(one, rows, keys, row_bytes, keys, scale, scores + i * kScoreStride,
                             slots);
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

// ---- Softmax -----------------------------------------------------------------------------------

/// Running maximum and sum of one query; scores are in units of log2.
struct Running {
  float highest = -__builtin_inff();
  float sum = 0;

  float Lse() const { return (highest + __builtin_log2f(sum)) * kLn2; }
};

/// Turns scores[0 .. count) into weights 2^(score - highest), and those from `count` up to `width`,
/// whatever stands there, into 0. Returns the factor by which what was accumulated before must
/// shrink.
template <class V>
inline float SoftmaxChunk(float* scores, int count, int width, Running* running) {
  constexpr float kLowest = -__builtin_inff();
  const int padded = (width + V::kLanes - 1) / V::kLanes * V::kLanes;
  for (int t = count; t < padded; ++t) scores[t] = kLowest;
  typename V::Float highest = V::Set(kLowest);
  for (int t = 0; t < padded; t += V::kLanes) highest = V::Max(highest, V::Load(scores + t));
  const float before = running->highest;
  const float chunk_highest = V::Largest(highest);
  if (!(chunk_highest <= before)) running->highest = chunk_highest;
  const typename V::Float shift = V::Set(running->highest);
  typename V::Float sum = V::Zero();
  for (int t = 0; t < padded; t += V::kLanes) {
    const typename V::Float weight = Exp2<V>(V::Sub(V::Load(scores + t), shift));
    V::Store(scores + t, weight);
    sum = V::Add(sum, weight);
  }
  const float shrink =
      before == running->highest ? 1.0f : __builtin_exp2f(before - running->highest);
  running->sum = running->sum * shrink + V::Sum(sum);
  return shrink;
}

// ---- Values ------------------------------------------------------------------------------------

/// Values are read in units of one vector of cells. Of bf16 the even and the odd channels of a unit
/// are accumulated apart and put in order at the end.
template <class V>
struct F32Values {
  using Simd = V;
  using Element = F32Element;
  static constexpr int kVectors = 1;  ///< accumulators per unit
  static constexpr int kChannels = V::kLanes;
  static void Widen(typename V::Bits bits, typename V::Float* out) { out[0] = V::AsFloat(bits); }
  /// The accumulators of one unit, times `factor`, in the order of channels.
  static void PutInOrder(const float* sums, float factor, float* out) {
    for (int i = 0; i < kChannels; ++i) out[i] = sums[i] * factor;
  }
};

template <class V>
struct Bf16Values {
  using Simd = V;
  using Element = Bf16Element;
  static constexpr int kVectors = 2;
  static constexpr int kChannels = 2 * V::kLanes;
  static void Widen(typename V::Bits bits, typename V::Float* out) {
    out[0] = V::Low(bits);
    out[1] = V::High(bits);
  }
  static void PutInOrder(const float* sums, float factor, float* out) {
    for (int i = 0; i < V::kLanes; ++i) {
      out[2 * i] = sums[i] * factor;
      out[2 * i + 1] = sums[V::kLanes + i] * factor;
    }
  }
};

/// Accumulators of one query: head_dim rounded up to whole units.
template <class Values>
constexpr int AccumulatorFloats(int head_dim) {
  return (head_dim + Values::kChannels - 1) / Values::kChannels * Values::kChannels;
}

/// out[0 .. head_dim) = the accumulators times `factor`.
template <class Values>
inline void PutInOrder(const float* sums, float factor, int head_dim, float* out) {
  int c = 0;
  for (; c + Values::kChannels <= head_dim; c += Values::kChannels) {
    Values::PutInOrder(sums + c, factor, out + c);
  }
  if (c < head_dim) {
    float unit[Values::kChannels];
    Values::PutInOrder(sums + c, factor, unit);
    for (int i = 0; c + i < head_dim; ++i) out[c + i] = unit[i];
  }
}

/// A fetcher (block_fetcher.h) that has nothing to fetch.
struct NoFetcher {
  static constexpr bool kFetches = false;
  static const std::byte* Take(size_t, const std::byte* otherwise) { return otherwise; }
};

/// For NQ queries and Units units of channels from byte `offset` of each row:
///   sums[i] = shrink[i] * sums[i] + sum over t < count of weights[i][t] * rows[t]
///   fetcher  gives out what will be needed soon: as much is fetched into L2 meanwhile as is read
///   cells < kLanes (Partial): the unit has only that many cells
template <class Values, int NQ, int Units, bool Partial, class Fetcher>
inline void AccumulateUnits(const float* weights, const float* shrink, const std::byte* const* rows,
                            Fetcher* fetcher, int count, size_t offset, int cells, float* sums,
                            int sums_stride) {
  using V = typename Values::Simd;
  constexpr int kN = Values::kVectors, kUnitBytes = V::kLanes * 4;
  typename V::Float sum[NQ][Units * kN];
#pragma GCC unroll 8
  for (int i = 0; i < NQ; ++i) {
#pragma GCC unroll 16
    for (int u = 0; u < Units * kN; ++u) {
      sum[i][u] = V::Mul(V::Load(sums + i * sums_stride + u * V::kLanes), V::Set(shrink[i]));
    }
  }
  constexpr int kBurst = 16;  // rows between two questions to the fetcher
  for (int t = 0; t < count;) {
    const std::byte* ahead = fetcher->Take(kBurst * Units * kUnitBytes, rows[t]);
    for (const int end = Smaller(t + kBurst, count); t < end; ++t) {
      typename V::Float value[Units * kN];
#pragma GCC unroll 8
      for (int u = 0; u < Units; ++u, ahead += kUnitBytes) {
        const std::byte* p = rows[t] + offset + u * kUnitBytes;
        if constexpr (Fetcher::kFetches) {
          _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T1);
        }
        if constexpr (Partial) {
          Values::Widen(V::LoadBits(p, cells), value + u * kN);
        } else {
          Values::Widen(V::LoadBits(p), value + u * kN);
        }
      }
#pragma GCC unroll 8
      for (int i = 0; i < NQ; ++i) {
        const typename V::Float weight = V::Set(weights[i * kScoreStride + t]);
#pragma GCC unroll 16
        for (int u = 0; u < Units * kN; ++u) sum[i][u] = V::Fma(weight, value[u], sum[i][u]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < NQ; ++i) {
#pragma GCC unroll 16
    for (int u = 0; u < Units * kN; ++u) {
      V::Store(sums + i * sums_stride + u * V::kLanes, sum[i][u]);
    }
  }
}

/// All channels of the head whose rows begin at `head_offset`, for NQ queries.
template <class Values, int NQ, class Fetcher>
inline void AccumulateRows(const float* weights, const float* shrink, const std::byte* const* rows,
                           Fetcher* fetcher, int count, size_t head_offset, int head_dim,
                           float* sums, int sums_stride) {
  using V = typename Values::Simd;
  constexpr int kUnits = Smaller(4, Larger(1, V::kAccumulators / (NQ * Values::kVectors)));
  const int full = head_dim / Values::kChannels;
  int u = 0;
  // The next Units units, of which the last may be Partial.
  const auto next = [&]<int Units, bool Partial>() {
    const size_t offset = static_cast<size_t>(u) * V::kLanes * 4;
    const int cells = (head_dim - full * Values::kChannels) / Values::kVectors;
    AccumulateUnits<Values, NQ, Units, Partial>(weights, shrink, rows, fetcher, count,
                                                head_offset + offset, cells,
                                                sums + u * Values::kChannels, sums_stride);
    u += Units;
  };
  if constexpr (kUnits == 4) {
    while (u + 4 <= full) next.template operator()<4, false>();
  }
  if constexpr (kUnits >= 2) {
    while (u + 2 <= full) next.template operator()<2, false>();
  }
  while (u < full) next.template operator()<1, false>();
  if (full * Values::kChannels < head_dim) next.template operator()<1, true>();
}

/// A sub-block of `queries` in {1, 2, 4, 8}.
template <class Values, class Fetcher>
inline void AccumulateSubBlock(int queries, const float* weights, const float* shrink,
                               const std::byte* const* rows, Fetcher* fetcher, int count,
                               size_t head_offset, int head_dim, float* sums, int sums_stride) {
  constexpr int kMost = Smaller(8, Values::Simd::kAccumulators / Values::kVectors);
  for (int i = 0; i < queries; i += Smaller(kMost, queries)) {
    const float* w = weights + i * kScoreStride;
    float* s = sums + static_cast<size_t>(i) * sums_stride;
    switch (Smaller(kMost, queries)) {
      case 8:
        if constexpr (kMost >= 8) {
          AccumulateRows<Values, 8>(w, shrink + i, rows, fetcher, count, head_offset, head_dim, s,
                                    sums_stride);
        }
        break;
      case 4:
        AccumulateRows<Values, 4>(w, shrink + i, rows, fetcher, count, head_offset, head_dim, s,
                                  sums_stride);
        break;
      case 2:
        AccumulateRows<Values, 2>(w, shrink + i, rows, fetcher, count, head_offset, head_dim, s,
                                  sums_stride);
        break;
      default:
        AccumulateRows<Values, 1>(w, shrink + i, rows, fetcher, count, head_offset, head_dim, s,
                                  sums_stride);
    }
  }
}

}  // namespace
}  // namespace ziggurat::cpu

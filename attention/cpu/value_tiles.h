// The sum of values weighted by a chunk of scores.
#pragma once

#include <xmmintrin.h>

#include <cstddef>
#include <cstdint>

#include "attention/cpu/kernels.h"
#include "attention/cpu/vector_math.h"

namespace ziggurat::cpu {
namespace {

/// Values that are read a token at a time, and widened.
template <class V>
struct SingleValues {
  using Simd = V;
  using Value = typename V::Float;
  static constexpr int kTokens = 1;  ///< that are read at a time

  /// Brings weights[0 .. count) into the form that WeightOf takes, in place.
  static void PackWeights(float* /*weights*/, int /*count*/) {}
  /// Of the tokens that begin with `t`.
  static typename V::Float WeightOf(const float* weights, int t) { return V::Set(weights[t]); }
  static typename V::Float Add(typename V::Float sum, Value value, typename V::Float weight) {
    return V::Fma(weight, value, sum);
  }
};

/// Values are read in units of one vector of cells. Of bf16 the even and the odd channels of a unit
/// are accumulated apart and put in order at the end.
template <class V>
struct F32Values : SingleValues<V> {
  using Element = F32Element;
  static constexpr int kVectors = 1;  ///< accumulators per unit
  static constexpr int kChannels = V::kLanes;
  /// One unit of the tokens that begin with `t`, of `count`, at byte `offset` of their rows.
  template <class Load>
  static void Read(Load load, const std::byte* const* rows, int t, int /*count*/, size_t offset,
                   typename V::Float* out) {
    out[0] = V::AsFloat(load(rows[t] + offset));
  }
  /// The accumulators of one unit, times `factor`, in the order of channels.
  static void PutInOrder(const float* sums, float factor, float* out) {
    for (int i = 0; i < kChannels; ++i) out[i] = sums[i] * factor;
  }
};

template <class V>
struct Bf16Values : SingleValues<V> {
  using Element = Bf16Element;
  static constexpr int kVectors = 2;
  static constexpr int kChannels = 2 * V::kLanes;
  template <class Load>
  static void Read(Load load, const std::byte* const* rows, int t, int /*count*/, size_t offset,
                   typename V::Float* out) {
    const typename V::Bits bits = load(rows[t] + offset);
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
///   weights  packed by Values::PackWeights
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
  const auto load = [cells](const std::byte* p) {
    return Partial ? V::LoadBits(p, cells) : V::LoadBits(p);
  };
  constexpr int kBurst = 16;  // rows between two questions to the fetcher
  for (int t = 0; t < count;) {
    const std::byte* ahead = fetcher->Take(kBurst * Units * kUnitBytes, rows[t]);
    for (const int end = Smaller(t + kBurst, count); t < end; t += Values::kTokens) {
      typename Values::Value value[Units * kN];
#pragma GCC unroll 8
      for (int u = 0; u < Units; ++u) {
#pragma GCC unroll 2
        for (int line = 0; line < Values::kTokens; ++line, ahead += kUnitBytes) {
          if constexpr (Fetcher::kFetches) {
            _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T1);
          }
        }
        Values::Read(load, rows, t, count, offset + u * kUnitBytes, value + u * kN);
      }
#pragma GCC unroll 8
      for (int i = 0; i < NQ; ++i) {
        const auto weight = Values::WeightOf(weights + i * kScoreStride, t);
#pragma GCC unroll 16
        for (int u = 0; u < Units * kN; ++u) sum[i][u] = Values::Add(sum[i][u], value[u], weight);
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

/// All channels of the head whose rows begin at `head_offset`, for NQ queries. Spoils the weights.
template <class Values, int NQ, class Fetcher>
inline void AccumulateRows(float* weights, const float* shrink, const std::byte* const* rows,
                           Fetcher* fetcher, int count, size_t head_offset, int head_dim,
                           float* sums, int sums_stride) {
  using V = typename Values::Simd;
  constexpr int kUnits = Smaller(4, Larger(1, V::kAccumulators / (NQ * Values::kVectors)));
  const int full = head_dim / Values::kChannels;
  int u = 0;
  for (int i = 0; i < NQ; ++i) Values::PackWeights(weights + i * kScoreStride, count);
  // The next Units units, of which the last may be Partial.
  const auto next = [&]<int Units, bool Partial>() {
    const size_t offset = static_cast<size_t>(u) * V::kLanes * 4;
    const int cells = (head_dim - full * Values::kChannels) / Values::kVectors;
    float* const of_units = sums + u * Values::kChannels;
    AccumulateUnits<Values, NQ, Units, Partial>(weights, shrink, rows, fetcher, count,
                                                head_offset + offset, cells, of_units, sums_stride);
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
inline void AccumulateSubBlock(int queries, float* weights, const float* shrink,
                               const std::byte* const* rows, Fetcher* fetcher, int count,
                               size_t head_offset, int head_dim, float* sums, int sums_stride) {
  constexpr int kMost = Smaller(8, Values::Simd::kAccumulators / Values::kVectors);
  for (int i = 0; i < queries; i += Smaller(kMost, queries)) {
    float* w = weights + i * kScoreStride;
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

// The sum of values weighted by a chunk of scores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "attention/cpu/chunk.h"
#include "attention/cpu/kernels.h"
#include "attention/cpu/score_tiles.h"
#include "attention/cpu/vector_math.h"

namespace ziggurat::cpu {
namespace {

/// Values of one head.
struct ValueRows {
  const std::byte* const* rows;  ///< of tokens
  size_t offset = 0;             ///< of the head in each
  /// Tokens of a block: those at the same place in all blocks are read one after the other. 0:
  /// all are read in their order.
  int per_block = 0;
  /// What will be needed in their place, and is fetched meanwhile.
  const std::byte* const* rows_ahead = nullptr;
  ptrdiff_t offset_ahead = 0;
  /// ReadOrder::kAlongBlocks: from this slot of each block on it stands in rows_after instead.
  /// Negative: nowhere.
  int slots_ahead = -1;
  const std::byte* const* rows_after = nullptr;
  ptrdiff_t offset_after = 0;
  size_t row_bytes = 0;  ///< of a token and head

  // Of codes in groups (coded_values.h):
  const float* scales = nullptr;  ///< [tokens, groups]
  const float* zeros = nullptr;   ///< the same
  int groups = 0;                 ///< of channels
  int units_per_group = 1;

  const std::byte* at(int t, size_t byte) const { return rows[t] + offset + byte; }
  const std::byte* ahead(int t, size_t byte) const { return rows_ahead[t] + offset_ahead + byte; }
  /// What was fetched once need not be again.
  void FetchNoMore() {
    rows_ahead = rows;
    offset_ahead = static_cast<ptrdiff_t>(offset);
    slots_ahead = -1;
  }
  /// kAlongBlocks: for the slots from slots_ahead on.
  ValueRows After() const {
    ValueRows after = *this;
    after.rows_ahead = rows_after;
    after.offset_ahead = offset_after;
    return after;
  }
};

/// Values that are read a token at a time, and widened.
template <class V>
struct SingleValues {
  using Simd = V;
  using Value = typename V::Float;
  static constexpr int kTokens = 1;  ///< that are read at a time
  static constexpr int kUnitBytes = V::kLanes * 4;
  static constexpr bool kWholeUnits = false;  ///< of a head only

  /// Brings weights[0 .. count) into the form that WeightOf takes, in place.
  static void PackWeights(float* /*weights*/, int /*count*/) {}
  /// Of the tokens that begin with `t`.
  static typename V::Float WeightOf(const float* weights, int t) { return V::Set(weights[t]); }
  static typename V::Float Add(typename V::Float sum, Value value, typename V::Float weight) {
    return V::Fma(weight, value, sum);
  }
  /// The accumulators of one unit, times `factor`, in the order of channels: here of a unit of one
  /// vector.
  static void PutInOrder(const float* sums, float factor, float* out) {
    for (int i = 0; i < V::kLanes; ++i) out[i] = sums[i] * factor;
  }
};

/// Values are read in units of one vector of cells. Of bf16 the even and the odd channels of a unit
/// are accumulated apart and put in order at the end.
template <class V>
struct F32Values : SingleValues<V> {
  using Element = F32Element;
  static constexpr int kVectors = 1;  ///< accumulators per unit
  static constexpr int kChannels = V::kLanes;
  /// Unit `unit` of the tokens that begin with `t`, of `count`.
  template <class Load>
  static void Read(Load load, const ValueRows& values, int t, int /*count*/, int unit,
                   typename V::Float* out) {
    out[0] = V::AsFloat(load(values.at(t, unit * F32Values::kUnitBytes)));
  }
};

/// f32 that was made of bf16 before.
template <class V>
struct UnfoldedBf16Values : F32Values<V> {
  using Element = Bf16Element;
};

template <class V>
struct Bf16Values : SingleValues<V> {
  using Element = Bf16Element;
  static constexpr int kVectors = 2;
  static constexpr int kChannels = 2 * V::kLanes;
  template <class Load>
  static void Read(Load load, const ValueRows& values, int t, int /*count*/, int unit,
                   typename V::Float* out) {
    const typename V::Bits bits = load(values.at(t, unit * Bf16Values::kUnitBytes));
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

/// out[0 .. head_dim) = the accumulators times `factor`. Values put those of a unit in order, or
/// all.
template <class Values>
inline void PutInOrder(const float* sums, float factor, int head_dim, float* out) {
  if constexpr (requires { Values::PutInOrder(sums, factor, head_dim, out); }) {
    Values::PutInOrder(sums, factor, head_dim, out);
  } else {
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
}

// ---- What is fetched while values are accumulated -----------------------------------------------

struct FetchNothing {
  static constexpr ReadOrder kOrder = ReadOrder::kWholeChunk;
  template <class Values, int Units>
  static void At(const ValueRows& /*values*/, int /*t*/, int /*unit*/) {}
};

/// Whoever reads the units of channels from `unit` on, of token `t`, fetches what is ahead of them.
template <ReadOrder kOrderOf>
struct FetchUnits {
  static constexpr ReadOrder kOrder = kOrderOf;
  template <class Values, int Units>
  __attribute__((always_inline)) static void At(const ValueRows& values, int t, int unit) {
#pragma GCC unroll 2
    for (int token = 0; token < Values::kTokens; ++token) {
      Prefetch<kOrder>(values.ahead(t + token, static_cast<size_t>(unit) * Values::kUnitBytes),
                       Units * Values::kUnitBytes);
    }
  }
};

/// The same where a line is passed several times, by units that are a part of it and in `Passes`
/// passes of queries, of which this is number `Pass`: each time the lines of a share of the tokens
/// are fetched, so that fetches are spread evenly. Of a row's last line, if that is not a whole
/// one, the first to come fetches all.
template <int Pass, int Passes>
struct FetchShare {
  static constexpr ReadOrder kOrder = ReadOrder::kWholeChunk;
  template <class Values, int Units>
  __attribute__((always_inline)) static void At(const ValueRows& values, int t, int unit) {
    static_assert(Values::kTokens == 1);
    constexpr int kBytes = Units * Values::kUnitBytes;
    constexpr int kShares = Larger(1, 64 / kBytes) * Passes;
    const size_t byte = static_cast<size_t>(unit) * Values::kUnitBytes, line = byte / 64 * 64;
    const int share = static_cast<int>(byte % 64) / kBytes * Passes + Pass;
    if (line + 64 > values.row_bytes) {
      if (share == 0) Prefetch(values.ahead(t, line), 64);
    } else if (t % kShares == 0) {
      Prefetch(values.ahead(t + share, line), Larger(kBytes, 64));
    }
  }
};

/// Tokens that come first, of all blocks: from one of these to the one at the same place in the
/// next block it is a step.
struct Slab {
  int begin;
  int end;
  int step;
};

/// For NQ queries and Units units of channels from `unit` on:
///   sums[i] = shrink[i] * sums[i] + sum over t < count of weights[i][t] * value t
///   Fetch    what is fetched meanwhile
///   weights  packed by Values::PackWeights
///   cells < kLanes (Partial): the unit has only that many cells
///   slab  whose tokens are taken
template <class Values, class Fetch, int NQ, int Units, bool Partial>
inline void AccumulateUnits(const float* weights, const float* shrink, const ValueRows& values,
                            int count, Slab slab, int unit, int cells, float* sums,
                            int sums_stride) {
  using V = typename Values::Simd;
  constexpr int kN = Values::kVectors, kTokens = Values::kTokens;
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
  for (int first = slab.begin; first < Smaller(slab.end, count); first += kTokens) {
    for (int t = first; t < count; t += slab.step) {
      Fetch::template At<Values, Units>(values, t, unit);
      typename Values::Value value[Units * kN];
#pragma GCC unroll 8
      for (int u = 0; u < Units; ++u) {
        Values::Read(load, values, t, count, unit + u, value + u * kN);
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

/// All channels, for NQ queries. Spoils the weights.
template <class Values, class Fetch, int NQ>
inline void AccumulateRows(float* weights, const float* shrink, const ValueRows& values, int count,
                           int head_dim, float* sums, int sums_stride) {
  using V = typename Values::Simd;
  constexpr int kUnits = Smaller(4, Larger(1, V::kAccumulators / (NQ * Values::kVectors)));
  const int full = head_dim / Values::kChannels;
  for (int i = 0; i < NQ; ++i) Values::PackWeights(weights + i * kScoreStride, count);
  constexpr int kTokens = Values::kTokens;
  const int step = values.per_block % kTokens == 0 ? Larger(values.per_block, kTokens) : kTokens;
  float keep[NQ];  // what was accumulated from this chunk does not shrink
  for (float& one : keep) one = 1;
  // Slots [from, to) of all blocks.
  const auto accumulate = [&](const ValueRows& some, int from, int to) {
    // Where the channels take several passes, a few tokens of all blocks pass all of them before
    // the next come, so that memory is read in order. Pairs and eight queries (Zen 4) take longer
    // to compute than to read: twice as many, so that accumulators are loaded and stored half as
    // often.
    constexpr bool kComputes = NQ == 8 && kTokens == 2;
    constexpr int kSlabTokens = kComputes ? 32 : 16;
    const int blocks = (count + step - 1) / step;
    const int slab =
        full > kUnits ? Larger(kTokens, kSlabTokens / blocks / kTokens * kTokens) : step;
    for (Slab tokens = {from, 0, step}; tokens.begin < Smaller(to, count); tokens.begin += slab) {
      tokens.end = Smaller(tokens.begin + slab, to);
      const float* const shrinks = tokens.begin == 0 ? shrink : keep;
      int u = 0;
      // The next Units units, of which the last may be Partial.
      const auto next = [&]<int Units, bool Partial>() {
        const int cells = (head_dim - full * Values::kChannels) / Values::kVectors;
        float* const of_units = sums + u * Values::kChannels;
        AccumulateUnits<Values, Fetch, NQ, Units, Partial>(weights, shrinks, some, count, tokens, u,
                                                           cells, of_units, sums_stride);
        u += Units;
      };
      if constexpr (kUnits == 4) {
        while (u + 4 <= full) next.template operator()<4, false>();
      }
      if constexpr (kUnits >= 2) {
        while (u + 2 <= full) next.template operator()<2, false>();
      }
      while (u < full) next.template operator()<1, false>();
      if constexpr (!Values::kWholeUnits) {
        if (full * Values::kChannels < head_dim) next.template operator()<1, true>();
      }
    }
  };
  if constexpr (Fetch::kOrder == ReadOrder::kAlongBlocks) {
    static_assert(kTokens == 1);  // slots_ahead may be odd
    const int here = values.slots_ahead >= 0 ? values.slots_ahead : step;
    accumulate(values, 0, here);
    if (here < step) accumulate(values.After(), here, step);
  } else {
    accumulate(values, 0, step);
  }
}

/// A sub-block of `queries` in {1, 2, 3, 4, 8}.
///   kFetches  what values.rows_ahead names
template <class Values, bool kFetches, ReadOrder kOrder = ReadOrder::kWholeChunk>
inline void AccumulateSubBlock(int queries, float* weights, const float* shrink,
                               const ValueRows& values, int count, int head_dim, float* sums,
                               int sums_stride) {
  using V = typename Values::Simd;
  // What must be unpacked is best read once.
  constexpr bool kUnpacks = Values::kUnitBytes < V::kLanes * 4;
  constexpr int kMost =
      Smaller(kUnpacks ? kMaxQueries : QueriesAtOnce<V>(), V::kAccumulators / Values::kVectors);
  ForSubBlock(queries, [&]<int NQ>() {
    constexpr int kAtOnce = Smaller(NQ, kMost), kPasses = NQ / kAtOnce;
    static_assert(NQ % kAtOnce == 0 && kPasses <= 2);
    const auto accumulate = [&]<int kPass>() {
      using Fetch = std::conditional_t<
          !kFetches, FetchNothing,
          std::conditional_t<(V::kRegisters > 16), FetchUnits<kOrder>, FetchShare<kPass, kPasses>>>;
      constexpr int i = kPass * kAtOnce;
      AccumulateRows<Values, Fetch, kAtOnce>(weights + i * kScoreStride, shrink + i, values, count,
                                             head_dim, sums + static_cast<size_t>(i) * sums_stride,
                                             sums_stride);
    };
    accumulate.template operator()<0>();
    if constexpr (kPasses == 2) accumulate.template operator()<1>();
  });
}

}  // namespace
}  // namespace ziggurat::cpu

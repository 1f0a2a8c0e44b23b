// bf16 keys and values two at a time: VDPBF16PS multiplies two pairs and adds both products to a
// sum in f32. For translation units compiled with AVX512-BF16.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "attention/cpu/score_tiles.h"
#include "attention/cpu/value_tiles.h"

namespace ziggurat::cpu {
namespace {

inline __m512 DotPairs(__m512 sum, __m512i pairs, __m512i others) {
  return _mm512_dpbf16_ps(sum, (__m512bh)pairs, (__m512bh)others);
}
inline __m512 DotPairs(__m512 sum, __m512i pairs, int pair) {
  return DotPairs(sum, pairs, _mm512_set1_epi32(pair));
}
inline __m256 DotPairs(__m256 sum, __m256i pairs, int pair) {
  return _mm256_dpbf16_ps(sum, (__m256bh)pairs, (__m256bh)_mm256_set1_epi32(pair));
}

/// Rounds to bf16, to nearest even.
inline uint32_t RoundToBf16(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  return x != x ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

/// x[0 .. count) as bf16, in place; whole vectors are touched.
inline void PackPairs(int count, float* x) {
  for (int i = 0; i < count; i += 32) {
    const __m512bh pairs = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + i + 16), _mm512_loadu_ps(x + i));
    _mm512_storeu_si512(x + i / 2, (__m512i)pairs);
  }
}

/// Row of bf16 keys; a query is rounded to bf16 too, and has one cell with two channels per row.
template <class V>
struct PairedKeys {
  using Simd = V;
  using Element = Bf16Element;
  using One = PairedKeys;
  using Many = PairedKeys;
  static constexpr int kChannelsPerRow = 2;
  static constexpr int kCells = 1;
  using Row = typename V::Bits;

  static Row Load(const std::byte* p) { return V::LoadBits(p); }
  static Row Load(const std::byte* p, int slots) { return V::LoadBits(p, slots); }
  static typename V::Float Dot(typename V::Float sum, Row row, const float* query) {
    int pair;
    __builtin_memcpy(&pair, query, 4);
    return DotPairs(sum, row, pair);
  }
  static void PackRow(const float* channels, float* cells) {
    const uint32_t pair = RoundToBf16(channels[0]) | RoundToBf16(channels[1]) << 16;
    __builtin_memcpy(cells, &pair, 4);
  }
};

/// Where VDPBF16PS issues only every other cycle (Intel's Sapphire and Emerald Rapids): a single
/// query costs one instruction per row instead of four, and where several queries share the widened
/// row, plain FMAs win, with twice the multiply-adds per cycle.
template <class V>
struct HalfRateKeys : PairedKeys<V> {
  using Many = WidenedBf16Keys<V>;
};

/// Values of two neighbouring tokens, channel by channel, with both tokens' weights rounded to bf16
/// as flash attention does.
///
/// Interleaving puts the channels of a unit in two accumulators: of every eight the first four in
/// one, the others in the other.
template <class V>
struct PairedValues {
  using Simd = V;
  using Element = Bf16Element;
  using Value = typename V::Bits;
  static constexpr int kTokens = 2;
  static constexpr int kUnitBytes = V::kLanes * 4;
  static constexpr bool kWholeUnits = false;
  static constexpr int kVectors = 2;
  static constexpr int kChannels = 2 * V::kLanes;

  /// The last token of an odd number stands beside itself, with a weight of 0.
  template <class Load>
  static void Read(Load load, const ValueRows& values, int t, int count, int unit, __m512i* out) {
    const __m512i even = load(values.at(t, unit * kUnitBytes));
    const __m512i odd = load(values.at(t + 1 < count ? t + 1 : t, unit * kUnitBytes));
    out[0] = _mm512_unpacklo_epi16(even, odd);
    out[1] = _mm512_unpackhi_epi16(even, odd);
  }
  static int WeightOf(const float* weights, int t) {
    int pair;
    __builtin_memcpy(&pair, weights + t / 2, 4);
    return pair;
  }
  static typename V::Float Add(typename V::Float sum, Value values, int weights) {
    return DotPairs(sum, values, weights);
  }
  /// weights[0 .. count) in place: cell i holds those of tokens 2i and 2i+1, 0 where there is none.
  static void PackWeights(float* weights, int count) {
    if (count % 2 != 0) weights[count] = 0;
    PackPairs(count, weights);
  }
  static void PutInOrder(const float* sums, float factor, float* out) {
    for (int i = 0; i < V::kLanes; ++i) {
      float* const quad = out + i / 4 * 8 + i % 4;
      quad[0] = sums[i] * factor;
      quad[4] = sums[V::kLanes + i] * factor;
    }
  }
};

}  // namespace
}  // namespace ziggurat::cpu

// Sums of values in int4 and int2 codes, as products of pairs of bf16: for CPUs on which VDPBF16PS
// has the rate of VPDPBUSD (AMD since Zen 4).
//
// A code has so few bits that VPERMW finds it in a table of bf16, exactly. A weight times its
// value's scale is rounded to bf16, as flash attention does with weights, and as PairedValues does
// where values are bf16: that takes fewer instructions than cutting it into digits. (Queries times
// scales are cut into digits all the same: what a key's largest channels lose by rounding, the
// scores would show.) Codes are taken less their mean, which goes into the zeros, so that what is
// rounded is multiplied by small numbers.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "attention/cpu/byte_scores.h"
#include "attention/cpu/paired_bf16.h"
#include "attention/cpu/value_scales.h"
#include "attention/cpu/value_tiles.h"

namespace ziggurat::cpu {
namespace {

template <int kBits>
struct PairedCodes {
  static constexpr int kPerWord = 16 / kBits;
  static constexpr int kPerCell = 32 / kBits;
  static constexpr float kMean = ((1 << kBits) - 1) / 2.0f;

  /// The first code of each word, less kMean, as bf16.
  static __m512i First(__m512i words) {
    return _mm512_permutexvar_epi16(words, _mm512_load_si512(kTable.of));
  }

  /// Zeros of codes less kMean.
  static __m512 Zero(__m512 scale, __m512 zero) {
    return _mm512_fmadd_ps(scale, _mm512_set1_ps(kMean), zero);
  }

 private:
  /// Of an index the lowest five bits count.
  struct Table {
    alignas(64) uint16_t of[32];
    constexpr Table() : of() {
      for (int i = 0; i < 32; ++i) {
        const float code = static_cast<float>(i % (1 << kBits)) - kMean;
        of[i] = static_cast<uint16_t>(__builtin_bit_cast(uint32_t, code) >> 16);
      }
    }
  };
  static constexpr Table kTable = Table();
};

/// Some rows of weights times scales, in pairs of neighbouring tokens, and what the zeros make of
/// each row.
struct WeightPairs {
  alignas(64) int of[kMaxQueries][kChunk / 2];
  float bias[kMaxQueries];
};

/// Of NQ rows of weights, kScoreStride apart.
///   scales  of a group; like the weights 0 behind `count` tokens, up to a multiple of 32
template <class Codes, int NQ, class Scales>
inline void ScaleToPairs(const float* weights, const Scales& scales, int count, WeightPairs* out) {
  __m512 sum[NQ];
#pragma GCC unroll 8
  for (int i = 0; i < NQ; ++i) sum[i] = _mm512_setzero_ps();
#pragma GCC unroll 2
  for (int t = 0; t < count; t += 32) {
    const __m512 low_scale = scales.Scale(t), high_scale = scales.Scale(t + 16);
    const __m512 low_zero = Codes::Zero(low_scale, scales.Zero(t));
    const __m512 high_zero = Codes::Zero(high_scale, scales.Zero(t + 16));
#pragma GCC unroll 8
    for (int i = 0; i < NQ; ++i) {
      const __m512 low = _mm512_loadu_ps(weights + i * kScoreStride + t);
      const __m512 high = _mm512_loadu_ps(weights + i * kScoreStride + t + 16);
      const __m512bh pairs =
          _mm512_cvtne2ps_pbh(_mm512_mul_ps(high, high_scale), _mm512_mul_ps(low, low_scale));
      _mm512_store_si512(out->of[i] + t / 2, (__m512i)pairs);
      sum[i] = _mm512_fmadd_ps(low, low_zero, sum[i]);
      sum[i] = _mm512_fmadd_ps(high, high_zero, sum[i]);
    }
  }
#pragma GCC unroll 2
  for (int i = 0; i < NQ; i += 4) {
    _mm_storeu_ps(out->bias + i, Simd16::SumOfEach<NQ>(sum, i));
  }
}

/// Sums over codes times pairs, for NQ rows of weights and two vectors of codes: enough of them to
/// hide the latency of a product.
template <int NQ>
struct PairSums {
  static constexpr int kSums = Smaller(4, 16 / (2 * NQ));
  __m512 of[kSums][NQ][2];

  __attribute__((always_inline)) PairSums() {
#pragma GCC unroll 4
    for (int u = 0; u < kSums; ++u) {
#pragma GCC unroll 8
      for (int i = 0; i < NQ; ++i) of[u][i][0] = of[u][i][1] = _mm512_setzero_ps();
    }
  }
  /// Adds both vectors of codes times pair number `at` of each row.
  ///   u  which products follow each other
  __attribute__((always_inline)) void Add(int u, __m512i first, __m512i second,
                                          const WeightPairs& pairs, int at) {
#pragma GCC unroll 8
    for (int i = 0; i < NQ; ++i) {
      const int pair = pairs.of[i][at];
      of[u % kSums][i][0] = DotPairs(of[u % kSums][i][0], first, pair);
      of[u % kSums][i][1] = DotPairs(of[u % kSums][i][1], second, pair);
    }
  }
  __attribute__((always_inline)) __m512 Of(int i, int v) const {
    __m512 sum = of[0][i][v];
#pragma GCC unroll 4
    for (int u = 1; u < kSums; ++u) sum = _mm512_add_ps(sum, of[u][i][v]);
    return sum;
  }
};

/// Values are taken in units of 32 channels, of which each has two vectors of accumulators.
template <int kBits>
struct PairedCodeValues {
  using Simd = Simd16;
  using Codes = PairedCodes<kBits>;
  static constexpr int kChannels = 32;
  static constexpr int kUnitBytes = kChannels * kBits / 8;
  /// Bytes of a row that are read at a time.
  static constexpr int kGranule = 16;
  static constexpr int kUnits = kGranule / kUnitBytes;  ///< of a granule

  static bool Takes(const DecodeJob& job) {
    return job.row_bytes % kGranule == 0 && job.code_group % kChannels == 0;
  }

  /// Both vectors of a unit's codes of two neighbouring tokens.   rows  a granule of each
  __attribute__((always_inline)) static void Unpack(__m256i rows, int unit, __m512i* codes) {
    __m512i words =
        _mm512_permutexvar_epi8(_mm512_load_si512(kPlaces[unit].of), _mm512_castsi256_si512(rows));
    if constexpr (kBits < 4) words = _mm512_srlv_epi16(words, _mm512_load_si512(kShifts.of));
    codes[0] = Codes::First(words);
    codes[1] = Codes::First(_mm512_srli_epi16(words, kBits));
  }

  /// As the function of this name in value_tiles.h.
  static void PutInOrder(const float* sums, float factor, float* out) {
    StoreInOrder(_mm512_loadu_ps(sums), _mm512_loadu_ps(sums + 16), kAccumulators.of, factor, out);
  }

 private:
  static constexpr int kWords = kChannels / Codes::kPerWord;

  /// Lane l of vector v has the two tokens' codes number FieldOf(l) + v of word l % kWords.
  static constexpr int FieldOf(int lane) { return lane / kWords * 2; }

  /// The byte in which the first vector's codes are, of the first token and then the second.
  struct Places {
    alignas(64) uint8_t of[64];
    constexpr explicit Places(int unit) : of() {
      for (int i = 0; i < 64; ++i) {
        const int lane = i / 4, token = i / 2 % 2;
        of[i] = static_cast<uint8_t>(token * kGranule + unit * kUnitBytes + lane % kWords * 2 +
                                     FieldOf(lane) * kBits / 8);
      }
    }
  };
  struct Shifts {
    alignas(64) uint16_t of[32];
    constexpr Shifts() : of() {
      for (int i = 0; i < 32; ++i) of[i] = static_cast<uint16_t>(FieldOf(i / 2) * kBits % 8);
    }
  };
  static constexpr Places kPlaces[2] = {Places(0), Places(kUnits - 1)};
  static constexpr Shifts kShifts = Shifts();
  /// Which accumulator each channel has.
  struct Accumulators {
    alignas(64) int of[kChannels];
    constexpr Accumulators() : of() {
      for (int i = 0; i < kChannels; ++i) {
        const int lane = i % 16, v = i / 16;
        of[lane % kWords * Codes::kPerWord + FieldOf(lane) + v] = i;
      }
    }
  };
  static constexpr Accumulators kAccumulators = Accumulators();
};

/// For NQ queries and the unit of 32 channels that begins with `channel`:
///   sums[i] = shrink[i] * sums[i] + weights[i] . values
template <int kBits, int NQ, bool kFetches>
__attribute__((noinline)) inline void AccumulatePairs(const HeadChunk& here, int channel,
                                                      const WeightPairs& weights,
                                                      const float* shrink, BytesAhead<kBits>* ahead,
                                                      float* sums, size_t stride) {
  using Values = PairedCodeValues<kBits>;
  constexpr int kPairs = kTileSlots / 2;
  const size_t row_bytes = here.job().row_bytes;
  const int unit = channel / Values::kChannels % Values::kUnits;
  const size_t at = channel / Values::kChannels / Values::kUnits * size_t{Values::kGranule};
  const int tiles = here.num_tiles();
  BytesAhead<kBits> lines = *ahead;
  PairSums<NQ> added;
  for (int tile = 0; tile < tiles; ++tile) {
    if (kFetches) lines.FetchLines();
    const std::byte* from = here.TileAt(&Chunk::values, tile) + at;
#pragma GCC unroll 8
    for (int pair = 0; pair < kPairs; ++pair, from += 2 * row_bytes) {
      const auto token = [](const std::byte* p) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
      };
      __m512i codes[2];
      Values::Unpack(
          _mm256_inserti128_si256(_mm256_castsi128_si256(token(from)), token(from + row_bytes), 1),
          unit, codes);
      added.Add(pair, codes[0], codes[1], weights, tile * kPairs + pair);
    }
  }
  if (kFetches) *ahead = lines;
#pragma GCC unroll 8
  for (int i = 0; i < NQ; ++i) {
    const __m512 bias = _mm512_set1_ps(weights.bias[i]);
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      float* const to = sums + i * stride + v * 16;
      const __m512 sum = _mm512_add_ps(added.Of(i, v), bias);
      _mm512_storeu_ps(to, _mm512_fmadd_ps(_mm512_loadu_ps(to), _mm512_set1_ps(shrink[i]), sum));
    }
  }
}

/// Sums of values by products of pairs, as ByteFormat (byte_format.h) wants them.
template <int kBits>
struct PairedCodeSums {
  using Values = PairedCodeValues<kBits>;
  using Codes = PairedCodes<kBits>;

  /// As Format::Accumulate (decode_kernel.h).
  static void Accumulate(const HeadStep& step, float* weights, const float* shrink,
                         BytesAhead<kBits>* ahead, float* sums) {
    const DecodeJob& job = step.here.job();
    const int count = step.here.count(), stride = AccumulatorFloats<Values>(job.head_dim);
    ZeroBehindLast(step, weights);
    WeightPairs scaled;
    // Queries [i, i + NQ).
    const auto accumulate = [&]<int NQ>(int i, const auto& scales) {
      for (int channel = 0; channel < job.head_dim; channel += Values::kChannels) {
        if (channel % job.code_group == 0) {
          ScaleToPairs<Codes, NQ>(weights + i * kScoreStride, scales.Of(channel / job.code_group),
                                  count, &scaled);
        }
        float* const to = sums + static_cast<size_t>(i) * stride + channel;
        if (i == 0 && channel / Values::kChannels % Values::kUnits == 0) {
          AccumulatePairs<kBits, NQ, true>(step.here, channel, scaled, shrink + i, ahead, to,
                                           stride);
        } else {
          AccumulatePairs<kBits, NQ, false>(step.here, channel, scaled, shrink + i, ahead, to,
                                            stride);
        }
      }
    };
    WithValueScales(step, [&](const auto& scales) {
      for (int i = 0; i < job.group_size;) {
        const int size = NextSubBlock(job.group_size - i);
        ForSubBlock(size, [&]<int NQ>() { accumulate.template operator()<NQ>(i, scales); });
        i += size;
      }
    });
  }
};

}  // namespace
}  // namespace ziggurat::cpu

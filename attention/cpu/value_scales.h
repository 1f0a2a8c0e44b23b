// What sums of coded values have in common, however codes are multiplied: scales of grouped ones,
// weights as they are multiplied by them, and the order of accumulators.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "attention/cpu/chunk.h"
#include "attention/cpu/fetch.h"
#include "attention/cpu/simd_avx512.h"
#include "attention/cpu/vector_math.h"

namespace ziggurat::cpu {
namespace {

/// Scales and zeros of a step's values; kVectors hold those of a tile of tokens.
template <int kVectors>
class ValueScales {
 public:
  /// What stands there for the next step is fetched.
  explicit ValueScales(const HeadStep& step)
      : groups_(step.here.job().head_dim / step.here.job().code_group),
        count_(step.here.count()),
        zeros_at_(static_cast<size_t>(step.here.job().head_dim) * 2) {
    const int group = step.here.job().code_group, words = kTileSlots * groups_;
    for (int i = 0; i < kVectors; ++i) {
      const int left = Larger(0, Smaller(32, words - 32 * i));
      words_[i] = static_cast<__mmask32>((uint64_t{1} << left) - 1);
    }
    for (int tile = 0; tile < step.here.num_tiles(); ++tile) {
      const int slot = (step.here.begin() + tile * kTileSlots) % group;
      const size_t at = static_cast<size_t>(slot) * groups_ * 2;
      tiles_[tile] = step.here.TileAt(&Chunk::value_units, tile) + at;
      const std::byte* const ahead = step.next.TileAt(&Chunk::value_units, tile) + at;
      Prefetch(ahead, static_cast<size_t>(words) * 2);
      Prefetch(ahead + zeros_at_, static_cast<size_t>(words) * 2);
    }
  }

  /// Those of a group of channels, as CutIntoDigits takes them.
  class OfGroup {
   public:
    OfGroup(const ValueScales& scales, int group)
        : all_(scales),
          from_(_mm512_add_epi16(
              _mm512_mullo_epi16(_mm512_slli_epi32(Simd16::Counting(), 16),
                                 _mm512_set1_epi16(static_cast<int16_t>(scales.groups_))),
              _mm512_set1_epi16(static_cast<int16_t>(group)))) {}

    __attribute__((always_inline)) __m512 Scale(int t) const { return At(t, 0); }
    __attribute__((always_inline)) __m512 Zero(int t) const { return At(t, all_.zeros_at_); }

   private:
    /// Of the tokens from t on, as f32; 0 behind the last one.
    __attribute__((always_inline)) __m512 At(int t, size_t byte) const {
      constexpr __mmask32 kUpperWords = 0xaaaaaaaa;
      const int left = all_.count_ - t;
      if (left >= kTileSlots) return Widen(kUpperWords, all_.tiles_[t / kTileSlots] + byte);
      if (left <= 0) return _mm512_setzero_ps();
      return Widen(kUpperWords & ((1u << 2 * left) - 1), all_.tiles_[t / kTileSlots] + byte);
    }
    /// Of [16 tokens][groups] bf16 the upper words that are in `words`, the lower ones 0.
    __attribute__((always_inline)) __m512 Widen(__mmask32 words, const std::byte* tile) const {
      const auto load = [&](int i) __attribute__((always_inline)) {
        return _mm512_maskz_loadu_epi16(all_.words_[i], tile + 64 * i);
      };
      if constexpr (kVectors == 1) {
        return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(words, from_, load(0)));
      } else {
        __m512i out = _mm512_maskz_permutex2var_epi16(words, load(0), from_, load(1));
        if constexpr (kVectors > 2) {
          const __mmask32 behind =
              _mm512_mask_cmpge_epu16_mask(words, from_, _mm512_set1_epi16(64));
          out = _mm512_mask_mov_epi16(out, behind,
                                      _mm512_permutex2var_epi16(load(2), from_, load(3)));
        }
        return _mm512_castsi512_ps(out);
      }
    }

    const ValueScales& all_;
    __m512i from_;  ///< the upper word of lane i is number i * groups + group
  };
  OfGroup Of(int group) const { return OfGroup(*this, group); }

 private:
  int groups_;
  int count_;
  size_t zeros_at_;            ///< bytes behind the scales
  __mmask32 words_[kVectors];  ///< that there are of each vector
  const std::byte* tiles_[kMostTiles];
};

/// Calls run(scales) with the ValueScales of a step.
template <class Run>
inline void WithValueScales(const HeadStep& step, Run run) {
  const int groups = step.here.job().head_dim / step.here.job().code_group;
  static_assert(kMaxHeadDim / 32 <= 8);
  if (groups <= 2) {
    run(ValueScales<1>(step));
  } else if (groups <= 4) {
    run(ValueScales<2>(step));
  } else {
    run(ValueScales<4>(step));
  }
}

/// out[c] = factor * accumulator accumulators[c] of both vectors, for a unit of 32 channels.
inline void StoreInOrder(__m512 low, __m512 high, const int (&accumulators)[32], float factor,
                         float* out) {
#pragma GCC unroll 2
  for (int i = 0; i < 32; i += 16) {
    const __m512i from = _mm512_load_si512(accumulators + i);
    _mm512_storeu_ps(
        out + i, _mm512_mul_ps(_mm512_permutex2var_ps(low, from, high), _mm512_set1_ps(factor)));
  }
}

/// Weights 0 behind the last token of a step, up to the end of a chunk.
inline void ZeroBehindLast(const HeadStep& step, float* weights) {
  const int count = step.here.count();
  if (count == kChunk) return;
  for (int i = 0; i < step.here.job().group_size; ++i) {
    __builtin_memset(weights + i * kScoreStride + count, 0, sizeof(float) * (kChunk - count));
  }
}

}  // namespace
}  // namespace ziggurat::cpu

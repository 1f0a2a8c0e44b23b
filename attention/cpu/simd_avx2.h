// Eight lanes of f32 with AVX2 and FMA. See kernels.h on why all this is in an unnamed namespace.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace ziggurat::cpu {
namespace {

struct Simd8 {
  static constexpr int kLanes = 8;
  static constexpr int kRegisters = 16;
  /// Accumulators that leave registers over for operands, of 16 there are.
  static constexpr int kAccumulators = 8;
  static constexpr bool kReducesRows = false;
  static constexpr bool kHasLookup = false;  ///< in 16 entries at once
  using Float = __m256;
  using Bits = __m256i;  ///< kLanes cells of 4 bytes: an f32, or two neighbouring bf16

  static Float Zero() { return _mm256_setzero_ps(); }
  static Float Set(float x) { return _mm256_set1_ps(x); }
  static Float Load(const float* p) { return _mm256_loadu_ps(p); }
  static void Store(float* p, Float x) { _mm256_storeu_ps(p, x); }
  static Float Add(Float a, Float b) { return _mm256_add_ps(a, b); }
  static Float Sub(Float a, Float b) { return _mm256_sub_ps(a, b); }
  static Float Mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
  static Float Div(Float a, Float b) { return _mm256_div_ps(a, b); }
  /// b where either is NaN.
  static Float Max(Float a, Float b) { return _mm256_max_ps(a, b); }
  static Float Min(Float a, Float b) { return _mm256_min_ps(a, b); }
  static Float Fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  static Float Round(Float x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  /// x * 2^n for integers n in [-126, 128] and x about 1.
  static Float TimesPowerOfTwo(Float x, Float n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return Mul(x, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
  }
  /// 0 where a < b, x elsewhere, also where one is NaN.
  static Float ZeroWhereLess(Float a, Float b, Float x) {
    return _mm256_and_ps(x, _mm256_cmp_ps(a, b, _CMP_NLT_UQ));
  }
  static float Sum(Float x) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  static float First(Float x) { return _mm256_cvtss_f32(x); }
  /// False where one is NaN.
  static bool AllAtMost(Float x, Float limit) {
    return _mm256_movemask_ps(_mm256_cmp_ps(x, limit, _CMP_NLE_UQ)) == 0;
  }
  static float Largest(Float x) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }

  static Bits LoadBits(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  /// The first `cells` cells, zeros behind; touches no memory past them.
  static Bits LoadBits(const void* p, int cells) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_maskload_epi32(static_cast<const int*>(p),
                                 _mm256_cmpgt_epi32(_mm256_set1_epi32(cells), lane));
  }
  /// Of the square of kLanes rows of cells.
  static void Transpose(Bits* rows) {
    Bits pairs[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      pairs[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
      pairs[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    // quads[4 * g + c]: of rows 4g to 4g + 3 the cells c and c + 4.
    Bits quads[8];
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
      quads[i] = _mm256_unpacklo_epi64(pairs[i], pairs[i + 2]);
      quads[i + 1] = _mm256_unpackhi_epi64(pairs[i], pairs[i + 2]);
      quads[i + 2] = _mm256_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
      quads[i + 3] = _mm256_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      rows[c] = _mm256_permute2x128_si256(quads[c], quads[4 + c], 0x20);
      rows[4 + c] = _mm256_permute2x128_si256(quads[c], quads[4 + c], 0x31);
    }
  }
  static Float AsFloat(Bits x) { return _mm256_castsi256_ps(x); }
  /// The first, and the second, bf16 of each cell.
  static Float Low(Bits x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); }
  static Float High(Bits x) {
    return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(-65536)));
  }

  static Bits SetBits(uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
  template <int kBy>
  static Bits ShiftLeft(Bits x) {
    return _mm256_slli_epi32(x, kBy);
  }
  template <int kBy>
  static Bits ShiftRight(Bits x) {
    return _mm256_srli_epi32(x, kBy);
  }
  template <int kBy>
  static Bits ShiftRightSigned(Bits x) {
    return _mm256_srai_epi32(x, kBy);
  }
  static Bits Xor(Bits a, Bits b) { return _mm256_xor_si256(a, b); }
  static Bits AndOr(Bits x, uint32_t mask, uint32_t bits) {
    return _mm256_or_si256(_mm256_and_si256(x, SetBits(mask)), SetBits(bits));
  }
  /// The integer in the lowest kBits, 4 or 2, of each cell.
  template <int kBits>
  static Float Low(Bits x) {
    return _mm256_cvtepi32_ps(_mm256_and_si256(x, SetBits((1 << kBits) - 1)));
  }
  /// fraction * 2 - bias where bits & exponent is 0, fraction elsewhere.
  static Float FixSubnormals(Bits bits, uint32_t exponent, Float fraction, Float bias) {
    const Bits field = _mm256_and_si256(bits, SetBits(exponent));
    const Bits is_zero = _mm256_cmpeq_epi32(field, _mm256_setzero_si256());
    return _mm256_blendv_ps(fraction, _mm256_fmsub_ps(fraction, Set(2), bias),
                            _mm256_castsi256_ps(is_zero));
  }
  static Float ToFloat(Bits x) { return _mm256_cvtepi32_ps(x); }
  /// kLanes signed bytes, one in each cell.
  static Bits LoadSignedBytes(const void* p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
  }
  /// kLanes codes of kBits, 4 or 2, one in the lowest bits of each cell; others above it.
  template <int kBits>
  static Bits Spread(const void* p) {
    uint32_t cell = 0;
    __builtin_memcpy(&cell, p, kBits);
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_srlv_epi32(SetBits(cell), _mm256_mullo_epi32(lanes, SetBits(kBits)));
  }

  static Float LoadBf16(const uint16_t* p) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
  /// Rounds to nearest even; NaN stays NaN.
  static void StoreBf16(uint16_t* p, Float x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256i cells = _mm256_blendv_epi8(_mm256_srli_epi32(up, 16), quiet, nan);
    const __m128i packed =
        _mm_packus_epi32(_mm256_castsi256_si128(cells), _mm256_extracti128_si256(cells, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
  }
};

}  // namespace
}  // namespace ziggurat::cpu

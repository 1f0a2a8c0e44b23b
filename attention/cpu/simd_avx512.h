// Sixteen lanes of f32 with AVX-512 F, BW, DQ, VL. The same operations as Simd8 (simd_avx2.h).
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace ziggurat::cpu {
namespace {

struct Simd16 {
  static constexpr int kLanes = 16;
  static constexpr int kRegisters = 32;
  /// Accumulators that leave registers over for operands, of 32 there are.
  static constexpr int kAccumulators = 16;
  static constexpr bool kReducesRows = true;
  static constexpr bool kHasLookup = true;
  using Float = __m512;
  using Bits = __m512i;

  static Float Zero() { return _mm512_setzero_ps(); }
  static Float Set(float x) { return _mm512_set1_ps(x); }
  static Float Load(const float* p) { return _mm512_loadu_ps(p); }
  static void Store(float* p, Float x) { _mm512_storeu_ps(p, x); }
  static Float Add(Float a, Float b) { return _mm512_add_ps(a, b); }
  static Float Sub(Float a, Float b) { return _mm512_sub_ps(a, b); }
  static Float Mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static Float Div(Float a, Float b) { return _mm512_div_ps(a, b); }
  static Float Max(Float a, Float b) { return _mm512_max_ps(a, b); }
  static Float Min(Float a, Float b) { return _mm512_min_ps(a, b); }
  static Float Fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  static Float Round(Float x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Float TimesPowerOfTwo(Float x, Float n) { return _mm512_scalef_ps(x, n); }
  static Float ZeroWhereLess(Float a, Float b, Float x) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ), x);
  }
  static float Sum(Float x) { return _mm512_reduce_add_ps(x); }
  static float First(Float x) { return _mm512_cvtss_f32(x); }
  static bool AllAtMost(Float x, Float limit) {
    return _mm512_cmp_ps_mask(x, limit, _CMP_NLE_UQ) == 0;
  }
  static float Largest(Float x) { return _mm512_reduce_max_ps(x); }

  /// 2^x within 2^-22 for x in [-100, 127]; 2^-100 below that, NaN for NaN. Exp2 (vector_math.h) in
  /// two thirds as many operations; Simd8 has none.
  static Float Weight(Float x) {
    x = _mm512_max_ps(_mm512_set1_ps(-100.0f), x);
    // 2^x = 2^floor(x) * 2^f, 0 <= f <= 1; the best polynomial for that, within 2^-23.
    const Float f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);
    Float p = _mm512_set1_ps(1.87757669e-3f);
    p = Fma(p, f, _mm512_set1_ps(8.98933969e-3f));
    p = Fma(p, f, _mm512_set1_ps(5.58263175e-2f));
    p = Fma(p, f, _mm512_set1_ps(2.40153611e-1f));
    p = Fma(p, f, _mm512_set1_ps(6.93153083e-1f));
    p = Fma(p, f, _mm512_set1_ps(9.9999994e-1f));
    return _mm512_scalef_ps(p, x);
  }

  // Four rows reduced to one register of four lanes, which Simd8 has not (softmax_chunk.h).
  static Float OfQuad(__m128 x) { return _mm512_castps128_ps512(x); }
  static __m128 Quad(Float x) { return _mm512_castps512_ps128(x); }
  /// Lane i: the sum, or the largest, of all lanes of x[first + i], or of the last of N.
  template <int N>
  __attribute__((always_inline)) static __m128 SumOfEach(const Float* x, int first) {
    return ReduceFour<N>(x, first, [](auto a, auto b) { return a + b; });
  }
  template <int N>
  __attribute__((always_inline)) static __m128 LargestOfEach(const Float* x, int first) {
    return ReduceFour<N>(x, first, LargerLanes());
  }

  static Bits LoadBits(const void* p) { return _mm512_loadu_si512(p); }
  static Bits LoadBits(const void* p, int cells) {
    return _mm512_maskz_loadu_epi32(static_cast<__mmask16>((1u << cells) - 1), p);
  }
  static void Transpose(Bits* rows) {
    Bits pairs[16], quads[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
      pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
      pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    // quads[4 * g + c]: of rows 4g to 4g + 3 the cells c, c + 4, c + 8 and c + 12.
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
      quads[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
      quads[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
      quads[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
      quads[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const Bits low_even = _mm512_shuffle_i32x4(quads[c], quads[4 + c], 0x88);
      const Bits low_odd = _mm512_shuffle_i32x4(quads[c], quads[4 + c], 0xdd);
      const Bits high_even = _mm512_shuffle_i32x4(quads[8 + c], quads[12 + c], 0x88);
      const Bits high_odd = _mm512_shuffle_i32x4(quads[8 + c], quads[12 + c], 0xdd);
      rows[c] = _mm512_shuffle_i32x4(low_even, high_even, 0x88);
      rows[4 + c] = _mm512_shuffle_i32x4(low_odd, high_odd, 0x88);
      rows[8 + c] = _mm512_shuffle_i32x4(low_even, high_even, 0xdd);
      rows[12 + c] = _mm512_shuffle_i32x4(low_odd, high_odd, 0xdd);
    }
  }
  static Float AsFloat(Bits x) { return _mm512_castsi512_ps(x); }
  static Float Low(Bits x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
  static Float High(Bits x) {
    return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(-65536)));
  }

  static Bits SetBits(uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
  template <int kBy>
  static Bits ShiftLeft(Bits x) {
    return _mm512_slli_epi32(x, kBy);
  }
  template <int kBy>
  static Bits ShiftRight(Bits x) {
    return _mm512_srli_epi32(x, kBy);
  }
  template <int kBy>
  static Bits ShiftRightSigned(Bits x) {
    return _mm512_srai_epi32(x, kBy);
  }
  static Bits Xor(Bits a, Bits b) { return _mm512_xor_si512(a, b); }
  static Bits AndOr(Bits x, uint32_t mask, uint32_t bits) {
    return _mm512_ternarylogic_epi32(x, SetBits(mask), SetBits(bits), 0xea);
  }
  static Bits Counting() {
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  }
  /// Entry `index` of 16; of an index the lowest 4 bits count.
  static Float Lookup(Float table, Bits index) { return _mm512_permutexvar_ps(index, table); }
  // Which spares a mask and a conversion.
  template <int kBits>
  static Float Low(Bits x) {
    return Lookup(ToFloat(_mm512_and_si512(Counting(), SetBits((1 << kBits) - 1))), x);
  }
  /// For each lane l = kBits * k + j the lowest kBits, 4 or 2, of out[v] are the code of channel
  ///   c = (32 / kBits) * j + (16 / kBits) * v + k
  /// of a row of 32.
  template <int kBits>
  static void Spread32(const void* p, Bits* out) {
    Bits cells;
    if constexpr (kBits == 4) {
      cells = _mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    } else {
      long long both;
      __builtin_memcpy(&both, p, sizeof(both));
      cells = _mm512_set1_epi64(both);
    }
    const Bits shifts = _mm512_and_si512(Counting(), SetBits(~(kBits - 1)));
    out[0] = _mm512_srlv_epi32(cells, shifts);
    out[1] = _mm512_srlv_epi32(cells, _mm512_add_epi32(shifts, SetBits(16)));
  }
  static Float FixSubnormals(Bits bits, uint32_t exponent, Float fraction, Float bias) {
    return _mm512_mask_fmsub_ps(fraction, _mm512_testn_epi32_mask(bits, SetBits(exponent)), Set(2),
                                bias);
  }
  static Float ToFloat(Bits x) { return _mm512_cvtepi32_ps(x); }
  static Bits LoadSignedBytes(const void* p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  template <int kBits>
  static Bits Spread(const void* p) {
    int low, high = 0;
    __builtin_memcpy(&low, p, 4);
    if constexpr (kBits == 4) __builtin_memcpy(&high, static_cast<const char*>(p) + 4, 4);
    const Bits cells = kBits == 4 ? _mm512_mask_set1_epi32(_mm512_set1_epi32(low), 0xff00, high)
                                  : _mm512_set1_epi32(low);
    return _mm512_srlv_epi32(
        cells, _mm512_and_si512(_mm512_mullo_epi32(Counting(), SetBits(kBits)), SetBits(31)));
  }

  static Float LoadBf16(const uint16_t* p) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
  static void StoreBf16(uint16_t* p, Float x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i high = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i cells =
        _mm512_mask_or_epi32(_mm512_srli_epi32(up, 16), nan, high, _mm512_set1_epi32(0x40));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(cells));
  }

 private:
  struct LargerLanes {
    __m512 operator()(__m512 a, __m512 b) const { return _mm512_max_ps(a, b); }
    __m256 operator()(__m256 a, __m256 b) const { return _mm256_max_ps(a, b); }
    __m128 operator()(__m128 a, __m128 b) const { return _mm_max_ps(a, b); }
  };

  template <int N, class Op>
  __attribute__((always_inline)) static __m128 ReduceFour(const Float* x, int first, Op op) {
    const auto row = [=](int i) { return x[first + i < N ? first + i : N - 1]; };
    const Float low = op(_mm512_unpacklo_ps(row(0), row(1)), _mm512_unpackhi_ps(row(0), row(1)));
    const Float high = op(_mm512_unpacklo_ps(row(2), row(3)), _mm512_unpackhi_ps(row(2), row(3)));
    const __m512d pairs[] = {_mm512_castps_pd(low), _mm512_castps_pd(high)};
    const Float quads = op(_mm512_castpd_ps(_mm512_unpacklo_pd(pairs[0], pairs[1])),
                           _mm512_castpd_ps(_mm512_unpackhi_pd(pairs[0], pairs[1])));
    const __m256 half = op(_mm512_castps512_ps256(quads), _mm512_extractf32x8_ps(quads, 1));
    return op(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  }
};

}  // namespace
}  // namespace ziggurat::cpu

// Sixteen lanes of f32 with AVX-512 F, BW, DQ, VL. The same operations as Simd8 (simd_avx2.h).
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace ziggurat::cpu {
namespace {

struct Simd16 {
  static constexpr int kLanes = 16;
  /// Accumulators that leave registers over for operands, of 32 there are.
  static constexpr int kAccumulators = 16;
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
  static float Largest(Float x) { return _mm512_reduce_max_ps(x); }

  static Bits LoadBits(const void* p) { return _mm512_loadu_si512(p); }
  static Bits LoadBits(const void* p, int cells) {
    return _mm512_maskz_loadu_epi32(static_cast<__mmask16>((1u << cells) - 1), p);
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
  // A permutation looks at the lowest 4 bits of an index alone: neither mask nor conversion.
  static Float Low4(Bits x) {
    return _mm512_permutexvar_ps(
        x, _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  }
  static Float Low2(Bits x) {
    return _mm512_permutexvar_ps(x, _mm512_setr_ps(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3));
  }
  static Bits Counting() {
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  }
  /// Entry `index` of 16; of an index the lowest 4 bits count.
  static Float Lookup(Float table, Bits index) { return _mm512_permutexvar_ps(index, table); }
  /// For each lane l the lowest 4 (2) bits of out[v] are the code of channel c of a row of 32:
  ///   4 bits  l = 4k + j,  c = 8j + 4v + k
  ///   2 bits  l = 2k + j,  c = 16j + 8v + k
  static void Spread32x4(const void* p, Bits* out) {
    const Bits cells = _mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    out[0] = _mm512_srlv_epi32(
        cells, _mm512_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
    out[1] = _mm512_srlv_epi32(
        cells, _mm512_setr_epi32(16, 16, 16, 16, 20, 20, 20, 20, 24, 24, 24, 24, 28, 28, 28, 28));
  }
  static void Spread32x2(const void* p, Bits* out) {
    long long cells;
    __builtin_memcpy(&cells, p, 8);
    const Bits all = _mm512_set1_epi64(cells);
    out[0] = _mm512_srlv_epi32(
        all, _mm512_setr_epi32(0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14));
    out[1] = _mm512_srlv_epi32(
        all, _mm512_setr_epi32(16, 16, 18, 18, 20, 20, 22, 22, 24, 24, 26, 26, 28, 28, 30, 30));
  }
  static Float FixSubnormals(Bits bits, uint32_t exponent, Float fraction, Float bias) {
    return _mm512_mask_fmsub_ps(fraction, _mm512_testn_epi32_mask(bits, SetBits(exponent)), Set(2),
                                bias);
  }
  static Float ToFloat(Bits x) { return _mm512_cvtepi32_ps(x); }
  static Bits LoadSignedBytes(const void* p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  static Bits Spread4(const void* p) {
    int low, high;
    __builtin_memcpy(&low, p, 4);
    __builtin_memcpy(&high, static_cast<const char*>(p) + 4, 4);
    const Bits cells = _mm512_mask_set1_epi32(_mm512_set1_epi32(low), 0xff00, high);
    return _mm512_srlv_epi32(
        cells, _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28));
  }
  static Bits Spread2(const void* p) {
    int cell;
    __builtin_memcpy(&cell, p, 4);
    return _mm512_srlv_epi32(
        _mm512_set1_epi32(cell),
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30));
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
};

}  // namespace
}  // namespace ziggurat::cpu

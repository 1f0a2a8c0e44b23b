// Numbers cut into two digits of 8 bits, for products of bytes.
//
// VPDPBUSD and AMX's TDPBSUD multiply unsigned bytes with signed ones and add up four neighbouring
// products in 32 bits. Codes of int4 and int2 are such unsigned bytes as they are. The other
// factor, a query or a weight times the scale of a group, becomes two signed digits: 16 bits of a
// bound of those that are cut together. That is less than f32 has and more than the bf16 that a
// query comes from, so this is for models of bf16.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "attention/cpu/kernels.h"
#include "attention/cpu/simd_avx512.h"
#include "attention/cpu/vector_math.h"

namespace ziggurat::cpu {
namespace {

/// Of four rows of numbers: each as step * (256 * high + low), both digits signed bytes.
struct FixedPoint {
  __m128 step;
  /// Added to a number, leaves its high digit in byte 1 and its low digit + 128 in byte 0.
  __m128 shift;

  /// Of numbers up to `most`. Where that is not finite the step is NaN: what the digits are is
  /// chance then, and must not pass for a number, not even for minus infinity.
  static FixedPoint UpTo(__m128 most) {
    // A number and 128 steps are at most 2^15 of them, the step being a power of two.
    const __m128 bound =
        _mm_mul_ps(_mm_max_ps(_mm_set1_ps(1e-30f), most), _mm_set1_ps(32768.0f / 32639));
    const __m128 power =
        _mm_castsi128_ps(_mm_and_si128(_mm_castps_si128(bound), _mm_set1_epi32(0x7f800000)));
    const __m128 none = _mm_sub_ps(most, most);  // 0, or NaN
    const __m128 step = _mm_add_ps(_mm_mul_ps(power, _mm_set1_ps(0x1p-14f)), none);
    // From 2^23 steps on the lowest bit of an f32 is a step; half as much again keeps it so for
    // negative numbers.
    return {step, _mm_mul_ps(step, _mm_set1_ps(0x1.8p23f + 128))};
  }
};

/// The larger absolute value of each lane.
inline __m512 LargestAbsolute(__m512 a, __m512 b) { return _mm512_range_ps(a, b, 0x0b); }

/// Where the bytes of 32 numbers' digits come from, the low digits and then the high ones: those of
/// a register of the first 16 numbers, a lane each, and then of one of the others.
struct DigitOrder {
  alignas(64) uint8_t from[64];

  /// number_of(k)  the number whose digits stand at place k
  template <class NumberOf>
  constexpr explicit DigitOrder(NumberOf number_of) : from() {
    for (int i = 0; i < 64; ++i) {
      const int number = number_of(i % 32);
      from[i] = static_cast<uint8_t>(number % 16 * 4 + number / 16 * 64 + i / 32);
    }
  }
};

/// The two digits of some rows of numbers: row 2i has the low digits of numbers i, row 2i + 1 the
/// high ones. Of up to kMaxQueries rows; what is behind them may be anything.
struct Digits {
  static constexpr size_t kStride = kMaxHeadDim;
  static_assert(kStride >= kChunk);

  alignas(64) std::byte rows[2 * kMaxQueries][kStride];

  /// Numbers [at, at + 32) of row `i`.   first, second  16 each, plus FixedPoint::shift
  void Store(int i, int at, __m512 first, __m512 second, const DigitOrder& order) {
    const __m512i shifted = _mm512_permutex2var_epi8(
        _mm512_castps_si512(first), _mm512_load_si512(order.from), _mm512_castps_si512(second));
    const __m512i low_digits = _mm512_zextsi256_si512(_mm256_set1_epi8(-128));
    const __m512i bytes = _mm512_xor_si512(shifted, low_digits);
    const auto to = [&](int row) { return reinterpret_cast<__m256i*>(&rows[row][at]); };
    _mm256_store_si256(to(2 * i), _mm512_castsi512_si256(bytes));
    _mm256_store_si256(to(2 * i + 1), _mm512_extracti64x4_epi64(bytes, 1));
  }
  /// The same of 32 zeros.
  void StoreZeros(int i, int at) {
    __builtin_memset(&rows[2 * i][at], 0, 32);
    __builtin_memset(&rows[2 * i + 1][at], 0, 32);
  }
};

/// Of some rows of digits.
struct DigitScales {
  float step[kMaxQueries];
  float bias[kMaxQueries];
};

/// What the sums of both digits of some numbers are together.
inline __m512 DigitSum(__m512i low, __m512i high) {
  return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high, 8), low));
}

/// The sub-block of a kernel for 8, 4, 3, 2 or 1 queries that has room for so many, 8 at most.
constexpr int RoomySubBlock(int queries) { return queries > 4 ? kMaxQueries : queries; }

/// The same scale and zero for all.
struct ConstantScales {
  float zero;

  static __m512 Scale(int /*i*/) { return _mm512_set1_ps(1); }
  __m512 Zero(int /*i*/) const { return _mm512_set1_ps(zero); }
};

/// What some rows of numbers are cut into digits by.
struct FixedRows {
  alignas(16) float shift[kMaxQueries];
  alignas(16) float step[kMaxQueries];

  /// For rows [i, i + 4), as FixedPoint::UpTo.
  void SetFour(int i, __m128 most) {
    const FixedPoint fixed = FixedPoint::UpTo(most);
    _mm_store_ps(shift + i, fixed.shift);
    _mm_store_ps(step + i, fixed.step);
  }
};

/// For x[i] * scales, as CutIntoDigits has them.
template <int NQ, class Scales>
inline FixedRows FixedForProducts(int rows, const float* x, size_t stride, const Scales& scales,
                                  int count) {
  __m512 most[NQ];
#pragma GCC unroll 8
  for (int i = 0; i < NQ; ++i) most[i] = _mm512_setzero_ps();
  for (int c = 0; c < count; c += 16) {
    const __m512 scale = scales.Scale(c);
#pragma GCC unroll 8
    for (int i = 0; i < NQ; ++i) {
      const __m512 one = _mm512_loadu_ps(x + Smaller(i, rows - 1) * stride + c);
      most[i] = LargestAbsolute(most[i], _mm512_mul_ps(one, scale));
    }
  }
  FixedRows fixed;
#pragma GCC unroll 2
  for (int i = 0; i < NQ; i += 4) fixed.SetFour(i, Simd16::LargestOfEach<NQ>(most, i));
  return fixed;
}

/// Digits of x[i] * scales for `rows` <= NQ rows of x; those behind them are made of the last one.
/// The sum over digits times codes, times `step`, plus `bias`, is factor * sum over x[i] * (scales
/// * codes + zeros).
///   x       rows `stride` apart
///   scales  Scale(c) and Zero(c): those from c on, a multiple of 16; up to a multiple of 32 behind
///           `count` scales or x are 0
///   fixed   of numbers up to a bound that no x[i] * scales exceeds: 16 bits of it are kept
template <int NQ, class Scales>
inline void CutIntoDigits(int rows, const float* x, size_t stride, const Scales& scales, int count,
                          const FixedRows& fixed, float factor, const DigitOrder& order,
                          Digits* digits, DigitScales* out) {
  const float* of[NQ];
  __m512 shift[NQ], sum[NQ];
#pragma GCC unroll 8
  for (int i = 0; i < NQ; ++i) {
    of[i] = x + Smaller(i, rows - 1) * stride;
    shift[i] = _mm512_set1_ps(fixed.shift[i]);
    sum[i] = _mm512_setzero_ps();
  }
  int c = 0;
  for (; c < count; c += 32) {
    const __m512 low_scale = scales.Scale(c), high_scale = scales.Scale(c + 16);
    const __m512 low_zero = scales.Zero(c), high_zero = scales.Zero(c + 16);
#pragma GCC unroll 8
    for (int i = 0; i < NQ; ++i) {
      const __m512 low = _mm512_loadu_ps(of[i] + c), high = _mm512_loadu_ps(of[i] + c + 16);
      digits->Store(i, c, _mm512_fmadd_ps(low, low_scale, shift[i]),
                    _mm512_fmadd_ps(high, high_scale, shift[i]), order);
      sum[i] = _mm512_fmadd_ps(low, low_zero, sum[i]);
      sum[i] = _mm512_fmadd_ps(high, high_zero, sum[i]);
    }
  }
  if (c % 64 != 0) {
    for (int i = 0; i < NQ; ++i) digits->StoreZeros(i, c);
  }
  const __m128 factors = _mm_set1_ps(factor);
#pragma GCC unroll 2
  for (int i = 0; i < NQ; i += 4) {
    _mm_storeu_ps(out->step + i, _mm_mul_ps(_mm_load_ps(fixed.step + i), factors));
    _mm_storeu_ps(out->bias + i, _mm_mul_ps(Simd16::SumOfEach<NQ>(sum, i), factors));
  }
}

// ---- Products ----------------------------------------------------------------------------------
//
// A Product multiplies digits with *rows of codes*: 2 x 16 columns of four codes each, whose four
// numbers stand side by side in a row of digits.
//
//   Registers(queries)
//              what must live in this thread meanwhile, for sub-blocks of so many queries at most
//   StayAwake()
//              called now and then while there is nothing to multiply
//   Sums<Rows, Sink>(queries)
//              the products of a sub-block of so many queries with what a head holds of a chunk:
//     Add(digits, rows, sink)
//              sink(v, i, sum) is told the sums over all rows of codes for number row i and the 16
//              columns v, now or later. The digits must stay until the next ones are added.
//     Finish() tells what was not told yet.
//
// Rows come in *granules* of kUnits, of which one is `unit`: those of a granule are read at once,
// by whom that suits, and are added one after the other from unit 0 on.
//
//   kMostRows  rows of codes of one, at most
//   num_rows() the rows of codes that count; digits are 0 for those that come after them, up to a
//              multiple of 64 numbers
//   ForEach<kTaken, kFetches>(use)
//              calls use(u, row, k, first, second) with both vectors of row + k, row after row, for
//              units [unit, unit + kTaken) of the granule. row % 16 + k < 16; k is known when
//              inlined. Fetches what is ahead, if it shall: once for a granule and a sub-block of
//              queries.

}  // namespace
}  // namespace ziggurat::cpu

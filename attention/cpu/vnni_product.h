// Digits times codes (digits.h) by VPDPBUSD.
#pragma once

#include "attention/cpu/digits.h"
#include "attention/cpu/score_tiles.h"

namespace ziggurat::cpu {
namespace {

struct VnniProduct {
  struct Registers {
    explicit Registers(int /*queries*/) {}
  };

  using One = VnniProduct;

  static void StayAwake() {}

  static void Multiply(int queries, const Digits& digits, const CodeTilePair* pairs, int rows,
                       DigitSums* sums) {
    if (queries > 4) {
      AddUp<4>(digits, 0, pairs, rows, sums);
      AddUp<4>(digits, 8, pairs, rows, sums);
    } else {
      ForSubBlock(queries, [&]<int NQ>() {
        if constexpr (NQ <= 4) AddUp<NQ>(digits, 0, pairs, rows, sums);
      });
    }
  }

 private:
  /// Of NQ queries, whose digits begin with row `first`. Not inlined, so that all sums stay in
  /// registers.
  template <int NQ>
  __attribute__((noinline)) static void AddUp(const Digits& digits, int first,
                                              const CodeTilePair* pairs, int rows,
                                              DigitSums* sums) {
    // Enough independent sums to hide the latency of a product.
    constexpr int kRows = 2 * NQ, kSums = NQ == 1 ? 2 : 1;
    __m512i sum[kSums][kRows][2];
#pragma GCC unroll 2
    for (int u = 0; u < kSums; ++u) {
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) sum[u][i][0] = sum[u][i][1] = _mm512_setzero_si512();
    }
    const std::byte* factors = digits.rows[first];
    for (; rows > 0; rows -= kCodeTileRows, ++pairs) {
      const std::byte* codes = pairs->codes[0][0];
      for (int row = 0; row < Smaller(rows, kCodeTileRows); row += kSums) {
#pragma GCC unroll 2
        for (int u = 0; u < kSums; ++u, codes += kCodeRowBytes, factors += 4) {
          const __m512i first_codes = _mm512_load_si512(codes);
          const __m512i second_codes = _mm512_load_si512(codes + sizeof(pairs->codes[0]));
#pragma GCC unroll 8
          for (int i = 0; i < kRows; ++i) {
            int four;
            __builtin_memcpy(&four, factors + i * Digits::kStride, 4);
            const __m512i factor = _mm512_set1_epi32(four);
            sum[u][i][0] = AddProducts(sum[u][i][0], first_codes, factor);
            sum[u][i][1] = AddProducts(sum[u][i][1], second_codes, factor);
          }
        }
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        if constexpr (kSums == 2) sum[0][i][v] = _mm512_add_epi32(sum[0][i][v], sum[1][i][v]);
        _mm512_store_si512(sums->of[v][first + i], sum[0][i][v]);
      }
    }
  }

  /// sum + codes . digits of each lane. In assembler, since GCC 12 copies sums about.
  static __m512i AddProducts(__m512i sum, __m512i codes, __m512i digits) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(digits));
    return sum;
  }
};

}  // namespace
}  // namespace ziggurat::cpu

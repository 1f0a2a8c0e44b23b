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
    ForSubBlock(RoomySubBlock(queries), [&]<int NQ>() {
      if constexpr (NQ > 4) {
        MultiplyTiles<NQ, 0, 1>(digits, pairs, rows, sums);
        MultiplyTiles<NQ, 1, 1>(digits, pairs, rows, sums);
      } else {
        MultiplyTiles<NQ, 0, 2>(digits, pairs, rows, sums);
      }
    });
  }

 private:
  /// Of kCount tiles of each pair from kFirst on.
  template <int NQ, int kFirst, int kCount>
  static void MultiplyTiles(const Digits& digits, const CodeTilePair* pairs, int rows,
                            DigitSums* sums) {
    // Enough independent sums to hide the latency of a product.
    constexpr int kRows = 2 * NQ, kSums = NQ == 1 ? 2 : 1;
    __m512i sum[kSums][kRows][kCount];
#pragma GCC unroll 2
    for (int u = 0; u < kSums; ++u) {
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
        for (int v = 0; v < kCount; ++v) sum[u][i][v] = _mm512_setzero_si512();
      }
    }
    const auto add_row = [&](int row, int u) __attribute__((always_inline)) {
      const CodeTilePair& pair = pairs[row / kCodeTileRows];
#pragma GCC unroll 2
      for (int v = 0; v < kCount; ++v) {
        const __m512i codes = _mm512_load_si512(pair.codes[kFirst + v][row % kCodeTileRows]);
#pragma GCC unroll 16
        for (int i = 0; i < kRows; ++i) {
          sum[u][i][v] = AddProducts(sum[u][i][v], codes, &digits.rows[i][row * 4]);
        }
      }
    };
    int row = 0;
    for (; row + kSums <= rows; row += kSums) {
#pragma GCC unroll 2
      for (int u = 0; u < kSums; ++u) add_row(row + u, u);
    }
    for (; row < rows; ++row) add_row(row, 0);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (int v = 0; v < kCount; ++v) {
        if constexpr (kSums == 2) sum[0][i][v] = _mm512_add_epi32(sum[0][i][v], sum[1][i][v]);
        _mm512_store_si512(sums->of[kFirst + v][i], sum[0][i][v]);
      }
    }
  }

  /// sum + codes . the same four digits for each lane. In assembler, since GCC 12 copies sums about
  /// and has no operand in memory for the intrinsic.
  static __m512i AddProducts(__m512i sum, __m512i codes, const std::byte* digits) {
    asm("vpdpbusd %2%{1to16%}, %1, %0"
        : "+v"(sum)
        : "v"(codes), "m"(*reinterpret_cast<const int*>(digits)));
    return sum;
  }
};

}  // namespace
}  // namespace ziggurat::cpu

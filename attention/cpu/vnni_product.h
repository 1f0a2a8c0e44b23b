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

  static void StayAwake() {}

  /// Codes are multiplied as they are unpacked.
  template <class Rows, class Sink>
  class Sums {
   public:
    explicit Sums(int queries) : queries_(queries) {}

    void Add(const Digits& digits, const Rows& rows, const Sink& sink) {
      for (int i = 0; i < queries_; i += kAtOnce) {
        ForSubBlock(Smaller(kAtOnce, queries_ - i), [&]<int NQ>() {
          if constexpr (NQ <= kAtOnce) {
            if (i == 0 && rows.unit == 0) {
              AddUp<NQ, /*kFetches=*/true>(digits, i, rows, sink);
            } else {
              AddUp<NQ, /*kFetches=*/false>(digits, i, rows, sink);
            }
          }
        });
      }
    }
    void Finish() {}

   private:
    static constexpr int kAtOnce = 4;  // queries whose sums stay in registers

    /// Of queries [i, i + NQ). Not inlined, so that all sums stay in registers.
    template <int NQ, bool kFetches>
    __attribute__((noinline)) static void AddUp(const Digits& digits, int i, const Rows& rows,
                                                const Sink& sink) {
      // Enough independent sums to hide the latency of a product.
      constexpr int kDigits = 2 * NQ, kSums = NQ == 1 ? 2 : 1;
      __m512i sum[kSums][kDigits][2];
#pragma GCC unroll 2
      for (int u = 0; u < kSums; ++u) {
#pragma GCC unroll 8
        for (int d = 0; d < kDigits; ++d) sum[u][d][0] = sum[u][d][1] = _mm512_setzero_si512();
      }
      const std::byte* const factors = digits.rows[2 * i];
      rows.template ForEach<1, kFetches>([&](int /*unit*/, int row, int k, __m512i first,
                                             __m512i second) __attribute__((always_inline)) {
#pragma GCC unroll 8
        for (int d = 0; d < kDigits; ++d) {
          int four;
          __builtin_memcpy(&four, factors + (row + k) * 4 + d * Digits::kStride, 4);
          const __m512i factor = _mm512_set1_epi32(four);
          sum[k % kSums][d][0] = AddProducts(sum[k % kSums][d][0], first, factor);
          sum[k % kSums][d][1] = AddProducts(sum[k % kSums][d][1], second, factor);
        }
      });
#pragma GCC unroll 4
      for (int q = 0; q < NQ; ++q) {
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          __m512i low = sum[0][2 * q][v], high = sum[0][2 * q + 1][v];
          if constexpr (kSums == 2) {
            low = _mm512_add_epi32(low, sum[1][2 * q][v]);
            high = _mm512_add_epi32(high, sum[1][2 * q + 1][v]);
          }
          sink(v, i + q, DigitSum(low, high));
        }
      }
    }

    int queries_;
  };

 private:
  /// sum + codes . digits of each lane. In assembler, since GCC 12 copies sums about.
  static __m512i AddProducts(__m512i sum, __m512i codes, __m512i digits) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(digits));
    return sum;
  }
};

}  // namespace
}  // namespace ziggurat::cpu

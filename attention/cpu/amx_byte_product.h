// Digits times codes (digits.h) on tile registers.
#pragma once

#include "attention/cpu/amx_tiles.h"
#include "attention/cpu/digits.h"
#include "attention/cpu/vector_math.h"

namespace ziggurat::cpu {
namespace {

class TileByteProduct {
  struct CodeTilePair {
    alignas(64) std::byte codes[2][kTileRows][kTileRowBytes];
  };

  struct DigitSums {
    alignas(64) int of[2][2 * kMaxQueries][16];

    __m512 Of(int v, int i) const {
      return DigitSum(_mm512_load_si512(of[v][2 * i]), _mm512_load_si512(of[v][2 * i + 1]));
    }
  };

 public:
  /// C in 0 and 1, B in 2 and 3, A in 4: as many rows of A and C as a sub-block of queries has
  /// digits. 5 and 6 are to stay awake.
  struct Registers : TileRegisters {
    explicit Registers(int queries) : Registers(Shape{2 * Smaller(queries, kMaxQueries), 64}) {}

   private:
    explicit Registers(Shape digits)
        : TileRegisters({digits, digits, {16, 64}, {16, 64}, digits, {1, 64}, {1, 64}, {}}) {}
  };

  static void StayAwake() { KeepTilesAwake<5, 6, 2>(); }

  /// Codes are unpacked into tiles, and multiplied when the next ones are there: a tile is not
  /// loaded before what was stored has arrived in the cache. Sums are read one product later, for
  /// the same reason, and not later still: they would push other things out of the first cache.
  template <class Rows, class Sink>
  class Sums {
   public:
    explicit Sums(int queries) : queries_(queries) {}

    void Add(const Digits& digits, const Rows& rows, const Sink& sink) {
      Pairs& granule = granules_[num_sums_ / Rows::kUnits % 2];
      if (rows.unit == 0) Unpack(rows, &granule);
      MultiplyLast();
      if (num_sums_ >= 2) Tell(num_sums_ - 2);
      last_ = {&digits, granule[rows.unit], rows.num_rows()};
      sinks_[num_sums_++ % 2] = sink;
    }
    void Finish() {
      MultiplyLast();
      for (int n = Larger(0, num_sums_ - 2); n < num_sums_; ++n) Tell(n);
    }

   private:
    using Pairs = CodeTilePair[Rows::kUnits][(Rows::kMostRows + kTileRows - 1) / kTileRows];
    /// What was added last, if that is still to be multiplied.
    struct Factors {
      const Digits* digits = nullptr;
      const CodeTilePair* pairs = nullptr;
      int rows = 0;
    };

    /// Not inlined, so that its pointers stay in registers.
    __attribute__((noinline)) static void Unpack(const Rows& rows, Pairs* to) {
      rows.template ForEach<Rows::kUnits, /*kFetches=*/true>([to](
          int unit, int row, int k, __m512i first, __m512i second) __attribute__((always_inline)) {
        auto& codes = (*to)[unit][row / kTileRows].codes;
        const size_t at = static_cast<size_t>(k) * kTileRowBytes;  // known here
        _mm512_store_si512(codes[0][row % kTileRows] + at, first);
        _mm512_store_si512(codes[1][row % kTileRows] + at, second);
      });
    }

    void Tell(int n) {
      for (int i = 0; i < queries_; ++i) {
        for (int v = 0; v < 2; ++v) sinks_[n % 2](v, i, sums_[n % 2].Of(v, i));
      }
    }

    /// Sums of no query are made too, and ignored.
    void MultiplyLast() {
      if (last_.digits == nullptr) return;
      auto& sums = sums_[(num_sums_ - 1) % 2].of;
      ZeroTile<0>();
      ZeroTile<1>();
      const std::byte* a = last_.digits->rows[0];
      for (int row = 0; row < last_.rows; row += kTileRows, ++last_.pairs, a += kTileRowBytes) {
        LoadTile<4>(a, Digits::kStride);
        LoadTile<2>(last_.pairs->codes[0], kTileRowBytes);
        MultiplyByteTiles<0, 4, 2>();
        LoadTile<3>(last_.pairs->codes[1], kTileRowBytes);
        MultiplyByteTiles<1, 4, 3>();
      }
      StoreTile<0>(sums[0], sizeof(sums[0][0]));
      StoreTile<1>(sums[1], sizeof(sums[1][0]));
      last_.digits = nullptr;
    }

    int queries_;
    Pairs granules_[2];
    Factors last_;
    int num_sums_ = 0;
    DigitSums sums_[2];
    Sink sinks_[2];
  };
};
static_assert(2 * kMaxQueries == kTileRows && sizeof(int) * 16 == kTileRowBytes);

}  // namespace
}  // namespace ziggurat::cpu

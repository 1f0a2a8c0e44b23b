// Digits times codes (digits.h) on tile registers.
#pragma once

#include "attention/cpu/amx_tiles.h"
#include "attention/cpu/digits.h"
#include "attention/cpu/vector_math.h"
#include "attention/cpu/vnni_product.h"

namespace ziggurat::cpu {
namespace {

struct TileByteProduct {
  /// C in 0 and 1, B in 2 and 3, A in 4: as many rows of A and C as a sub-block of queries has
  /// digits. 5 and 6 are to stay awake.
  struct Registers : TileRegisters {
    explicit Registers(int queries) : Registers(Shape{2 * Smaller(queries, kMaxQueries), 64}) {}

   private:
    explicit Registers(Shape digits)
        : TileRegisters({digits, digits, {16, 64}, {16, 64}, digits, {1, 64}, {1, 64}, {}}) {}
  };

  /// For one query, which is too little for tiles.
  using One = VnniProduct;

  static void StayAwake() { KeepTilesAwake<5, 6, 2>(); }

  /// Those of no query are multiplied too, and ignored.
  static void Multiply(int /*queries*/, const Digits& digits, const CodeTilePair* pairs, int rows,
                       DigitSums* sums) {
    ZeroTile<0>();
    ZeroTile<1>();
    const std::byte* a = digits.rows[0];
    for (int row = 0; row < rows; row += kCodeTileRows, ++pairs, a += kTileRowBytes) {
      LoadTile<4>(a, Digits::kStride);
      LoadTile<2>(pairs->codes[0], kCodeRowBytes);
      MultiplyByteTiles<0, 4, 2>();
      LoadTile<3>(pairs->codes[1], kCodeRowBytes);
      MultiplyByteTiles<1, 4, 3>();
    }
    StoreTile<0>(sums->of[0], sizeof(sums->of[0][0]));
    StoreTile<1>(sums->of[1], sizeof(sums->of[1][0]));
  }
};
static_assert(2 * kMaxQueries == kTileRows && sizeof(int) * 16 == kTileRowBytes);

}  // namespace
}  // namespace ziggurat::cpu

// Intel's tile registers (AMX): eight of up to 16 rows of 64 bytes, and a product of two of them
// that adds to a third. For translation units compiled with AVX512-BF16.
//
// What a product of bf16 takes: A rows of the one side, two neighbouring numbers in each cell of 4
// bytes; B row p with numbers 2p and 2p+1 of all columns of the other side, column by column. That
// is how blocks store keys and how weights are packed. C is f32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/cpu/tile_instructions.h"

namespace ziggurat::cpu {
namespace {

constexpr int kTileRows = 16;
constexpr size_t kTileRowBytes = 64;
constexpr size_t kTileBytes = kTileRows * kTileRowBytes;
/// Numbers of a row of bf16: what one product adds up.
constexpr int kTileDepth = 32;

/// The shapes of this thread's tile registers, as long as this lives; registers without a shape are
/// not to be used. Costs some hundred cycles. Only one at a time: the end of one is that of all.
class TileRegisters {
 public:
  struct Shape {
    int rows = 0;
    int row_bytes = 0;
  };
  explicit TileRegisters(const Shape (&shapes)[8]) {
    TileConfiguration configuration = {};
    configuration.palette = 1;
    for (int i = 0; i < 8; ++i) {
      configuration.row_bytes[i] = static_cast<uint16_t>(shapes[i].row_bytes);
      configuration.rows[i] = static_cast<uint8_t>(shapes[i].rows);
    }
    ConfigureTiles(configuration);
  }
  ~TileRegisters() { ReleaseTiles(); }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
};

/// All eight registers whole.
class WholeTiles : TileRegisters {
 public:
  WholeTiles()
      : TileRegisters(
            {{16, 64}, {16, 64}, {16, 64}, {16, 64}, {16, 64}, {16, 64}, {16, 64}, {16, 64}}) {}
};

// A core that neither multiplies nor stores tiles for about half a microsecond lets the units for
// it sleep, and the next product waits 0.3 us for them, in which memory delivers ten tokens of a KV
// head. Where products are rare, one of as little as a row keeps them awake.

/// Multiplies kA with kB into kC; kA and kC have one row, and what comes out is of no use.
template <int kC, int kA, int kB>
inline void KeepTilesAwake() {
  alignas(64) std::byte row[kTileRowBytes];
  MultiplyTiles<kC, kA, kB>();
  StoreTile<kC>(row, kTileRowBytes);
}

}  // namespace
}  // namespace ziggurat::cpu

// The instructions of tile registers, for CPUs without: kernels_amx.cc is compiled with this file
// in the place of the other one of this name (tests/attention/CMakeLists.txt).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace ziggurat::cpu {
namespace {

struct TileConfiguration {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

struct EmulatedTile {
  int rows = 0;
  int row_bytes = 0;
  unsigned char cells[16][64];

  template <class T>
  T At(int row, int i) const {
    T x;
    std::memcpy(&x, &cells[row][i * sizeof(T)], sizeof(T));
    return x;
  }
};
thread_local EmulatedTile emulated_tiles[8];

inline void CheckTile(bool is_right, const char* what) {
  if (is_right) return;
  std::fprintf(stderr, "emulated tiles: %s\n", what);
  std::abort();
}
template <int kTile>
inline EmulatedTile& ShapedTile() {
  CheckTile(emulated_tiles[kTile].rows > 0, "a register without a shape is used");
  return emulated_tiles[kTile];
}

inline void ConfigureTiles(const TileConfiguration& configuration) {
  CheckTile(configuration.palette == 1, "the palette is 1");
  for (int i = 0; i < 8; ++i) {
    CheckTile(emulated_tiles[i].rows == 0, "shapes are given while there are others");
    CheckTile(configuration.rows[i] <= 16 && configuration.row_bytes[i] <= 64, "a tile is larger");
    emulated_tiles[i] = {configuration.rows[i], configuration.row_bytes[i], {}};
  }
}
inline void ReleaseTiles() {
  for (EmulatedTile& tile : emulated_tiles) tile = {};
}
template <int kTile>
inline void ZeroTile() {
  std::memset(ShapedTile<kTile>().cells, 0, sizeof(EmulatedTile::cells));
}
template <int kTile>
inline void LoadTile(const void* rows, size_t stride) {
  EmulatedTile& tile = ShapedTile<kTile>();
  for (int r = 0; r < tile.rows; ++r) {
    std::memcpy(tile.cells[r], static_cast<const char*>(rows) + r * stride, tile.row_bytes);
  }
}
template <int kTile>
inline void StoreTile(void* rows, size_t stride) {
  const EmulatedTile& tile = ShapedTile<kTile>();
  for (int r = 0; r < tile.rows; ++r) {
    std::memcpy(static_cast<char*>(rows) + r * stride, tile.cells[r], tile.row_bytes);
  }
}

/// C += A B: of each cell of A with the one that stands in its place in a column of B.
template <class Sum, int kC, int kA, int kB, class Product>
inline void MultiplyEmulated(Product product) {
  EmulatedTile& c = ShapedTile<kC>();
  const EmulatedTile &a = ShapedTile<kA>(), &b = ShapedTile<kB>();
  CheckTile(c.rows == a.rows && c.row_bytes == b.row_bytes && a.row_bytes == 4 * b.rows,
            "the shapes of a product do not fit");
  for (int row = 0; row < c.rows; ++row) {
    for (int column = 0; column < c.row_bytes / 4; ++column) {
      Sum sum = c.At<Sum>(row, column);
      for (int cell = 0; cell < b.rows; ++cell) product(a, b, row, column, cell, &sum);
      std::memcpy(&c.cells[row][4 * column], &sum, sizeof(sum));
    }
  }
}
inline float EmulatedBf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float x;
  std::memcpy(&x, &wide, sizeof(x));
  return x;
}
template <int kC, int kA, int kB>
inline void MultiplyTiles() {
  MultiplyEmulated<float, kC, kA, kB>(
      [](const EmulatedTile& a, const EmulatedTile& b, int row, int column, int cell, float* sum) {
        for (int j = 0; j < 2; ++j) {
          *sum += EmulatedBf16(a.At<uint16_t>(row, 2 * cell + j)) *
                  EmulatedBf16(b.At<uint16_t>(cell, 2 * column + j));
        }
      });
}
template <int kC, int kA, int kB>
inline void MultiplyByteTiles() {
  MultiplyEmulated<int, kC, kA, kB>(
      [](const EmulatedTile& a, const EmulatedTile& b, int row, int column, int cell, int* sum) {
        for (int j = 0; j < 4; ++j) {
          *sum += a.At<int8_t>(row, 4 * cell + j) * b.At<uint8_t>(cell, 4 * column + j);
        }
      });
}

}  // namespace
}  // namespace ziggurat::cpu

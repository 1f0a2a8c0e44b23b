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
inline EmulatedTile& ShapedTile(int tile) {
  CheckTile(emulated_tiles[tile].rows > 0, "a register without a shape is used");
  return emulated_tiles[tile];
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

// What the instructions do. They stand in loops that are unrolled, for each size: as calls they
// take a minute less to compile.

[[gnu::noinline]] void ZeroTile(int tile) {
  std::memset(ShapedTile(tile).cells, 0, sizeof(EmulatedTile::cells));
}
[[gnu::noinline]] void LoadTile(int to, const void* rows, size_t stride) {
  EmulatedTile& tile = ShapedTile(to);
  for (int r = 0; r < tile.rows; ++r) {
    std::memcpy(tile.cells[r], static_cast<const char*>(rows) + r * stride, tile.row_bytes);
  }
}
[[gnu::noinline]] void StoreTile(int from, void* rows, size_t stride) {
  const EmulatedTile& tile = ShapedTile(from);
  for (int r = 0; r < tile.rows; ++r) {
    std::memcpy(static_cast<char*>(rows) + r * stride, tile.cells[r], tile.row_bytes);
  }
}

/// C += A B: of each cell of A with the one that stands in its place in a column of B.
template <class Sum, class Product>
inline void MultiplyEmulated(int of_c, int of_a, int of_b, Product product) {
  EmulatedTile& c = ShapedTile(of_c);
  const EmulatedTile &a = ShapedTile(of_a), &b = ShapedTile(of_b);
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
[[gnu::noinline]] void MultiplyTiles(int c, int a, int b) {
  MultiplyEmulated<float>(c, a, b,
                          [](const EmulatedTile& of_a, const EmulatedTile& of_b, int row,
                             int column, int cell, float* sum) {
                            for (int j = 0; j < 2; ++j) {
                              *sum += EmulatedBf16(of_a.At<uint16_t>(row, 2 * cell + j)) *
                                      EmulatedBf16(of_b.At<uint16_t>(cell, 2 * column + j));
                            }
                          });
}
[[gnu::noinline]] void MultiplyByteTiles(int c, int a, int b) {
  MultiplyEmulated<int>(c, a, b,
                        [](const EmulatedTile& of_a, const EmulatedTile& of_b, int row, int column,
                           int cell, int* sum) {
                          for (int j = 0; j < 4; ++j) {
                            *sum += of_a.At<int8_t>(row, 4 * cell + j) *
                                    of_b.At<uint8_t>(cell, 4 * column + j);
                          }
                        });
}

// ---- As kernels call them -----------------------------------------------------------------------

template <int kTile>
inline void ZeroTile() {
  ZeroTile(kTile);
}
template <int kTile>
inline void LoadTile(const void* rows, size_t stride) {
  LoadTile(kTile, rows, stride);
}
template <int kTile>
inline void StoreTile(void* rows, size_t stride) {
  StoreTile(kTile, rows, stride);
}
template <int kC, int kA, int kB>
inline void MultiplyTiles() {
  MultiplyTiles(kC, kA, kB);
}
template <int kC, int kA, int kB>
inline void MultiplyByteTiles() {
  MultiplyByteTiles(kC, kA, kB);
}

}  // namespace
}  // namespace ziggurat::cpu

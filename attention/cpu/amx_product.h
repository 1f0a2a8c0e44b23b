// ProductKernels on tile registers (amx_tiles.h): a tile of weights meets 16 rows of x at once, so
// that many rows cost what reading the weights costs.
#pragma once

#include "attention/cpu/amx_tiles.h"
#include "attention/cpu/product_kernel.h"
#include "attention/cpu/simd_avx512.h"

namespace ziggurat::cpu {
namespace {

static_assert(kMostBlockRows == kTileRows);
static_assert(kPanelOutputs * sizeof(float) == 4 * kTileRowBytes);  // four tiles of C

/// Inputs whose weights stay in the nearest caches while all of x meets them.
constexpr int kProductInputs = 256;
static_assert(kProductInputs % kTileDepth == 0);

inline size_t TileBlockFloats(int in_features) {
  const size_t tiles = (in_features + kTileDepth - 1) / kTileDepth;
  return tiles * kTileBytes / sizeof(float);
}

/// ProductKernels::pack: tiles of 16 rows by 32 inputs, one behind the other.
inline void PackProductTiles(const uint16_t* x, int count, int in_features, float* packed) {
  auto* const tiles = reinterpret_cast<std::byte*>(packed);
  for (int i = 0; i < count; ++i) {
    const auto* row = reinterpret_cast<const std::byte*>(x + static_cast<size_t>(i) * in_features);
    std::byte* to = tiles + i * kTileRowBytes;
    size_t left = size_t{2} * in_features;
    for (; left >= kTileRowBytes; left -= kTileRowBytes, row += kTileRowBytes, to += kTileBytes) {
      __builtin_memcpy(to, row, kTileRowBytes);
    }
    __builtin_memcpy(to, row, left);
  }
}

/// A tile of rows of x times all outputs of a panel.
///   tiles  C 0 to 3; A 4; B 5
///   ahead  kLines lines of it are fetched with every product
template <int kLines>
inline void AddTileRows(const std::byte* x, int steps, const std::byte* weights,
                        const std::byte* ahead, float* sums) {
  constexpr size_t kStride = sizeof(float) * kPanelOutputs;
  LoadTile<0>(sums, kStride);
  LoadTile<1>(sums + 16, kStride);
  LoadTile<2>(sums + 32, kStride);
  LoadTile<3>(sums + 48, kStride);
  const auto add = [&]<int kQuarter>() {
    Prefetch(ahead, kLines * 64);
    ahead += kLines * 64;
    LoadTile<5>(weights + kQuarter * kTileRowBytes, kPanelRowBytes);
    MultiplyTiles<kQuarter, 4, 5>();
  };
  for (int step = 0; step < steps; ++step, x += kTileBytes, weights += kTileRows * kPanelRowBytes) {
    LoadTile<4>(x, kTileRowBytes);
    add.template operator()<0>();
    add.template operator()<1>();
    add.template operator()<2>();
    add.template operator()<3>();
  }
  StoreTile<0>(sums, kStride);
  StoreTile<1>(sums + 16, kStride);
  StoreTile<2>(sums + 32, kStride);
  StoreTile<3>(sums + 48, kStride);
}

/// All of x times `steps` products' inputs of a panel.   x  the first tile of each block,
/// block_bytes apart
template <bool kFetchesFew>
inline void AddTileBlocks(const std::byte* x, size_t block_bytes, int blocks, int steps,
                          const std::byte* weights, float* sums) {
  const size_t bytes = static_cast<size_t>(steps) * kTileRows * kPanelRowBytes;
  const auto add = [&]<int kLines>(int count, size_t distance) __attribute__((always_inline)) {
    // What lies so far ahead is fetched meanwhile, with each block of x its share, or most of it.
    const std::byte* ahead = weights + distance;
    for (int i = 0; i < count; ++i) {
      AddTileRows<kLines>(x + i * block_bytes, steps, weights, ahead,
                          sums + i * kTileRows * kPanelOutputs);
      ahead += bytes / kTileRows * kLines;
    }
  };
  constexpr int kLinesOfOne = kFetchesFew ? 16 : 0, kLinesOfTwo = kFetchesFew ? 8 : 0;
  constexpr size_t kNearBytes = 16 << 10;  // for one block 5 to 8 % faster than what follows
  // A seventh faster where the compiler knows the number of blocks.
  if (blocks == 1) return add.template operator()<kLinesOfOne>(1, kNearBytes);
  if (blocks == 2) return add.template operator()<kLinesOfTwo>(2, bytes);
  if (blocks <= 4) return add.template operator()<4>(blocks, bytes);
  add.template operator()<2>(blocks, bytes);
}

/// ProductKernels::add. Where rows of x are few the hardware sees a stream of weights, and may run
/// ahead of it better than we do; but it may also fall to half the rate while others use the
/// memory. kFetchesFew: it is not left to the hardware.
template <bool kFetchesFew>
inline void AddTileProduct(const ProductJob& job) {
  const int rows = Smaller(kTileRows, job.count), blocks = (job.count + kTileRows - 1) / kTileRows;
  const size_t block_bytes = sizeof(float) * TileBlockFloats(job.in_features);
  const auto add = [&](int first, int steps) {
    const auto* x = reinterpret_cast<const std::byte*>(job.packed) +
                    static_cast<size_t>(first / kTileDepth) * kTileBytes;
    AddTileBlocks<kFetchesFew>(x, block_bytes, blocks, steps,
                               job.weights + static_cast<size_t>(first / 2) * kPanelRowBytes,
                               job.sums);
  };
  const auto registers = [rows](int inputs) {
    const TileRegisters::Shape c = {rows, 64}, a = {rows, 2 * inputs}, b = {inputs / 2, 64};
    return TileRegisters({c, c, c, c, a, b, {}, {}});
  };
  const int whole = job.in_features / kTileDepth * kTileDepth;
  if (whole > 0) {
    const TileRegisters tiles = registers(kTileDepth);
    for (int first = 0; first < whole; first += kProductInputs) {
      add(first, Smaller(kProductInputs, whole - first) / kTileDepth);
    }
  }
  if (whole < job.in_features) {
    const TileRegisters tiles = registers(job.in_features - whole);
    add(whole, 1);
  }
}

template <bool kFetchesFew>
constexpr ProductKernels MakeTileProductKernels() {
  return {.block_rows = kTileRows,
          .panels_at_once = 1,
          .block_floats = TileBlockFloats,
          .pack = PackProductTiles,
          .add = AddTileProduct<kFetchesFew>,
          .store = StoreProductRow<Simd16>};
}

}  // namespace
}  // namespace ziggurat::cpu

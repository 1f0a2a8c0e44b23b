// Attention that the keys of a prompt receive, on tensor cores: a block takes 64 keys, a warp
// sixteen of them, and goes through the queries in tiles, head by head. What the weights of a key
// add up to stays in registers until the end.
#include "attention/cuda/prompt_tiles.cuh"
#include "attention/cuda/statistics.h"

namespace ziggurat::cuda {

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

constexpr int kWarpsPerBlock = 4;
constexpr int kThreads = kWarpsPerBlock * kWarp;
constexpr int kKeys = kWarpsPerBlock * kRowsOfWarp;

/// Two stages of queries.
template <int kMaxDim>
constexpr size_t kSharedBytes = sizeof(uint16_t) * 2 * PromptTile<kMaxDim>::kSize;

/// A block for each tile of keys (x) and row of the result (y).
template <int kMaxDim>
__global__ void __launch_bounds__(kThreads) TileSums(DeviceShape shape, PromptTail tail, int begin,
                                                     int end, bool query_heads, float* sums) {
  using Tile = PromptTile<kMaxDim>;
  ZIGGURAT_SHARED_MEMORY(memory);
  auto* tiles = reinterpret_cast<uint16_t*>(memory);
  const int r = LaneOfThread() / 4, c = LaneOfThread() % 4;
  const int heads = query_heads ? 1 : shape.group_size();
  const int row = static_cast<int>(blockIdx.y), first_head = row * heads;
  const int key = begin + static_cast<int>(blockIdx.x) * kKeys;
  const int own_key = key + WarpOfThread() * kRowsOfWarp + r;  // and the one 8 further on
  // Queries before the first key see none of the tile. A query's token is its row and `earlier`.
  const int earlier = tail.n - tail.rows;
  const int first_query = max(0, key - earlier) / Tile::kRows * Tile::kRows;
  const int tiles_of_head = (tail.rows - first_query + Tile::kRows - 1) / Tile::kRows;
  const int count = heads * tiles_of_head;

  const auto head_of = [&](int i) { return first_head + i / tiles_of_head; };
  const auto query_of = [&](int i) { return first_query + i % tiles_of_head * Tile::kRows; };
  const auto tile_of = [&](int i) { return tiles + i % 2 * Tile::kSize; };
  AsyncCopies copies;
  const auto copy = [&](int i) {
    const PromptRows q{static_cast<const uint16_t*>(tail.q_rows), tail.rows, shape.num_q_heads,
                       head_of(i), shape.head_dim};
    Tile::template Copy<kThreads>(copies, q, query_of(i), tile_of(i));
  };

  uint32_t keys[kMaxDim / 16][4];
  LoadRows<kMaxDim>(PromptRows{static_cast<const uint16_t*>(tail.k), tail.n, shape.num_kv_heads,
                               first_head / shape.group_size(), shape.head_dim},
                    own_key - r, keys);
  const float scale = shape.scale * kLog2E;
  float own[2] = {};
  if (count > 0) copy(0);
  copies.Commit();
  for (int i = 0; i < count; ++i) {
    if (i + 1 < count) copy(i + 1);
    copies.Commit();  // empty at the end, so that the one before is always the last but one
    copies.Wait<1>();
    __syncthreads();
    float dots[Tile::kRows / 8][4];
    Tile::Multiply(keys, tile_of(i), dots);
    const float* lse = tail.lse + head_of(i);
    ZIGGURAT_UNROLL
    for (int n = 0; n < Tile::kRows / 8; ++n) {
      ZIGGURAT_UNROLL
      for (int odd = 0; odd < 2; ++odd) {
        const int query = query_of(i) + 8 * n + 2 * c + odd;
        if (query >= tail.rows) continue;
        const float off = lse[static_cast<size_t>(query) * shape.num_q_heads] * kLog2E;
        ZIGGURAT_UNROLL
        for (int half = 0; half < 2; ++half) {
          if (own_key + 8 * half > earlier + query) continue;
          own[half] += Exp2(dots[n][2 * half + odd] * scale - off);
        }
      }
    }
    __syncthreads();  // the tile was read
  }
  for (int half = 0; half < 2; ++half) {
    const float sum = RowSum(own[half]);
    const int at = own_key + 8 * half;
    if (c != 0 || at >= end) continue;
    sums[static_cast<size_t>(row) * (end - begin) + at - begin] = sum / static_cast<float>(heads);
  }
}

}  // namespace

// ---- Launchers ----------------------------------------------------------------------------------

void LaunchTensorColumnSums(const DeviceShape& shape, const PromptTail& tail, int begin, int end,
                            bool query_heads, float* sums, cudaStream_t stream) {
  const dim3 grid{static_cast<unsigned>(end - begin + kKeys - 1) / kKeys,
                  static_cast<unsigned>(query_heads ? shape.num_q_heads : shape.num_kv_heads)};
  WithMaxDim(shape.head_dim, [&](auto max_dim) {
    Launch(TileSums<max_dim()>, grid, dim3{kThreads}, kSharedBytes<max_dim()>, stream, shape, tail,
           begin, end, query_heads, sums);
  });
}

}  // namespace ziggurat::cuda

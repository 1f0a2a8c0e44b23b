// Attention of prompts on tensor cores, after FlashAttention-2 (Dao, 2023): a block takes 128
// queries of a head, a warp sixteen of them, and goes through the keys in tiles, of which the next
// is under way to shared memory while this one is computed. Scores stay in registers: what a lane
// holds of S = Q K^T is, rounded to bf16, what it must hold of P in O = P V.
#include "attention/cuda/prefill.h"
#include "attention/cuda/prompt_tiles.cuh"

namespace ziggurat::cuda {

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

constexpr int kWarpsPerBlock = 8;
constexpr int kThreads = kWarpsPerBlock * kWarp;
constexpr int kQueries = kWarpsPerBlock * kRowsOfWarp;

/// Two stages of keys and values.
template <int kMaxDim>
constexpr size_t kSharedBytes = sizeof(uint16_t) * 4 * PromptTile<kMaxDim>::kSize;

/// A block's queries of one head. Tokens are counted from the first of their sequence.
template <int kMaxDim>
struct QueryTile {
  using Tile = PromptTile<kMaxDim>;
  static constexpr int kTileKeys = Tile::kRows;

  const PromptRows q, k, v;
  uint16_t* const out;    ///< as q.x
  float* const lse;       ///< [tokens, heads of q]
  const float scale;      ///< of scores, for powers of two
  const int first;        ///< of the block's queries
  uint16_t* const tiles;  ///< shared memory

  const int lane = LaneOfThread();
  const int r = lane / 4;
  const int c = lane % 4;
  const int own_first = first + WarpOfThread() * kRowsOfWarp;  ///< of the warp's queries

  AsyncCopies copies = {};
  uint32_t queries[kMaxDim / 16][4] = {};
  float scores[kTileKeys / 8][4] = {};
  float mean[kMaxDim / 8][4] = {};
  // Of queries r and r + 8 of the warp. Powers and logarithms are of two.
  float highest[2] = {-INFINITY, -INFINITY};
  float sum[2] = {};  ///< this lane's share

  __device__ void Attend() {
    const int count = (min(first + kQueries, q.rows) - 1) / kTileKeys + 1;
    Copy(0);
    copies.Commit();
    LoadRows<kMaxDim>(q, own_first, queries);
    for (int i = 0; i < count; ++i) {
      if (i + 1 < count) Copy(i + 1);
      copies.Commit();  // empty at the end, so that the one before is always the last but one
      copies.Wait<1>();
      __syncthreads();
      if (i * kTileKeys < own_first + kRowsOfWarp) {
        Tile::Multiply(queries, KeysOf(i), scores);
        AddWeights(i * kTileKeys);
        MultiplyValues(KeysOf(i) + Tile::kSize);
      }
      __syncthreads();  // the tile was read
    }
    Store();
  }

  __device__ uint16_t* KeysOf(int tile) const { return tiles + tile % 2 * 2 * Tile::kSize; }

  __device__ void Copy(int tile) {
    Tile::template Copy<kThreads>(copies, k, tile * kTileKeys, KeysOf(tile));
    Tile::template Copy<kThreads>(copies, v, tile * kTileKeys, KeysOf(tile) + Tile::kSize);
  }

  /// Scores of keys from `key` on become weights relative to the highest so far.
  __device__ void AddWeights(int key) {
    if (key + kTileKeys - 1 > own_first) {
      ZIGGURAT_UNROLL
      for (int n = 0; n < kTileKeys / 8; ++n) {
        for (int i = 0; i < 4; ++i) {
          const bool is_later = key + 8 * n + 2 * c + i % 2 > own_first + r + i / 2 * 8;
          if (is_later) scores[n][i] = -INFINITY;
        }
      }
    }
    float top[2] = {highest[0], highest[1]};
    ZIGGURAT_UNROLL
    for (int n = 0; n < kTileKeys / 8; ++n) {
      ZIGGURAT_UNROLL
      for (int i = 0; i < 4; ++i) {
        scores[n][i] *= scale;
        top[i / 2] = fmaxf(top[i / 2], scores[n][i]);
      }
    }
    float shrink[2];
    ZIGGURAT_UNROLL
    for (int half = 0; half < 2; ++half) {
      top[half] = fmaxf(top[half], __shfl_xor_sync(kAllLanes, top[half], 1));
      top[half] = fmaxf(top[half], __shfl_xor_sync(kAllLanes, top[half], 2));
      shrink[half] = Exp2(highest[half] - top[half]);
      highest[half] = top[half];
      sum[half] *= shrink[half];
    }
    ZIGGURAT_UNROLL
    for (int n = 0; n < kTileKeys / 8; ++n) {
      ZIGGURAT_UNROLL
      for (int i = 0; i < 4; ++i) {
        scores[n][i] = Exp2(scores[n][i] - top[i / 2]);
        sum[i / 2] += scores[n][i];
      }
    }
    ZIGGURAT_UNROLL
    for (int n = 0; n < kMaxDim / 8; ++n) {
      for (int i = 0; i < 4; ++i) mean[n][i] *= shrink[i / 2];
    }
  }

  __device__ void MultiplyValues(const uint16_t* values) {
    const uint16_t* own_row = values + lane % 16 * Tile::kStride + lane / 16 * 8;
    ZIGGURAT_UNROLL
    for (int step = 0; step < kTileKeys / 16; ++step) {
      const float(&low)[4] = scores[2 * step];
      const float(&high)[4] = scores[2 * step + 1];
      const uint32_t weights[4] = {PackBf16(low[0], low[1]), PackBf16(low[2], low[3]),
                                   PackBf16(high[0], high[1]), PackBf16(high[2], high[3])};
      ZIGGURAT_UNROLL
      for (int n = 0; n < kMaxDim / 8; n += 2) {
        uint32_t b[4];
        LoadMatricesTransposed(own_row + step * 16 * Tile::kStride + n * 8, b);
        MultiplyAdd(weights, b[0], b[1], mean[n]);
        MultiplyAdd(weights, b[2], b[3], mean[n + 1]);
      }
    }
  }

  __device__ void Store() {
    ZIGGURAT_UNROLL
    for (int half = 0; half < 2; ++half) {
      sum[half] = RowSum(sum[half]);
      const int token = own_first + r + 8 * half;
      if (token >= q.rows) continue;
      const size_t row = static_cast<size_t>(token) * q.heads + q.head;
      const float share = 1 / sum[half];
      ZIGGURAT_UNROLL
      for (int n = 0; n < kMaxDim / 8; ++n) {
        if (8 * n >= q.dim) break;
        *reinterpret_cast<uint32_t*>(out + row * q.dim + 8 * n + 2 * c) =
            PackBf16(mean[n][2 * half] * share, mean[n][2 * half + 1] * share);
      }
      if (c == 0) lse[row] = (highest[half] + log2f(sum[half])) / kLog2E;
    }
  }
};

/// A block for each tile of queries (x; of a prompt, those with the most keys come first) and query
/// head (y).
template <int kMaxDim>
__global__ void __launch_bounds__(kThreads, kMaxDim <= 64 ? 2 : 1)
    AttendTiles(DeviceShape shape, PrefillTensors t, const int32_t* offsets, int num_sequences) {
  ZIGGURAT_SHARED_MEMORY(memory);
  int tile = static_cast<int>(gridDim.x - 1 - blockIdx.x), length = 0, sequence = 0;
  for (; sequence < num_sequences; ++sequence) {
    length = offsets[sequence + 1] - offsets[sequence];
    const int tiles = (length + kQueries - 1) / kQueries;
    if (tile < tiles) break;
    tile -= tiles;
  }
  if (sequence == num_sequences) return;  // there are at most as many tiles as blocks
  const int head = static_cast<int>(blockIdx.y), dim = shape.head_dim;
  const size_t q_row = static_cast<size_t>(offsets[sequence]) * shape.num_q_heads;
  const size_t kv_row = static_cast<size_t>(offsets[sequence]) * shape.num_kv_heads;
  const auto rows_of = [&](const void* x, size_t first_row, int heads, int of_them) {
    return PromptRows{static_cast<const uint16_t*>(x) + first_row * dim, length, heads, of_them,
                      dim};
  };
  const int kv_head = head / shape.group_size();
  QueryTile<kMaxDim> queries{rows_of(t.q, q_row, shape.num_q_heads, head),
                             rows_of(t.k, kv_row, shape.num_kv_heads, kv_head),
                             rows_of(t.v, kv_row, shape.num_kv_heads, kv_head),
                             static_cast<uint16_t*>(t.out) + q_row * dim,
                             t.lse + q_row,
                             shape.scale * kLog2E,
                             tile * kQueries,
                             reinterpret_cast<uint16_t*>(memory)};
  queries.Attend();
}

}  // namespace

// ---- Launchers ----------------------------------------------------------------------------------

void LaunchTensorPrefill(const DeviceShape& shape, const PrefillTensors& tensors,
                         const int32_t* offsets, int num_sequences, int num_tokens,
                         cudaStream_t stream) {
  const dim3 grid{static_cast<unsigned>(num_tokens / kQueries + num_sequences),
                  static_cast<unsigned>(shape.num_q_heads)};
  WithMaxDim(shape.head_dim, [&](auto max_dim) {
    Launch(AttendTiles<max_dim()>, grid, dim3{kThreads}, kSharedBytes<max_dim()>, stream, shape,
           tensors, offsets, num_sequences);
  });
}

}  // namespace ziggurat::cuda

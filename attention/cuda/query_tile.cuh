// A block's queries of one head and the keys that they attend to, on tensor cores, after
// FlashAttention-2 (Dao, 2023): a warp has sixteen of the queries and goes through the keys in
// tiles, of which the next is under way to shared memory while this one is computed. Scores stay in
// registers: what a lane holds of S = Q K^T is, rounded to bf16, what it must hold of P in O = P V.
#pragma once

#include "attention/cuda/prompt_tiles.cuh"

namespace ziggurat::cuda {

/// Threads and queries of a block.
constexpr int kQueryTileWarps = 8;
constexpr int kQueryTileThreads = kQueryTileWarps * kWarp;
constexpr int kQueryTileRows = kQueryTileWarps * kRowsOfWarp;

/// Which keys a block attends to: `count` tiles of them, and of these what a query is not to see. A
/// kind of keys has, with tokens counted from the first of their sequence,
///   int count                                       tiles that hold any
///   int Tile(int i)                                 the i-th of them
///   bool Passes(int query, int key)                 none of a tile from `key` on is seen by any of
///                                                   the warp's queries from `query` on
///   bool CutsInto(int query, int key)               some of the tile may not be seen by some
///   bool Hides(int half, int query, int key)        one from one; row `half` of the lane's two
///   kMayHideAll                                     a query may see nothing of all tiles so far
///
/// All keys that are not later than the query.
template <int kTileKeys>
struct CausalKeys {
  static constexpr bool kMayHideAll = false;

  int count;

  __device__ int Tile(int i) const { return i; }
  __device__ bool Passes(int query, int key) const { return key >= query + kRowsOfWarp; }
  __device__ bool CutsInto(int query, int key) const { return key + kTileKeys - 1 > query; }
  __device__ bool Hides(int /*half*/, int query, int key) const { return key > query; }
};

/// kWithValues: else only scores are summed up.
template <int kMaxDim, bool kWithValues = true>
struct QueryTile {
  using Tiles = PromptTile<kMaxDim>;
  static constexpr int kTileKeys = Tiles::kRows;
  /// Keys and values.
  static constexpr int kStageSize = (kWithValues ? 2 : 1) * Tiles::kSize;
  static constexpr size_t kSharedBytes = sizeof(uint16_t) * 2 * kStageSize;

  const PromptRows v;
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
  float sum[2] = {};  ///< this lane's share, until EndSums

  /// Of the tokens that the block's queries are.
  __device__ int end(int rows) const { return min(first + kQueryTileRows, rows); }

  /// Adds the keys of a kind, with the queries `q`.
  template <class Keys>
  __device__ void Attend(const PromptRows& q, const PromptRows& k, const Keys& keys) {
    if (keys.count <= 0) return;
    Copy(k, keys.Tile(0), 0);
    copies.Commit();
    LoadRows<kMaxDim>(q, own_first, queries);
    for (int i = 0; i < keys.count; ++i) {
      if (i + 1 < keys.count) Copy(k, keys.Tile(i + 1), i + 1);
      copies.Commit();  // empty at the end, so that the one before is always the last but one
      copies.Wait<1>();
      __syncthreads();
      const int key = keys.Tile(i) * kTileKeys;
      if (!keys.Passes(own_first, key)) {
        Tiles::Multiply(queries, StageOf(i), scores);
        AddWeights(keys, key);
        if constexpr (kWithValues) MultiplyValues(StageOf(i) + Tiles::kSize);
      }
      __syncthreads();  // the tile was read
    }
  }

  /// Without values: other keys are summed up from now on.
  __device__ void BeginAnew() {
    for (int half = 0; half < 2; ++half) {
      highest[half] = -INFINITY;
      sum[half] = 0;
    }
  }
  /// Once all keys were added: the sums of whole rows, in each of their lanes.
  __device__ void EndSums() {
    for (int half = 0; half < 2; ++half) sum[half] = RowSum(sum[half]);
  }
  /// After EndSums. -inf where a query saw no key.
  __device__ float LogSumExp(int half) const { return (highest[half] + log2f(sum[half])) / kLog2E; }
  __device__ int TokenOf(int half) const { return own_first + r + 8 * half; }

  /// After EndSums.   out [tokens, heads, dim], as q   lse [tokens, heads]
  __device__ void Store(const PromptRows& q, uint16_t* out, float* lse) const {
    ZIGGURAT_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int token = TokenOf(half);
      if (token >= q.rows) continue;
      const size_t row = static_cast<size_t>(token) * q.heads + q.head;
      const float share = 1 / sum[half];
      ZIGGURAT_UNROLL
      for (int n = 0; n < kMaxDim / 8; ++n) {
        if (8 * n >= q.dim) break;
        *reinterpret_cast<uint32_t*>(out + row * q.dim + 8 * n + 2 * c) =
            PackBf16(mean[n][2 * half] * share, mean[n][2 * half + 1] * share);
      }
      if (c == 0) lse[row] = LogSumExp(half);
    }
  }

 private:
  __device__ uint16_t* StageOf(int i) const { return tiles + i % 2 * kStageSize; }

  __device__ void Copy(const PromptRows& k, int tile, int stage) {
    Tiles::template Copy<kQueryTileThreads>(copies, k, tile * kTileKeys, StageOf(stage));
    if constexpr (kWithValues) {
      Tiles::template Copy<kQueryTileThreads>(copies, v, tile * kTileKeys,
                                              StageOf(stage) + Tiles::kSize);
    }
  }

  /// Scores of keys from `key` on become weights relative to the highest so far.
  template <class Keys>
  __device__ void AddWeights(const Keys& keys, int key) {
    if (keys.CutsInto(own_first, key)) {
      ZIGGURAT_UNROLL
      for (int n = 0; n < kTileKeys / 8; ++n) {
        for (int i = 0; i < 4; ++i) {
          if (keys.Hides(i / 2, TokenOf(i / 2), key + 8 * n + 2 * c + i % 2)) {
            scores[n][i] = -INFINITY;
          }
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
      const float before = highest[half];
      highest[half] = top[half];
      if constexpr (Keys::kMayHideAll) {
        if (top[half] == -INFINITY) top[half] = 0;  // powers of -inf less it are zero
      }
      shrink[half] = Exp2(before - top[half]);
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
    if constexpr (kWithValues) {
      ZIGGURAT_UNROLL
      for (int n = 0; n < kMaxDim / 8; ++n) {
        for (int i = 0; i < 4; ++i) mean[n][i] *= shrink[i / 2];
      }
    }
  }

  __device__ void MultiplyValues(const uint16_t* values) {
    const uint16_t* own_row = values + lane % 16 * Tiles::kStride + lane / 16 * 8;
    ZIGGURAT_UNROLL
    for (int step = 0; step < kTileKeys / 16; ++step) {
      const float(&low)[4] = scores[2 * step];
      const float(&high)[4] = scores[2 * step + 1];
      const uint32_t weights[4] = {PackBf16(low[0], low[1]), PackBf16(low[2], low[3]),
                                   PackBf16(high[0], high[1]), PackBf16(high[2], high[3])};
      ZIGGURAT_UNROLL
      for (int n = 0; n < kMaxDim / 8; n += 2) {
        uint32_t b[4];
        LoadMatricesTransposed(own_row + step * 16 * Tiles::kStride + n * 8, b);
        MultiplyAdd(weights, b[0], b[1], mean[n]);
        MultiplyAdd(weights, b[2], b[3], mean[n + 1]);
      }
    }
  }
};

}  // namespace ziggurat::cuda

// Attention that the keys of a prompt receive from its last queries.
#include "attention/cuda/cells.cuh"
#include "attention/cuda/statistics.h"

namespace ziggurat::cuda {

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

constexpr int kThreads = 128;
constexpr int kTile = 32;    ///< keys, queries and channels of a tile
constexpr int kKeys = 2;     ///< of a thread: its own and the one 16 on
constexpr int kQueries = 4;  ///< of a thread
constexpr int kKeyThreads = kTile / kKeys;

struct Tiles {
  float keys[kTile][kTile + 1];
  float queries[kTile][kTile + 1];
};

/// A tile of rows of one head of a tensor [tokens, heads, head_dim]; zeros beyond its borders.
__device__ void LoadTile(ElementType element, const void* x, int first_row, int rows, int heads,
                         int head, int first_channel, int head_dim,
                         float (&tile)[kTile][kTile + 1]) {
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kTile; i += kThreads) {
    const int row = first_row + i / kTile, c = first_channel + i % kTile;
    const bool inside = row < rows && c < head_dim;
    tile[i / kTile][i % kTile] =
        inside ? LoadElement(element, x, (static_cast<size_t>(row) * heads + head) * head_dim + c)
               : 0;
  }
}

/// Dot products of a tile of keys with a tile of queries of head `q_head`.
__device__ void TileDots(const AttentionShape& shape, const PromptTail& tail, int key, int kv_head,
                         int query, int q_head, Tiles& tiles, float (&dots)[kKeys][kQueries]) {
  const int x = static_cast<int>(threadIdx.x) % kKeyThreads;
  const int y = static_cast<int>(threadIdx.x) / kKeyThreads * kQueries;
  for (int c = 0; c < shape.head_dim; c += kTile) {
    __syncthreads();
    LoadTile(tail.element, tail.k, key, tail.n, shape.num_kv_heads, kv_head, c, shape.head_dim,
             tiles.keys);
    LoadTile(tail.element, tail.q_rows, query, tail.rows, shape.num_q_heads, q_head, c,
             shape.head_dim, tiles.queries);
    __syncthreads();
    for (int i = 0; i < kTile; ++i) {
      ZIGGURAT_UNROLL
      for (int a = 0; a < kKeys; ++a) {
        ZIGGURAT_UNROLL
        for (int b = 0; b < kQueries; ++b) {
          dots[a][b] += tiles.keys[x + a * kKeyThreads][i] * tiles.queries[y + b][i];
        }
      }
    }
  }
}

/// A block for kTile keys (x) and a row of the result (y): all queries of its heads, tile by tile.
__global__ void __launch_bounds__(kThreads)
    ColumnSums(AttentionShape shape, PromptTail tail, int begin, int end, bool query_heads,
               float* sums, size_t stride) {
  ZIGGURAT_SHARED(Tiles, tiles);
  ZIGGURAT_SHARED(float[kThreads / kKeyThreads][kTile], parts);
  const int heads = query_heads ? 1 : shape.group_size();
  const int row = static_cast<int>(blockIdx.y), first_head = row * heads;
  const int kv_head = first_head / shape.group_size();
  const int key = begin + static_cast<int>(blockIdx.x) * kTile;
  const int x = static_cast<int>(threadIdx.x) % kKeyThreads;
  const int y = static_cast<int>(threadIdx.x) / kKeyThreads;
  float own[kKeys] = {};
  for (int head = first_head; head < first_head + heads; ++head) {
    // Queries before the first key see none of the tile.
    for (int query = max(0, key - (tail.n - tail.rows)) / kTile * kTile; query < tail.rows;
         query += kTile) {
      float dots[kKeys][kQueries] = {};
      TileDots(shape, tail, key, kv_head, query, head, tiles, dots);
      for (int b = 0; b < kQueries; ++b) {
        const int of_tail = query + y * kQueries + b;
        if (of_tail >= tail.rows) break;
        const float lse = tail.lse[static_cast<size_t>(of_tail) * shape.num_q_heads + head];
        for (int a = 0; a < kKeys; ++a) {
          if (key + x + a * kKeyThreads > tail.n - tail.rows + of_tail) continue;
          own[a] += expf(dots[a][b] * shape.scale - lse);
        }
      }
    }
  }
  for (int a = 0; a < kKeys; ++a) parts[y][x + a * kKeyThreads] = own[a];
  __syncthreads();
  const int j = static_cast<int>(threadIdx.x);
  if (j >= kTile || key + j >= end) return;
  float sum = 0;
  for (int part = 0; part < kThreads / kKeyThreads; ++part) sum += parts[part][j];
  sums[row * stride + key + j - begin] = sum / static_cast<float>(heads);
}

/// A thread for each candidate (x) of each head (y): sums to means, pooled over neighbours with
/// zeros beyond the edges.
__global__ void __launch_bounds__(kThreads)
    PoolScores(const float* sums, int candidates, float window, int kernel, WindowPooling pooling,
               float* scores) {
  const int j = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), reach = kernel / 2;
  if (j >= candidates) return;
  const float* of_head = sums + static_cast<size_t>(blockIdx.y) * candidates;
  float sum = 0, highest = 0;  // scores are not negative
  for (int i = max(0, j - reach); i < min(candidates, j + reach + 1); ++i) {
    sum += of_head[i] / window;
    highest = fmaxf(highest, of_head[i] / window);
  }
  scores[static_cast<size_t>(blockIdx.y) * candidates + j] =
      pooling == WindowPooling::kAverage ? sum / static_cast<float>(kernel) : highest;
}

}  // namespace

// ---- Launchers ----------------------------------------------------------------------------------

void LaunchColumnSums(const AttentionShape& shape, const PromptTail& tail, int begin, int end,
                      bool query_heads, float* sums, size_t stride, void* scratch,
                      cudaStream_t stream) {
  if (begin >= end) return;
  if (RunsOnTensorCores(shape, tail.element)) {
    return LaunchTensorColumnSums(shape, tail, begin, end, query_heads, sums, stride, scratch,
                                  stream);
  }
  const dim3 grid{static_cast<unsigned>(end - begin + kTile - 1) / kTile,
                  static_cast<unsigned>(query_heads ? shape.num_q_heads : shape.num_kv_heads)};
  Launch(ColumnSums, grid, dim3{kThreads}, 0, stream, shape, tail, begin, end, query_heads, sums,
         stride);
}

size_t WindowScoresScratchBytes(const AttentionShape& shape, int n, int window) {
  return static_cast<size_t>(shape.num_kv_heads) * max(0, n - window) * sizeof(float) +
         ColumnSumsScratchBytes();
}

void LaunchWindowScores(const AttentionShape& shape, const PromptTail& tail, int kernel,
                        WindowPooling pooling, float* scores, void* scratch, cudaStream_t stream) {
  const int candidates = tail.n - tail.rows;
  if (candidates <= 0) return;
  auto* sums = static_cast<float*>(scratch);
  LaunchColumnSums(shape, tail, 0, candidates, false, sums, candidates,
                   sums + static_cast<size_t>(shape.num_kv_heads) * candidates, stream);
  const dim3 grid{static_cast<unsigned>(candidates + kThreads - 1) / kThreads,
                  static_cast<unsigned>(shape.num_kv_heads)};
  Launch(PoolScores, grid, dim3{kThreads}, 0, stream, sums, candidates,
         static_cast<float>(tail.rows), kernel, pooling, scores);
}

}  // namespace ziggurat::cuda

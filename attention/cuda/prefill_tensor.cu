// Attention of prompts on tensor cores (query_tile.cuh).
#include "attention/cuda/prefill.h"
#include "attention/cuda/query_tile.cuh"

namespace ziggurat::cuda {

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

/// A block for each tile of queries (x; of a prompt, those with the most keys come first) and query
/// head (y).
template <int kMaxDim>
__global__ void __launch_bounds__(kQueryTileThreads, kMaxDim <= 64 ? 2 : 1)
    AttendTiles(AttentionShape shape, PromptTensors t, const int32_t* offsets, int num_sequences) {
  ZIGGURAT_SHARED_MEMORY(memory);
  int tile = static_cast<int>(gridDim.x - 1 - blockIdx.x), length = 0, sequence = 0;
  for (; sequence < num_sequences; ++sequence) {
    length = offsets[sequence + 1] - offsets[sequence];
    const int tiles = (length + kQueryTileRows - 1) / kQueryTileRows;
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
  const PromptRows q = rows_of(t.q, q_row, shape.num_q_heads, head);
  const PromptRows k = rows_of(t.k, kv_row, shape.num_kv_heads, kv_head);
  QueryTile<kMaxDim> queries{rows_of(t.v, kv_row, shape.num_kv_heads, kv_head),
                             shape.scale * kLog2E, tile * kQueryTileRows,
                             reinterpret_cast<uint16_t*>(memory)};
  constexpr int kTileKeys = QueryTile<kMaxDim>::kTileKeys;
  queries.Attend(q, k, CausalKeys<kTileKeys>{(queries.end(length) - 1) / kTileKeys + 1});
  queries.EndSums();
  queries.Store(q, static_cast<uint16_t*>(t.out) + q_row * dim, t.lse + q_row);
}

}  // namespace

// ---- Launchers ----------------------------------------------------------------------------------

void LaunchTensorPrefill(const AttentionShape& shape, const PromptTensors& tensors,
                         const int32_t* offsets, int num_sequences, int num_tokens,
                         cudaStream_t stream) {
  const dim3 grid{static_cast<unsigned>(num_tokens / kQueryTileRows + num_sequences),
                  static_cast<unsigned>(shape.num_q_heads)};
  WithMaxDim(shape.head_dim, [&](auto max_dim) {
    Launch(AttendTiles<max_dim()>, grid, dim3{kQueryTileThreads},
           QueryTile<max_dim()>::kSharedBytes, stream, shape, tensors, offsets, num_sequences);
  });
}

}  // namespace ziggurat::cuda

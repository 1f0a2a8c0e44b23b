// Tokens of a layer's workspace into blocks, and out of them.
#include "attention/cuda/encode.cuh"
#include "attention/cuda/writes.h"

namespace ziggurat::cuda {

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

/// A warp for each unit (x), head (y) and side (z).
__global__ void __launch_bounds__(kThreads)
    WriteTokens(AttentionShape shape, KeyValues tokens, DeviceIndices rows, int count,
                DeviceCache cache, uint32_t word, int first_slot) {
  const DeviceSegment& s = cache.segment(word);
  const int unit = UnitTokens(s);
  const int first = (static_cast<int>(blockIdx.x) * kWarps + WarpOfThread()) * unit;
  const int head = static_cast<int>(blockIdx.y), kv_head = s.first_kv_head + head;
  const Side side = blockIdx.z == 0 ? Side::kKeys : Side::kValues;
  if (first >= count || !Owns(s, side)) return;
  const void* from = side == Side::kKeys ? tokens.k : tokens.v;
  EncodeUnit(cache, s, side, head, first_slot + first, shape.head_dim, [&](int token, int c) {
    const size_t row = rows.at(head, first + token);
    return LoadElement(tokens.element, from,
                       (row * shape.num_kv_heads + kv_head) * shape.head_dim + c);
  });
}

/// A thread for each slot (x) of each head (y).
__global__ void __launch_bounds__(kThreads)
    WriteScores(const float* sums, int n, DeviceIndices rows, int count, DeviceCache cache,
                uint32_t word, int first_slot) {
  const DeviceSegment& s = cache.segment(word);
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  if (i >= count) return;
  const int row = rows.at(head, i);
  EntryOf<float>(cache, s.scores, head, first_slot + i) =
      sums[static_cast<size_t>(s.first_kv_head + head) * n + row];
  EntryOf<int32_t>(cache, s.positions, head, first_slot + i) = row;
}

/// A block for each slot (x) and head (y), a thread for each channel.
__global__ void __launch_bounds__(kThreads)
    ReadTokens(AttentionShape shape, DeviceCache cache, uint32_t word, int first, float* k,
               float* v) {
  const DeviceSegment& s = cache.segment(word);
  const int slot = first + static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const size_t row = (size_t{blockIdx.x} * shape.num_kv_heads + head) * shape.head_dim;
  for (int c = static_cast<int>(threadIdx.x); c < shape.head_dim; c += kThreads) {
    for (Side side : {Side::kKeys, Side::kValues}) {
      (side == Side::kKeys ? k : v)[row + c] =
          SlotFactor(cache, s, side, head, slot) *
          ChannelValue(cache, s, side, head, slot, c, shape.head_dim);
    }
  }
}

}  // namespace

// ---- Launchers ----------------------------------------------------------------------------------

void LaunchWriteTokens(const AttentionShape& shape, const KeyValues& tokens,
                       const DeviceIndices& rows, int count, const DeviceCache& cache,
                       const TargetSegment& segment, int first_slot, cudaStream_t stream) {
  if (count == 0) return;
  const int units = count / segment.unit;
  const dim3 grid{static_cast<unsigned>(units + kWarps - 1) / kWarps,
                  static_cast<unsigned>(segment.heads), 2};
  Launch(WriteTokens, grid, dim3{kThreads}, 0, stream, shape, tokens, rows, count, cache,
         segment.word, first_slot);
}

void LaunchWriteScores(const float* sums, int n, const DeviceIndices& rows, int count,
                       const DeviceCache& cache, const TargetSegment& segment, int first_slot,
                       cudaStream_t stream) {
  if (count == 0) return;
  const dim3 grid{static_cast<unsigned>(count + kThreads - 1) / kThreads,
                  static_cast<unsigned>(segment.heads)};
  Launch(WriteScores, grid, dim3{kThreads}, 0, stream, sums, n, rows, count, cache, segment.word,
         first_slot);
}

void LaunchReadTokens(const AttentionShape& shape, const DeviceCache& cache, uint32_t segment,
                      int first, int count, float* k, float* v, cudaStream_t stream) {
  if (count == 0) return;
  const dim3 grid{static_cast<unsigned>(count), static_cast<unsigned>(shape.num_kv_heads)};
  Launch(ReadTokens, grid, dim3{kThreads}, 0, stream, shape, cache, segment, first, k, v);
}

}  // namespace ziggurat::cuda

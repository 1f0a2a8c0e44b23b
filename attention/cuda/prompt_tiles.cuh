// Rows of a prompt's queries, keys or values in bf16, as tensor cores take them: a warp's sixteen
// in registers, and tiles of what they are multiplied with in shared memory.
#pragma once

#include <type_traits>

#include "attention/cuda/async_copy.cuh"
#include "attention/cuda/tensor_core.cuh"

namespace ziggurat::cuda {

constexpr int kRowsOfWarp = 16;

/// launch(the least of the sizes that kernels exist for, as an integral constant).
template <class Launch>
void WithMaxDim(int head_dim, Launch launch) {
  if (head_dim <= 32) return launch(std::integral_constant<int, 32>());
  if (head_dim <= 64) return launch(std::integral_constant<int, 64>());
  if (head_dim <= 96) return launch(std::integral_constant<int, 96>());
  if (head_dim <= 128) return launch(std::integral_constant<int, 128>());
  launch(std::integral_constant<int, 256>());
}

/// One head of a tensor [rows, heads, dim], aligned to 16 bytes; dim is a multiple of 8. What is
/// beyond `rows` or `dim` is taken for zero.
struct PromptRows {
  const uint16_t* x;
  int rows;
  int heads;
  int head;
  int dim;

  __device__ const uint16_t* At(int row) const {
    return x + (static_cast<size_t>(row) * heads + head) * dim;
  }
};

/// Rows in shared memory, for heads of up to kMaxDim channels.
template <int kMaxDim>
struct PromptTile {
  static constexpr int kRows = kMaxDim <= 128 ? 64 : 32;
  /// bf16 from row to row. Eight rows one below the other begin in different banks.
  static constexpr int kStride = kMaxDim + 8;
  static constexpr int kSize = kRows * kStride;  ///< in bf16

  /// Rows `first` ... by all threads of the block together.
  template <int kThreads>
  __device__ static void Copy(AsyncCopies& copies, const PromptRows& from, int first,
                              uint16_t* tile) {
    constexpr int kPieces = kMaxDim / 8;  // of 16 bytes
    static_assert(kRows * kPieces % kThreads == 0);
    ZIGGURAT_UNROLL
    for (int i = 0; i < kRows * kPieces / kThreads; ++i) {
      const int index = i * kThreads + static_cast<int>(threadIdx.x);
      const int row = index / kPieces, channel = index % kPieces * 8;
      const bool is_live = first + row < from.rows && channel < from.dim;
      copies.Copy<16>(tile + row * kStride + channel,
                      is_live ? from.At(first + row) + channel : from.x, is_live);
    }
  }

  /// dots[i], as MultiplyAdd's d: the products of a warp's rows with rows 8 i .. 8 i + 7.
  __device__ static void Multiply(const uint32_t (&rows)[kMaxDim / 16][4], const uint16_t* tile,
                                  float (&dots)[kRows / 8][4]) {
    const int lane = LaneOfThread();
    const uint16_t* own_row = tile + lane % 8 * kStride + lane / 8 * 8;
    ZIGGURAT_UNROLL
    for (int n = 0; n < kRows / 8; ++n) {
      for (int i = 0; i < 4; ++i) dots[n][i] = 0;
      ZIGGURAT_UNROLL
      for (int step = 0; step < kMaxDim / 16; step += 2) {
        uint32_t b[4];
        LoadMatrices(own_row + n * 8 * kStride + step * 16, b);
        MultiplyAdd(rows[step], b[0], b[1], dots[n]);
        MultiplyAdd(rows[step + 1], b[2], b[3], dots[n]);
      }
    }
  }
};

/// Sum over the four lanes that hold a row of MultiplyAdd's d.
__device__ inline float RowSum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

/// Rows first .. first + 15, as MultiplyAdd's A for steps of 16 channels.
template <int kMaxDim>
__device__ void LoadRows(const PromptRows& from, int first, uint32_t (&rows)[kMaxDim / 16][4]) {
  const int r = LaneOfThread() / 4, c = LaneOfThread() % 4;
  ZIGGURAT_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = first + r + 8 * half;
    ZIGGURAT_UNROLL
    for (int step = 0; step < kMaxDim / 8; ++step) {
      const int channel = 8 * step + 2 * c;
      uint32_t& pair = rows[step / 2][step % 2 * 2 + half];
      pair = 0;
      if (row < from.rows && channel < from.dim) {
        pair = *reinterpret_cast<const uint32_t*>(from.At(row) + channel);
      }
    }
  }
}

}  // namespace ziggurat::cuda

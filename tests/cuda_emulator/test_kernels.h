// Kernels that are right, or lack something on purpose.
#pragma once

#include "attention/cuda/async_copy.cuh"
#include "attention/cuda/platform.h"

namespace ziggurat::cuda {

/// Launches that see every order of threads and blocks, and copies at once and late.
constexpr int kLaunches = 24;

/// Sums 0 .. blockDim-1 over a tree in shared memory; `barriers` false leaves the barriers out.
__global__ inline void TreeSum(bool barriers, int* out) {
  ZIGGURAT_SHARED_MEMORY(memory);
  int* values = reinterpret_cast<int*>(memory);
  values[threadIdx.x] = static_cast<int>(threadIdx.x);
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (barriers) __syncthreads();
    if (threadIdx.x < half) values[threadIdx.x] += values[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *out = values[0];
}

enum class LeftOut : uint8_t { kNothing, kWait, kBarrierBeforeReading, kBarrierAfterReading };

/// Turns 2 x blockDim pieces of 16 bytes by one, half after half through the same shared memory.
__global__ inline void TurnPieces(LeftOut left_out, const uint4* from, uint4* to) {
  ZIGGURAT_SHARED_MEMORY(memory);
  auto* pieces = reinterpret_cast<uint4*>(memory);
  const unsigned own = threadIdx.x, count = blockDim.x;
  AsyncCopies copies;
  for (unsigned half = 0; half < 2; ++half) {
    copies.Copy<16>(pieces + own, from + half * count + own, half == 0 || own % 2 == 0);
    copies.Commit();
    if (left_out != LeftOut::kWait) copies.Wait<0>();
    if (left_out != LeftOut::kBarrierBeforeReading) __syncthreads();
    to[half * count + own] = pieces[(own + 1) % count];
    if (left_out != LeftOut::kBarrierAfterReading) __syncthreads();
  }
}

/// Adds one to each of what the kernel in front of it on the stream left, which it awaits before it
/// reads, or between reading and writing, or does not await before it has written.
enum class Awaits : uint8_t { kBeforeReading, kBeforeWriting, kAfterwards };
__global__ inline void AddOneEarly(Awaits awaits, const int* from, int* to) {
  LetNextBegin();
  if (awaits == Awaits::kBeforeReading) AwaitPrevious();
  const int before = from[threadIdx.x];
  if (awaits == Awaits::kBeforeWriting) AwaitPrevious();
  to[threadIdx.x] = before + 1;
  if (awaits == Awaits::kAfterwards) AwaitPrevious();
}
__global__ inline void NothingEarly() {
  LetNextBegin();
  AwaitPrevious();
}
__global__ inline void Double(const int* from, int* to) { to[threadIdx.x] = 2 * from[threadIdx.x]; }

__global__ inline void Count(int* count, float* sum) {
  atomicAdd(count, 2);
  atomicAdd(sum, 0.5f);
  atomicMax(count + 1, static_cast<int>(threadIdx.x));
}

}  // namespace ziggurat::cuda

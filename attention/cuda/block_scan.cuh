// Sums over the threads of a block, and the cut through a list of numbers that reaches a sum.
#pragma once

#include "attention/cuda/cells.cuh"

namespace ziggurat::cuda {

/// Sum of x over this thread and all before it. `scratch` has one number for each warp. Every
/// thread of the block calls it; scratch may be reused after the next barrier.
template <typename T>
__device__ T InclusiveSum(T x, T* scratch) {
  const int lane = LaneOfThread(), warp = WarpOfThread();
  for (int reach = 1; reach < kWarp; reach *= 2) {
    const T before = __shfl_up_sync(kAllLanes, x, reach);
    if (lane >= reach) x += before;
  }
  if (lane == kWarp - 1) scratch[warp] = x;
  __syncthreads();
  for (int w = 0; w < warp; ++w) x += scratch[w];
  return x;
}

/// Sum over all threads, the same in each.
template <typename T>
__device__ T BlockSum(T x, T* scratch) {
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  x = WarpSum(x);
  if (LaneOfThread() == 0) scratch[WarpOfThread()] = x;
  __syncthreads();
  T sum = 0;
  for (int w = 0; w < warps; ++w) sum += scratch[w];
  __syncthreads();
  return sum;
}

/// The largest x of all threads, the same in each.
__device__ inline float BlockMax(float x, float* scratch) {
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  x = WarpMax(x);
  if (LaneOfThread() == 0) scratch[WarpOfThread()] = x;
  __syncthreads();
  for (int w = 0; w < warps; ++w) x = fmaxf(x, scratch[w]);
  __syncthreads();
  return x;
}

/// Numbers as they are ranked: a greater key for a greater number, equal ones for 0 and -0. A NaN
/// ranks as -infinity.
__device__ inline uint32_t RankedKey(float x) {
  x = x != x ? -INFINITY : x + 0.0f;
  const uint32_t bits = __float_as_uint(x);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// Where a sum over a list in falling order of keys reaches its target.
struct Cut {
  uint32_t key;              ///< the sum is reached among the entries of this key
  unsigned long long above;  ///< the sum of all greater ones
};

constexpr int kCutThreads = 256;

struct CutMemory {
  unsigned long long buckets[kCutThreads];
  unsigned long long scratch[kCutThreads / kWarp];
  Cut cut;
};

/// Adds up weight(i) of entries 0 .. count - 1 in falling order of key(i) until `target` (> 0, at
/// most the sum of all) is reached. Nothing is sorted: the key is found eight bits at a time, by
/// sums over the 256 values these can have. Weights are integers, so that the order in which they
/// are added does not matter. Block of kCutThreads.
template <class Key, class Weight>
__device__ Cut FindCut(int count, unsigned long long target, Key key, Weight weight,
                       CutMemory* memory) {
  const int thread = static_cast<int>(threadIdx.x);
  uint32_t found = 0, mask = 0;
  unsigned long long above = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    memory->buckets[thread] = 0;
    __syncthreads();
    for (int i = thread; i < count; i += kCutThreads) {
      const uint32_t own = key(i);
      if ((own & mask) != found) continue;
      atomicAdd(&memory->buckets[own >> shift & 255], static_cast<unsigned long long>(weight(i)));
    }
    __syncthreads();
    const uint32_t bucket = 255 - static_cast<uint32_t>(thread);  // the greatest first
    const unsigned long long own = memory->buckets[bucket];
    const unsigned long long reached = above + InclusiveSum(own, memory->scratch);
    if (reached >= target && reached - own < target) {
      memory->cut = {found | bucket << shift, reached - own};
    }
    __syncthreads();
    found = memory->cut.key;
    above = memory->cut.above;
    mask |= 255u << shift;
    __syncthreads();
  }
  return {found, above};
}

}  // namespace ziggurat::cuda

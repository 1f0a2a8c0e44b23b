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

/// The number that has this key.
__device__ inline float RankedNumber(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

/// A sum of 64 bits that many threads add to. Shared memory adds 32 bits by itself, which costs a
/// GPU much less than 64 by comparing and swapping where threads meet.
struct WideSum {
  uint32_t low, high;

  __device__ void Add(unsigned long long x) {
    const auto x_low = static_cast<uint32_t>(x);
    auto x_high = static_cast<uint32_t>(x >> 32);
    if (x_low != 0 && atomicAdd(&low, x_low) > ~x_low) ++x_high;  // the carry
    if (x_high != 0) atomicAdd(&high, x_high);
  }
  __device__ unsigned long long Get() const {
    return static_cast<unsigned long long>(high) << 32 | low;
  }
};

/// Where a sum over a list in falling order of keys reaches its target.
struct Cut {
  uint32_t key;              ///< the sum is reached among the entries of this key
  unsigned long long above;  ///< the sum of all greater ones
};

constexpr int kCutBuckets = 256;
constexpr int kMostWarps = 32;  ///< of a block

struct CutMemory {
  WideSum buckets[kCutBuckets];
  unsigned long long scratch[kMostWarps];
  Cut cut;
};

/// Adds up weight(i) of entries 0 .. count - 1 in falling order of key(i) until `target` (> 0, at
/// most the sum of all) is reached. Nothing is sorted: the key is found eight bits at a time, by
/// sums over the 256 values these can have. Weights are integers, so that the order in which they
/// are added does not matter. Block of kCutBuckets threads or more, in whole warps.
template <class Key, class Weight>
__device__ Cut FindCut(int count, unsigned long long target, Key key, Weight weight,
                       CutMemory* memory) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const bool has_bucket = thread < kCutBuckets;
  const int bucket = kCutBuckets - 1 - thread;  // the greatest first
  uint32_t found = 0, mask = 0;
  unsigned long long above = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (has_bucket) memory->buckets[thread] = {};
    __syncthreads();
    for (int i = thread; i < count; i += threads) {
      const uint32_t own = key(i);
      if ((own & mask) == found) memory->buckets[own >> shift & 255].Add(weight(i));
    }
    __syncthreads();
    const unsigned long long own = has_bucket ? memory->buckets[bucket].Get() : 0;
    const unsigned long long reached = above + InclusiveSum(own, memory->scratch);
    if (reached >= target && reached - own < target) {
      memory->cut = {found | static_cast<uint32_t>(bucket) << shift, reached - own};
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

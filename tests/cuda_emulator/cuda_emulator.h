// The words of CUDA C++ that the kernels of attention/cuda are written in, for a C++ compiler. A
// kernel source includes attention/cuda/platform.h, which takes this file where nvcc is not at
// work. Names are CUDA's own and mean what they mean there (CUDA C++ Programming Guide); there is
// no more here than the kernels need.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <type_traits>
#include <utility>

#include "tests/cuda_emulator/block_runner.h"

#define __global__
#define __device__
#define __host__
#define __align__(bytes) alignas(bytes)
#define __launch_bounds__(...)

// ---- Where a thread is --------------------------------------------------------------------------

using dim3 = ::ziggurat::cuda_emulator::Extent3;
#define threadIdx (::ziggurat::cuda_emulator::CurrentThread().thread)
#define blockIdx (::ziggurat::cuda_emulator::CurrentThread().block)
#define blockDim (::ziggurat::cuda_emulator::CurrentThread().block_dim)
#define gridDim (::ziggurat::cuda_emulator::CurrentThread().grid_dim)

// ---- Vectors ------------------------------------------------------------------------------------

struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// ---- Shared memory ------------------------------------------------------------------------------

namespace ziggurat::cuda_emulator {

/// The block's variable of this declaration, which a lambda's type stands for.
template <typename T, typename Declaration>
T& SharedVariable(Declaration) {
  static_assert(alignof(T) <= alignof(std::max_align_t) && std::is_trivially_copyable_v<T>);
  static char declaration;
  return *reinterpret_cast<T*>(SharedVariableMemory(&declaration, sizeof(T)));
}

}  // namespace ziggurat::cuda_emulator

// ---- Barriers and warps -------------------------------------------------------------------------

inline void __syncthreads(std::source_location where = std::source_location::current()) {
  ::ziggurat::cuda_emulator::BlockBarrier(where);
}

inline void __syncwarp(uint32_t mask = 0xffffffffu,
                       std::source_location where = std::source_location::current()) {
  ::ziggurat::cuda_emulator::WarpBarrier(mask, where);
}

namespace ziggurat::cuda_emulator {

template <typename T>
T ShuffleFrom(uint32_t mask, T value, unsigned source, std::source_location where) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  LaneValue own;
  std::memcpy(own.words, &value, sizeof(T));
  T result;
  WarpExchange(mask, own, where, [&](const LaneValue* lanes) {
    if ((mask >> source & 1) == 0) Fail("a shuffle reads a lane outside its mask", where);
    std::memcpy(&result, lanes[source].words, sizeof(T));
  });
  return result;
}

}  // namespace ziggurat::cuda_emulator

template <typename T>
T __shfl_sync(uint32_t mask, T value, int lane, int width = 32,
              std::source_location where = std::source_location::current()) {
  const unsigned own = ::ziggurat::cuda_emulator::CurrentLane();
  const unsigned segment = own & ~static_cast<unsigned>(width - 1);
  return ::ziggurat::cuda_emulator::ShuffleFrom(
      mask, value, segment + (static_cast<unsigned>(lane) & static_cast<unsigned>(width - 1)),
      where);
}
template <typename T>
T __shfl_xor_sync(uint32_t mask, T value, int lanes, int width = 32,
                  std::source_location where = std::source_location::current()) {
  const unsigned own = ::ziggurat::cuda_emulator::CurrentLane();
  const unsigned source = own ^ static_cast<unsigned>(lanes);
  // A lane beyond the own segment gives the own value (lower segments may be read).
  const bool inside = source < (own & ~static_cast<unsigned>(width - 1)) + width;
  return ::ziggurat::cuda_emulator::ShuffleFrom(mask, value, inside ? source : own, where);
}
template <typename T>
T __shfl_up_sync(uint32_t mask, T value, unsigned delta, int width = 32,
                 std::source_location where = std::source_location::current()) {
  const unsigned own = ::ziggurat::cuda_emulator::CurrentLane();
  const unsigned first = own & ~static_cast<unsigned>(width - 1);
  return ::ziggurat::cuda_emulator::ShuffleFrom(mask, value,
                                                own - first >= delta ? own - delta : own, where);
}
template <typename T>
T __shfl_down_sync(uint32_t mask, T value, unsigned delta, int width = 32,
                   std::source_location where = std::source_location::current()) {
  const unsigned own = ::ziggurat::cuda_emulator::CurrentLane();
  const unsigned end = (own & ~static_cast<unsigned>(width - 1)) + width;
  return ::ziggurat::cuda_emulator::ShuffleFrom(mask, value, own + delta < end ? own + delta : own,
                                                where);
}

inline uint32_t __ballot_sync(uint32_t mask, int predicate,
                              std::source_location where = std::source_location::current()) {
  ::ziggurat::cuda_emulator::LaneValue own;
  own.words[0] = predicate != 0;
  uint32_t votes = 0;
  ::ziggurat::cuda_emulator::WarpExchange(mask, own, where, [&](const auto* lanes) {
    for (unsigned lane = 0; lane < 32; ++lane) {
      if ((mask >> lane & 1) != 0 && lanes[lane].words[0] == 1) votes |= 1u << lane;
    }
  });
  return votes;
}
inline int __any_sync(uint32_t mask, int predicate,
                      std::source_location where = std::source_location::current()) {
  return __ballot_sync(mask, predicate, where) != 0;
}
inline int __all_sync(uint32_t mask, int predicate,
                      std::source_location where = std::source_location::current()) {
  return __ballot_sync(mask, predicate == 0, where) == 0;
}

// ---- Atomics: one OS thread, but ThreadSanitizer is to know them as such ------------------------

namespace ziggurat::cuda_emulator {

/// Stores what `change` makes of what stands there, and returns what stood there.
template <typename T, typename Change>
T ChangeAtomically(T* address, Change change) {
  std::atomic_ref<T> value(*address);
  T before = value.load(std::memory_order_relaxed);
  while (!value.compare_exchange_weak(before, change(before), std::memory_order_relaxed)) {
  }
  return before;
}

}  // namespace ziggurat::cuda_emulator

template <typename T>
T atomicAdd(T* address, T value) {
  return std::atomic_ref<T>(*address).fetch_add(value, std::memory_order_relaxed);
}
template <typename T>
T atomicMax(T* address, T value) {
  return ::ziggurat::cuda_emulator::ChangeAtomically(
      address, [&](T before) { return std::max(before, value); });
}

// ---- Intrinsics ---------------------------------------------------------------------------------

namespace ziggurat::cuda_emulator {

/// A GPU loads 8 and 16 bytes only from where they are aligned.
template <typename T>
void CheckAligned(const T* address, std::source_location where) {
  if (reinterpret_cast<uintptr_t>(address) % alignof(T) != 0) Fail("a misaligned load", where);
}

}  // namespace ziggurat::cuda_emulator

template <typename T>
T __ldg(const T* address, std::source_location where = std::source_location::current()) {
  ::ziggurat::cuda_emulator::CheckAligned(address, where);
  return *address;
}
/// What is read once: the first to leave the caches.
template <typename T>
T __ldcs(const T* address, std::source_location where = std::source_location::current()) {
  return __ldg(address, where);
}
inline uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }
inline float __uint_as_float(uint32_t x) { return std::bit_cast<float>(x); }
inline float __logf(float x) { return std::log(x); }
inline int __popc(uint32_t x) { return std::popcount(x); }
inline int __ffs(uint32_t x) { return x == 0 ? 0 : std::countr_zero(x) + 1; }
/// Byte i of the result is byte `selector >> 4 i & 7` of the eight of y:x.
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector) {
  const uint64_t both = (uint64_t{y} << 32) | x;
  uint32_t result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    result |= static_cast<uint32_t>(both >> (8 * (selector >> (4 * i) & 7)) & 0xff) << (8 * i);
  }
  return result;
}
using std::max;
using std::min;

// Copies from global to shared memory that are under way while the thread computes.
#pragma once

#include <cstdint>

#include "attention/cuda/platform.h"

#if !defined(__CUDACC__)
#include <vector>
#endif

namespace ziggurat::cuda {

/// The copies of one thread, in groups: what was asked for since the last Commit is one. In the
/// emulator they take place as early or as late as on a GPU they may: at once in some launches, and
/// when they are waited for in others.
class AsyncCopies {
 public:
  /// 16 bytes, both ends aligned to 16; zeros where not `is_live`, and nothing is read.
  __device__ void Copy16(void* shared, const void* global, bool is_live);
  /// kBytes (4, 8 or 16), both ends aligned to as many.
  template <int kBytes>
  __device__ void Copy(void* shared, const void* global);
  __device__ void Commit();
  /// Until at most kGroups, the latest, are under way. Others see what was copied after a barrier.
  template <int kGroups>
  __device__ void Wait();

#if !defined(__CUDACC__)

 private:
  struct Asked {
    void* shared;
    const void* global;
    int bytes;
    bool is_live;

    void Perform() const {
      if (is_live) {
        std::memcpy(shared, global, bytes);
      } else {
        std::memset(shared, 0, bytes);
      }
    }
  };
  void Ask(const Asked& copy);
  const bool at_once_ = cuda_emulator::CopiesAtOnce();
  std::vector<std::vector<Asked>> groups_ = {{}};  ///< the last one is not committed
#endif
};

#if defined(__CUDACC__)

__device__ inline void AsyncCopies::Copy16(void* shared, const void* global, bool is_live) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
               "l"(global), "r"(is_live ? 16 : 0)
               : "memory");
}

template <int kBytes>
__device__ void AsyncCopies::Copy(void* shared, const void* global) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  if constexpr (kBytes == 16) {  // past the first cache
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to), "l"(global) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;\n" ::"r"(to), "l"(global), "n"(kBytes)
                 : "memory");
  }
}

__device__ inline void AsyncCopies::Commit() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}

template <int kGroups>
__device__ void AsyncCopies::Wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kGroups) : "memory");
}

#else

inline void AsyncCopies::Ask(const Asked& copy) {
  for (const void* end : {static_cast<const void*>(copy.shared), copy.global}) {
    if (reinterpret_cast<uintptr_t>(end) % copy.bytes != 0) {
      cuda_emulator::Fail("a misaligned copy", std::source_location::current());
    }
  }
  groups_.back().push_back(copy);
  if (at_once_) copy.Perform();
}

inline void AsyncCopies::Copy16(void* shared, const void* global, bool is_live) {
  Ask({shared, global, 16, is_live});
}

template <int kBytes>
void AsyncCopies::Copy(void* shared, const void* global) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  Ask({shared, global, kBytes, true});
}

inline void AsyncCopies::Commit() { groups_.emplace_back(); }

template <int kGroups>
void AsyncCopies::Wait() {
  while (groups_.size() > kGroups + 1) {
    for (const Asked& copy : groups_.front()) {
      if (!at_once_) copy.Perform();
    }
    groups_.erase(groups_.begin());
  }
}

#endif

}  // namespace ziggurat::cuda

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
  /// kBytes (4, 8 or 16), both ends aligned to as many; zeros where not `is_live`, and nothing is
  /// read. 16 bytes go past the first cache.
  template <int kBytes>
  __device__ void Copy(void* shared, const void* global, bool is_live = true);
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
  const bool at_once_ = cuda_emulator::CopiesAtOnce();
  std::vector<std::vector<Asked>> groups_ = {{}};  ///< the last one is not committed
#endif
};

#if defined(__CUDACC__)

template <int kBytes>
__device__ void AsyncCopies::Copy(void* shared, const void* global, bool is_live) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = is_live ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(global),
                 "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;\n" ::"r"(to), "l"(global),
                 "n"(kBytes), "r"(bytes)
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

template <int kBytes>
void AsyncCopies::Copy(void* shared, const void* global, bool is_live) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  for (const void* end : {static_cast<const void*>(shared), global}) {
    if (reinterpret_cast<uintptr_t>(end) % kBytes != 0) {
      cuda_emulator::Fail("a misaligned copy", std::source_location::current());
    }
  }
  groups_.back().push_back({shared, global, kBytes, is_live});
  if (at_once_) groups_.back().back().Perform();
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

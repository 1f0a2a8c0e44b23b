// What ThreadSanitizer is told of the emulator's threads, so that it finds the races of a kernel:
// every thread of a block is one of its threads, and only what orders memory on a GPU orders it. So
// is what makes a block ready for its threads. In other builds nothing here does anything.
//
// The emulator's own sources are compiled without the sanitizer's checks: threads share what is
// kept there, one at a time, and it is not what is looked at.
#pragma once

#include <cstddef>

#if defined(ZIGGURAT_RACE_CHECK)
#include <sanitizer/tsan_interface.h>
// The sanitizer has these, and no header of its own for them.
extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreWritesBegin(const char* file, int line);
#endif

namespace ziggurat::cuda_emulator::race_check {

/// A thread, as the sanitizer knows it.
using Thread = void*;

/// Blocks of a launch that are not ordered with each other.
#if defined(ZIGGURAT_RACE_CHECK)
inline constexpr size_t kUnorderedBlocks = 3;
#else
inline constexpr size_t kUnorderedBlocks = 1;
#endif

#if defined(ZIGGURAT_RACE_CHECK)
inline Thread Create() { return __tsan_create_fiber(0); }
inline void Destroy(Thread thread) { __tsan_destroy_fiber(thread); }
inline Thread Running() { return __tsan_get_current_fiber(); }
/// Just before the stack is switched; orders nothing.
inline void SwitchTo(Thread thread) {
  __tsan_switch_to_fiber(thread, __tsan_switch_to_fiber_no_sync);
}
/// What a thread did before Release(at) comes before what one does after Acquire(at).
inline void Release(void* at) { __tsan_release(at); }
/// Of the running thread nothing is looked at any more but what it orders.
inline void IgnoreMemory() {
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}
inline void Acquire(void* at) { __tsan_acquire(at); }
#else
inline Thread Create() { return nullptr; }
inline void Destroy(Thread) {}
inline Thread Running() { return nullptr; }
inline void SwitchTo(Thread) {}
inline void Release(void*) {}
inline void IgnoreMemory() {}
inline void Acquire(void*) {}
#endif

/// What is done while it lives is done by `thread`.
class As {
 public:
  explicit As(Thread thread) : before_(Running()) { SwitchTo(thread); }
  ~As() { SwitchTo(before_); }
  As(const As&) = delete;
  As& operator=(const As&) = delete;

 private:
  const Thread before_;
};

/// A barrier that the same threads come to again and again: whoever leaves it comes after all that
/// came to it.
class Barrier {
 public:
  /// Returns what to leave with.
  void* Arrive() {
    Release(&turns_[now_]);
    return &turns_[now_];
  }
  /// When all have arrived. Who hurries to the next turn releases something else there than what
  /// others have still to acquire of this one.
  void Open() { now_ = 1 - now_; }
  static void Leave(void* turn) { Acquire(turn); }

 private:
  char turns_[2] = {};
  int now_ = 0;
};

}  // namespace ziggurat::cuda_emulator::race_check

// A stack that code can leave and come back to, on one OS thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "tests/cuda_emulator/race_check.h"

namespace ziggurat::cuda_emulator {

/// Runs a function on a stack of its own, a stretch at a time. Not movable while it is running. A
/// fiber that never returned may be destroyed: what stood on its stack is dropped, not destructed.
/// For ThreadSanitizer every fiber is a thread of its own (race_check.h).
class Fiber {
 public:
  static constexpr size_t kStackBytes = size_t{96} << 10;

  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// `body` is what the next Resume() begins. It must not throw.
  void Begin(const std::function<void()>* body);
  /// Runs until the body returns or calls Leave().
  void Resume();
  /// From inside the body: back to who called Resume().
  void Leave();
  bool is_done() const { return done_; }
  /// What the body did so far comes before what follows race_check::Acquire(at).
  void ReleaseTo(void* at);

  struct Context;  // per architecture

 private:
  static void Enter(void* self);

  std::unique_ptr<std::byte[]> stack_;
  std::unique_ptr<Context> context_;
  const std::function<void()>* body_ = nullptr;
  race_check::Thread thread_;
  race_check::Thread caller_ = nullptr;
  bool done_ = true;
};

}  // namespace ziggurat::cuda_emulator

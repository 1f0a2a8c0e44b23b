// Messages that take long to parse, and their texts to tokenize, do so on a thread of their own,
// one after the other: gRPC's threads are few, and answer probes of health too.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace ziggurat {

/// Any thread may call it. Destruction runs what still waits.
class TextThread {
 public:
  /// Work of no more bytes than this is done where it comes up: some 5 ms.
  static constexpr size_t kShortBytes = 16 << 10;

  TextThread() : thread_([this] { Loop(); }) {}
  ~TextThread();

  static bool IsShort(size_t bytes) { return bytes <= kShortBytes; }

  /// Runs `work`, which deals with a message of so many bytes: at once and on the caller's thread
  /// if they are few, else behind what others have brought.
  void Run(size_t bytes, std::function<void()> work);

 private:
  void Loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace ziggurat

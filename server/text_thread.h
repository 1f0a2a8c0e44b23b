// Messages that take long to parse, and their texts to tokenize, do so on a thread of their own,
// one after the other: gRPC's threads are few, and answer probes of health too.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace ziggurat {

/// Calls of one kind that wait for tokens or text: how many, and how many bytes they hold together.
/// Any thread.
class WaitingTexts {
 public:
  explicit WaitingTexts(size_t most_bytes) : most_bytes_(most_bytes) {}

  /// False: with these bytes it would be more than may wait.
  bool Enter(size_t bytes) {
    if (bytes_.fetch_add(bytes) + bytes > most_bytes_) {
      bytes_ -= bytes;
      return false;
    }
    ++count_;
    return true;
  }
  void Leave(size_t bytes) {
    --count_;
    bytes_ -= bytes;
  }
  int count() const { return count_; }
  size_t bytes() const { return bytes_; }
  size_t most_bytes() const { return most_bytes_; }

 private:
  const size_t most_bytes_;
  std::atomic<int> count_ = 0;
  std::atomic<size_t> bytes_ = 0;
};

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

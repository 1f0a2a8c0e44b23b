// How many bytes calls hold while they wait: for tokens, for text, or for clients that read.
#pragma once

#include <atomic>
#include <cstddef>

namespace ziggurat {

/// Calls of one kind that hold bytes: how many, and how many bytes together. Any thread.
class ByteBudget {
 public:
  explicit ByteBudget(size_t most_bytes) : most_bytes_(most_bytes) {}

  /// False: with these bytes it would be more than they may hold.
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
  size_t most_bytes() const { return most_bytes_; }

 private:
  const size_t most_bytes_;
  std::atomic<int> count_ = 0;
  std::atomic<size_t> bytes_ = 0;
};

}  // namespace ziggurat

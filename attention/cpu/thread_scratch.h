// Memory that the threads of a backend work in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ziggurat::cpu {

/// Floats that begin with a cache line.
class AlignedFloats {
 public:
  /// Makes room for at least that many; what was there may be lost.
  void Reserve(size_t floats) {
    if (floats_.size() < floats + kLineFloats) floats_.resize(floats + kLineFloats);
  }
  float* data() const {
    const auto address = reinterpret_cast<uintptr_t>(floats_.data());
    const size_t skipped = (kLineBytes - address % kLineBytes) % kLineBytes / sizeof(float);
    return const_cast<float*>(floats_.data()) + skipped;
  }

 private:
  static constexpr size_t kLineBytes = 64, kLineFloats = kLineBytes / sizeof(float);
  std::vector<float> floats_;
};

/// Of each thread its own. Not to be resized while threads work in it.
class ThreadScratch {
 public:
  explicit ThreadScratch(int threads) : floats_(threads) {}

  /// As AlignedFloats::Reserve, for every thread.
  void Reserve(size_t floats) {
    for (AlignedFloats& own : floats_) own.Reserve(floats);
  }
  float* of(int thread) const { return floats_[thread].data(); }

 private:
  std::vector<AlignedFloats> floats_;
};

}  // namespace ziggurat::cpu

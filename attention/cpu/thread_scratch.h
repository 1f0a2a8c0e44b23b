// Memory that each thread of a backend works in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ziggurat::cpu {

/// Not to be resized while threads work in it.
class ThreadScratch {
 public:
  explicit ThreadScratch(int threads) : floats_(threads) {}

  /// Makes every thread's scratch at least that large; what was in it may be lost.
  void Reserve(size_t floats) {
    for (std::vector<float>& own : floats_) {
      if (own.size() < floats + kLineFloats) own.resize(floats + kLineFloats);
    }
  }
  /// Begins with a cache line.
  float* of(int thread) {
    const auto address = reinterpret_cast<uintptr_t>(floats_[thread].data());
    return reinterpret_cast<float*>((address + 63) / 64 * 64);
  }

 private:
  static constexpr size_t kLineFloats = 16;
  std::vector<std::vector<float>> floats_;
};

}  // namespace ziggurat::cpu

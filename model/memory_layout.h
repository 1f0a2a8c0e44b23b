#pragma once

#include <cstddef>

namespace ziggurat {

/// Lays parts of a piece of memory one behind the other, each at a multiple of 64 bytes of its
/// begin. Without memory it only counts.
class MemoryLayout {
 public:
  explicit MemoryLayout(std::byte* base) : base_(base) {}

  /// `*part` is null where the part is empty, and without memory.
  template <class T>
  void Take(T** part, size_t rows, size_t row_bytes) {
    *part = base_ == nullptr || rows == 0 ? nullptr : reinterpret_cast<T*>(base_ + bytes_);
    bytes_ += (rows * row_bytes + 63) / 64 * 64;
  }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  size_t bytes_ = 0;
};

}  // namespace ziggurat

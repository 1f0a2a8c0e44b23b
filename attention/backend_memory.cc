#include "attention/backend_memory.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>

namespace ziggurat {

void* BackendMemory::Lend(size_t bytes) {
  constexpr size_t kAlignment = 64;
  if (lent_.size() < bytes + kAlignment) lent_.resize(bytes + kAlignment);
  void* aligned = lent_.data();
  size_t room = lent_.size();
  return std::align(kAlignment, bytes, aligned, room);
}

void BackendMemory::Upload(const void* host, size_t bytes, void* to) {
  if (bytes > 0) std::memcpy(to, host, bytes);
}

void BackendMemory::Download(const void* from, size_t bytes, void* host) const {
  if (bytes > 0) std::memcpy(host, from, bytes);
}

void BackendMemory::CopyRows(const void* from, size_t from_stride, size_t row_bytes, size_t rows,
                             void* to, size_t to_stride) {
  if (row_bytes == 0) return;
  for (size_t row = 0; row < rows; ++row) {
    std::memcpy(static_cast<std::byte*>(to) + row * to_stride,
                static_cast<const std::byte*>(from) + row * from_stride, row_bytes);
  }
}

void BackendMemory::KeepSelected(const int32_t* best_of, size_t stride, int heads, int best,
                                 int first_recent, int recent, int32_t* kept) {
  for (int head = 0; head < heads; ++head) {
    int32_t* own = kept + static_cast<size_t>(head) * (best + recent);
    std::copy_n(best_of + head * stride, best, own);
    std::iota(own + best, own + best + recent, first_recent);
  }
}

void BackendMemory::Complement(const int32_t* chosen, int heads, int count, int n, int32_t* rest) {
  for (int head = 0; head < heads; ++head) {
    const int32_t* next = chosen + static_cast<size_t>(head) * count;
    const int32_t* end = next + count;
    for (int i = 0; i < n; ++i) {
      if (next != end && *next == i) {
        ++next;
      } else {
        *rest++ = i;
      }
    }
  }
}

}  // namespace ziggurat

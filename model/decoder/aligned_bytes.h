// Memory that begins with a cache line, as vector loads like it.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace ziggurat {

struct AlignedDeleter {
  void operator()(std::byte* p) const { std::free(p); }
};
using AlignedBytes = std::unique_ptr<std::byte[], AlignedDeleter>;

/// Not initialized; much memory is in huge pages, where the system has them: the first touch of
/// small ones may take longer than what is written there. Throws std::bad_alloc.
inline AlignedBytes AllocateAligned(size_t bytes) {
  constexpr size_t kLine = 64, kHugePage = size_t{2} << 20;
  const size_t unit = bytes < 2 * kHugePage ? kLine : kHugePage;
  const size_t whole = (bytes + unit - 1) / unit * unit;
  if (whole < bytes) throw std::bad_alloc();
  void* const memory = std::aligned_alloc(unit, whole);
  if (memory == nullptr && whole > 0) throw std::bad_alloc();
  if (unit == kHugePage) madvise(memory, whole, MADV_HUGEPAGE);  // a wish
  return AlignedBytes(static_cast<std::byte*>(memory));
}

}  // namespace ziggurat

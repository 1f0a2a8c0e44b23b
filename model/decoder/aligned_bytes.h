// Memory that begins with a cache line, as vector loads like it.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace ziggurat {

struct AlignedDeleter {
  void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{64}); }
};
using AlignedBytes = std::unique_ptr<std::byte[], AlignedDeleter>;

/// Not initialized. Throws std::bad_alloc.
inline AlignedBytes AllocateAligned(size_t bytes) {
  return AlignedBytes(new (std::align_val_t{64}) std::byte[bytes]);
}

}  // namespace ziggurat

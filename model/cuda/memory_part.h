#pragma once

#include <cstddef>

namespace ziggurat::cuda {

/// One part of a device's memory.
struct MemoryPart {
  const char* what;
  size_t bytes;
};

/// What the driver takes for kernels and graphs, when they are first used: left free.
constexpr size_t kDriverBytes = size_t{512} << 20;

}  // namespace ziggurat::cuda

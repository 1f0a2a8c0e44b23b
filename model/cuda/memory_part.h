#pragma once

#include <cstddef>

namespace ziggurat::cuda {

/// One part of a device's memory.
struct MemoryPart {
  const char* what;
  size_t bytes;
};

}  // namespace ziggurat::cuda

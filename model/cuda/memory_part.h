// What the memory of a GPU goes to, for the error that names every part.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ziggurat::cuda {

/// One part of a device's memory.
struct MemoryPart {
  const char* what;
  size_t bytes;
};

/// "weights 123, scratch memory 45".
inline std::string ListParts(const std::vector<MemoryPart>& parts) {
  return absl::StrJoin(parts, ", ", [](std::string* text, const MemoryPart& part) {
    absl::StrAppend(text, part.what, " ", part.bytes);
  });
}

/// What the driver takes for kernels and graphs, when they are first used: left free.
constexpr size_t kDriverBytes = size_t{512} << 20;

}  // namespace ziggurat::cuda

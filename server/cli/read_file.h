// Files that a command is given: tasks, traces.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace ziggurat {

/// The whole of a file, or of a pipe. Errors begin with the path: NOT_FOUND, it cannot be read;
/// INVALID_ARGUMENT: it is a folder, or has more than `max_bytes`.
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes);

}  // namespace ziggurat

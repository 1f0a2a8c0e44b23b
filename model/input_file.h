// Reads the files of a model folder, which others wrote.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "absl/status/statusor.h"

namespace ziggurat {

/// Whether there is anything at `path`. INVALID_ARGUMENT where a file was meant that cannot be
/// reached: a symbolic link that leads nowhere or in a circle, a folder that may not be searched.
/// The message begins with the path.
absl::StatusOr<bool> IsThere(const std::filesystem::path& path);

/// The whole of a regular file of at most `max_bytes`. NOT_FOUND: there is nothing at `path`.
/// INVALID_ARGUMENT: it cannot be reached, is too large, or is a folder, a pipe or a device, for
/// which it does not wait. Messages begin with the path.
absl::StatusOr<std::string> ReadInputFile(const std::filesystem::path& path, size_t max_bytes);

}  // namespace ziggurat

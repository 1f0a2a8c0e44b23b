// Reports are written as a whole.
#pragma once

#include <filesystem>
#include <string>

#include "absl/status/status.h"

namespace ziggurat {

/// Whether ReplaceFile will be able to write `path`: for asking before long work. Changes nothing.
/// INVALID_ARGUMENT: it is a folder. FAILED_PRECONDITION names the file and the system's reason.
absl::Status CheckReplaceable(const std::filesystem::path& path);
/// Whether ReplaceFile puts a file into the place of `path`, and so may be called again and again:
/// into a pipe, a device or what a link leads to it writes.
bool IsReplaced(const std::filesystem::path& path);
/// Nobody sees half of it: what was there stays until all is written. What cannot be replaced, or
/// is no regular file (a pipe, a device, a link), is written into. FAILED_PRECONDITION as above.
absl::Status ReplaceFile(const std::filesystem::path& path, const std::string& content);

}  // namespace ziggurat

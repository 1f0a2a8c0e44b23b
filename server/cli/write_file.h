// Reports are written as a whole.
#pragma once

#include <filesystem>
#include <string>

#include "absl/status/status.h"

namespace ziggurat {

/// Replaces what `path` held. FAILED_PRECONDITION names the file and the system's reason.
absl::Status WriteFile(const std::filesystem::path& path, const std::string& content);

/// Whether ReplaceFile will be able to write `path`: for asking before long work. Changes nothing.
/// INVALID_ARGUMENT: it is a folder. FAILED_PRECONDITION as above.
absl::Status CheckReplaceable(const std::filesystem::path& path);
/// As WriteFile, but nobody sees half of it: what was there stays until all is written. What cannot
/// be replaced, or is no regular file (a pipe, a device, a link), is written into.
absl::Status ReplaceFile(const std::filesystem::path& path, const std::string& content);

}  // namespace ziggurat

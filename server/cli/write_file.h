// Reports are written as a whole.
#pragma once

#include <filesystem>
#include <string>

#include "absl/status/status.h"

namespace ziggurat {

/// Replaces what `path` held. FAILED_PRECONDITION names the file and the system's reason.
absl::Status WriteFile(const std::filesystem::path& path, const std::string& content);

}  // namespace ziggurat

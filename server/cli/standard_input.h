// All that a program is given on stdin.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace ziggurat {

/// Reads to the end. FAILED_PRECONDITION where it cannot be read, as if it is a folder or closed.
absl::StatusOr<std::string> ReadStandardInput();

}  // namespace ziggurat

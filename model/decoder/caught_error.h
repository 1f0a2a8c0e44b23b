// Exceptions of the libraries that the decoder computes with, as statuses.
#pragma once

#include <exception>
#include <string_view>

#include "absl/status/status.h"

namespace ziggurat {

/// What `error`, caught during `what`, means: RESOURCE_EXHAUSTED where there was no memory, of
/// which libtorch's allocator tells by an exception of its own, else INTERNAL.
absl::Status CaughtError(const std::exception& error, std::string_view what);

}  // namespace ziggurat

// Sizes as people write them: "512MiB", "2GiB", "1GB", "4096".
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace ziggurat {

/// A number, which may have a fraction, and a unit: B, KiB, MiB, GiB, TiB (powers of 1024), kB, MB,
/// GB, TB (powers of 1000), none: bytes. Letter case and spaces between both do not matter.
/// INVALID_ARGUMENT says what was found and what is allowed.
absl::StatusOr<size_t> ParseByteSize(std::string_view text);

/// A number of bytes in a unit from B to TiB.
struct ScaledBytes {
  double value = 0;
  const char* unit = "";
};
/// In the smallest unit in which the number is below `limit`.
ScaledBytes ScaleBytes(double bytes, double limit);

/// "512 MiB", "1.5 GiB", "17 B": for people, rounded.
std::string FormatByteSize(size_t bytes);

}  // namespace ziggurat

// Files that flags name, read whole, with errors that say which flag, which file and why.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ziggurat {

/// What a flag named, and what is in it.
struct NamedFile {
  std::string flag;  ///< "--tls-cert"
  std::filesystem::path path;
  std::string text;

  /// INVALID_ARGUMENT "--tls-cert /tls/tls.crt: has expired".
  absl::Status Wrong(std::string_view why) const;
};

/// NOT_FOUND "--tls-cert: cannot read /tls/tls.crt: Permission denied"; INVALID_ARGUMENT where it
/// is empty or larger than a mebibyte.
absl::StatusOr<NamedFile> ReadNamedFile(std::string flag, const std::filesystem::path& path);

using Sha256Digest = std::array<uint8_t, 32>;
Sha256Digest Sha256(std::string_view bytes);

}  // namespace ziggurat

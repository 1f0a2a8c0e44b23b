#include "server/cli/read_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace ziggurat {

absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes) {
  constexpr size_t kPiece = size_t{1} << 20;
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": a folder; name a file in it"));
  }
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  std::string content;
  while (stream) {
    const size_t before = content.size();
    content.resize(before + kPiece);
    stream.read(content.data() + before, kPiece);
    content.resize(before + static_cast<size_t>(stream.gcount()));
    if (content.size() > max_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": has more than ", max_bytes, " bytes: is it the right file?"));
    }
  }
  if (stream.bad()) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  return content;
}

}  // namespace ziggurat

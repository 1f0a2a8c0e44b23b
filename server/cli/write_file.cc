#include "server/cli/write_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace ziggurat {

absl::Status WriteFile(const std::filesystem::path& path, const std::string& content) {
  errno = 0;
  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  stream << content;
  stream.close();
  if (stream) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(path.string(), ": ", errno != 0 ? std::strerror(errno) : "cannot be written"));
}

}  // namespace ziggurat

#include "server/cli/write_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace ziggurat {
namespace {

namespace fs = std::filesystem;

absl::Status CannotWrite(const fs::path& path, int error) {
  return absl::FailedPreconditionError(
      absl::StrCat(path.string(), ": ", error != 0 ? std::strerror(error) : "cannot be written"));
}

/// Where a new file is made beside `path`.
fs::path Beside(const fs::path& path) {
  return absl::StrCat(path.string(), ".", ::getpid(), ".partial");
}

bool IsWrittenInto(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  return fs::exists(status) && !fs::is_regular_file(status);
}

}  // namespace

absl::Status CheckReplaceable(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(path.string(), " is a folder"));
  }
  const fs::path parent = path.parent_path().empty() ? fs::path(".") : path.parent_path();
  const bool is_there = fs::exists(path, error);
  if (is_there && ::access(path.c_str(), W_OK) != 0) return CannotWrite(path, errno);
  if (!is_there && ::access(parent.c_str(), W_OK) != 0) return CannotWrite(path, errno);
  if (!fs::is_directory(parent, error)) return CannotWrite(path, ENOTDIR);
  return absl::OkStatus();
}

absl::Status ReplaceFile(const fs::path& path, const std::string& content) {
  if (IsWrittenInto(path)) return WriteFile(path, content);
  const fs::path partial = Beside(path);
  std::error_code error;
  if (WriteFile(partial, content).ok()) {
    fs::rename(partial, path, error);
    if (!error) return absl::OkStatus();
  }
  fs::remove(partial, error);
  // A file that is a mount of its own, or in a folder where nothing may be made, is not replaced.
  return WriteFile(path, content);
}

absl::Status WriteFile(const std::filesystem::path& path, const std::string& content) {
  errno = 0;
  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  stream << content;
  stream.close();
  return stream ? absl::OkStatus() : CannotWrite(path, errno);
}

}  // namespace ziggurat

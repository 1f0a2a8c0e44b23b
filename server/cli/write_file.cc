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
  return absl::FailedPreconditionError(absl::StrCat(path.string(), ": ", std::strerror(error)));
}

/// Where a new file is made beside `path`.
fs::path Beside(const fs::path& path) {
  return absl::StrCat(path.string(), ".", ::getpid(), ".partial");
}

/// Writes all of it and closes the stream. 0, or the system's reason.
int Finish(std::ofstream* stream, const std::string& content) {
  *stream << content;
  stream->close();
  if (*stream) return 0;
  return errno != 0 ? errno : EIO;
}

/// Replaces what `path` held.
absl::Status WriteInto(const fs::path& path, const std::string& content) {
  errno = 0;
  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  const int failed = Finish(&stream, content);
  return failed == 0 ? absl::OkStatus() : CannotWrite(path, failed);
}

/// Where `error` says that nothing can be put into the place of `path`, as where nothing may be
/// made in its folder, or it is a mount of its own. Not where a disk is full: what is there would
/// be lost.
absl::Status WriteWhereNoneFitsBeside(const fs::path& path, int error, const std::string& content) {
  const bool is_in_the_way = error == EACCES || error == EPERM || error == EROFS ||
                             error == ENAMETOOLONG || error == EBUSY;
  return is_in_the_way ? WriteInto(path, content) : CannotWrite(path, error);
}

}  // namespace

bool IsReplaced(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  return !fs::exists(status) || fs::is_regular_file(status);
}

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
  if (!IsReplaced(path)) return WriteInto(path, content);
  const fs::path partial = Beside(path);
  errno = 0;
  std::ofstream stream(partial, std::ios::binary | std::ios::trunc);
  if (!stream.is_open()) return WriteWhereNoneFitsBeside(path, errno, content);
  const int failed = Finish(&stream, content);
  std::error_code error(failed, std::generic_category());
  if (failed == 0) fs::rename(partial, path, error);
  if (!error) return absl::OkStatus();
  std::error_code ignored;
  fs::remove(partial, ignored);
  return failed == 0 ? WriteWhereNoneFitsBeside(path, error.value(), content)
                     : CannotWrite(path, failed);
}

}  // namespace ziggurat

#include "model/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace ziggurat {
namespace {

absl::Status Wrong(const std::filesystem::path& path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(path.string(), ": ", what));
}

absl::Status Unreadable(const std::filesystem::path& path, int error) {
  return absl::FailedPreconditionError(
      absl::StrCat(path.string(), ": cannot be read: ", std::strerror(error)));
}

bool ReadAll(int descriptor, std::string* text) {
  for (size_t done = 0; done < text->size();) {
    const ssize_t count = ::read(descriptor, text->data() + done, text->size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    done += static_cast<size_t>(count);
  }
  return true;
}

/// Where Git LFS is not installed, a clone has a few lines in the place of each large file.
bool IsLfsPointer(int descriptor) {
  constexpr std::string_view kBegin = "version https://git-lfs.github.com/spec/";
  char begin[kBegin.size()];
  return ::pread(descriptor, begin, sizeof(begin), 0) == sizeof(begin) &&
         std::string_view(begin, sizeof(begin)) == kBegin;
}

}  // namespace

absl::StatusOr<bool> IsThere(const std::filesystem::path& path) {
  struct stat file = {};
  if (::stat(path.c_str(), &file) == 0) return true;
  const int error = errno;
  if (error == ENOENT && ::lstat(path.c_str(), &file) == 0) {
    return Wrong(path, "a symbolic link that leads nowhere");
  }
  if (error == ENOENT || error == ENOTDIR) return false;
  return Unreadable(path, error);
}

absl::StatusOr<InputFile> InputFile::Open(const std::filesystem::path& path) {
  const absl::StatusOr<bool> is_there = IsThere(path);
  if (!is_there.ok()) return is_there.status();
  if (!*is_there) return absl::NotFoundError(absl::StrCat(path.string(), ": no such file"));
  // O_NONBLOCK: a pipe of this name must not make us wait for a writer.
  InputFile file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK), 0);
  struct stat found = {};
  if (file.descriptor_ < 0 || ::fstat(file.descriptor_, &found) != 0) {
    return Unreadable(path, errno);
  }
  if (!S_ISREG(found.st_mode)) return Wrong(path, "not a regular file");
  if (IsLfsPointer(file.descriptor_)) {
    return Wrong(path,
                 "only Git LFS's pointer to the file; `git lfs pull` fetches the file itself");
  }
  file.bytes_ = static_cast<size_t>(found.st_size);
  return file;
}

InputFile::InputFile(InputFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), bytes_(other.bytes_) {}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

absl::StatusOr<std::string> ReadInputFile(const std::filesystem::path& path, size_t max_bytes) {
  const absl::StatusOr<InputFile> file = InputFile::Open(path);
  if (!file.ok()) return file.status();
  if (file->bytes() > max_bytes) {
    return Wrong(path, absl::StrCat("larger than the ", max_bytes, " bytes allowed"));
  }
  std::string text(file->bytes(), '\0');
  if (!ReadAll(file->descriptor(), &text)) return Wrong(path, "cannot be read");
  return text;
}

absl::StatusOr<std::string> ReadGivenFile(const std::filesystem::path& path, size_t max_bytes) {
  constexpr size_t kPieceBytes = size_t{1} << 20;
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return Wrong(path, "a folder; name a file in it");
  }
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return absl::NotFoundError(absl::StrCat(path.string(), ": ", std::strerror(errno)));
  std::string content;
  while (stream) {
    const size_t before = content.size();
    content.resize(before + kPieceBytes);
    stream.read(content.data() + before, kPieceBytes);
    content.resize(before + static_cast<size_t>(stream.gcount()));
    if (content.size() > max_bytes) {
      return Wrong(path,
                   absl::StrCat("has more than ", max_bytes, " bytes: is it the right file?"));
    }
  }
  if (stream.bad()) return absl::NotFoundError(absl::StrCat(path.string(), ": cannot be read"));
  return content;
}

absl::Status CheckHasNoNul(std::string_view json) {
  const size_t at = json.find('\0');
  if (at == std::string_view::npos) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("not valid JSON: byte ", at + 1, " is NUL"));
}

absl::Status InFile(const std::filesystem::path& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path.string(), ": ", status.message()));
}

}  // namespace ziggurat

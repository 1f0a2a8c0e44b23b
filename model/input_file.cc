#include "model/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace ziggurat {
namespace {

absl::Status Wrong(const std::filesystem::path& path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(path.string(), ": ", what));
}

class Descriptor {
 public:
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

bool ReadAll(int descriptor, std::string* text) {
  for (size_t done = 0; done < text->size();) {
    const ssize_t count = ::read(descriptor, text->data() + done, text->size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    done += static_cast<size_t>(count);
  }
  return true;
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
  return Wrong(path, std::strerror(error));
}

absl::StatusOr<std::string> ReadInputFile(const std::filesystem::path& path, size_t max_bytes) {
  const absl::StatusOr<bool> is_there = IsThere(path);
  if (!is_there.ok()) return is_there.status();
  if (!*is_there) return absl::NotFoundError(absl::StrCat(path.string(), ": no such file"));
  // O_NONBLOCK: a pipe of this name must not make us wait for a writer.
  const Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat file = {};
  if (descriptor.get() < 0 || ::fstat(descriptor.get(), &file) != 0) {
    return Wrong(path, absl::StrCat("cannot be read: ", std::strerror(errno)));
  }
  if (!S_ISREG(file.st_mode)) return Wrong(path, "not a regular file");
  const size_t bytes = static_cast<size_t>(file.st_size);
  if (bytes > max_bytes) {
    return Wrong(path, absl::StrCat("larger than the ", max_bytes, " bytes allowed"));
  }
  std::string text(bytes, '\0');
  if (!ReadAll(descriptor.get(), &text)) return Wrong(path, "cannot be read");
  return text;
}

}  // namespace ziggurat

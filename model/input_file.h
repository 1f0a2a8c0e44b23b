// Reads the files of a model folder, which others wrote, and those that flags name.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ziggurat {

/// Whether there is anything at `path`. INVALID_ARGUMENT: it is a symbolic link that leads nowhere.
/// FAILED_PRECONDITION: it cannot be reached, behind links in a circle or in a folder that may not
/// be searched. The message begins with the path.
absl::StatusOr<bool> IsThere(const std::filesystem::path& path);

/// A regular file that is open for reading, for which nothing waited. Closed with it.
class InputFile {
 public:
  /// NOT_FOUND: there is nothing at `path`. INVALID_ARGUMENT: it is a folder, a pipe, a device or a
  /// link that leads nowhere. FAILED_PRECONDITION: it cannot be reached, or may not be read.
  /// Messages begin with the path.
  static absl::StatusOr<InputFile> Open(const std::filesystem::path& path);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  int descriptor() const { return descriptor_; }
  size_t bytes() const { return bytes_; }

 private:
  InputFile(int descriptor, size_t bytes) : descriptor_(descriptor), bytes_(bytes) {}

  int descriptor_;
  size_t bytes_;
};

/// The whole of a regular file of at most `max_bytes`. Errors as InputFile's, and INVALID_ARGUMENT
/// where it is too large.
absl::StatusOr<std::string> ReadInputFile(const std::filesystem::path& path, size_t max_bytes);

/// The whole of what somebody named: a file, or else a pipe or a device, until its end. NOT_FOUND:
/// it cannot be read. INVALID_ARGUMENT: it is a folder, or has more than `max_bytes`. Messages
/// begin with the path.
absl::StatusOr<std::string> ReadGivenFile(const std::filesystem::path& path, size_t max_bytes);

/// INVALID_ARGUMENT where a text that is to be JSON has a NUL byte, which the parser takes for its
/// end.
absl::Status CheckHasNoNul(std::string_view json);

/// What is wrong with what such a file says: its message begins with the path, too.
absl::Status InFile(const std::filesystem::path& path, const absl::Status& status);

}  // namespace ziggurat

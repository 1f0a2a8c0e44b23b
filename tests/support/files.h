// Files and folders of tests.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace ziggurat {

/// A folder of its own, removed with all its content at the end of its life.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

/// The whole of a file; aborts where it cannot be read (a mistake of the test).
std::string ReadFile(const std::filesystem::path& path);
/// Empty where there is no such file.
std::string ReadFileIfThere(const std::filesystem::path& path);
/// The whole of a file becomes `content`; aborts where it cannot be written.
void WriteFile(const std::filesystem::path& path, std::string_view content);

/// ../shared beside the source tree; may be absent.
std::filesystem::path SharedFolder();
/// `name` in it; empty where it is not there.
std::filesystem::path SharedPath(std::string_view name);

}  // namespace ziggurat

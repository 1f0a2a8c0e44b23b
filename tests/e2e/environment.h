// Where the tests find what they test, and how thorough they are to be.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace ziggurat::e2e {

/// The daemon: $ZIGGURAT_BINARY, or the one of this build.
std::filesystem::path Binary();

/// $ZIGGURAT_DEVICE: what daemons are to compute on; empty: their choice.
std::string Device();
/// Device() names a GPU. There a row's last bits depend on who else is in the batch, since products
/// of more rows are another algorithm's: selections and codes at a border fall differently more
/// often.
bool ComputesOnGpu();

/// $ZIGGURAT_SOAK is set and not "0": run the long versions.
bool IsSoak();

/// The bundled model; always there.
std::filesystem::path NeedleLlama();

/// ../shared beside the source tree; may be absent.
std::filesystem::path SharedFolder();

/// The whole of a file; aborts where it cannot be read (a mistake of the test).
std::string ReadFile(const std::filesystem::path& path);
void WriteFile(const std::filesystem::path& path, std::string_view content);

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

}  // namespace ziggurat::e2e

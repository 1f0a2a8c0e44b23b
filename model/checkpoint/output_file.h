// A file being written, with every error seen. Private to this folder.
#pragma once

#include <cstddef>
#include <filesystem>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ziggurat {

/// RESOURCE_EXHAUSTED: the disk is full. INTERNAL: anything else. Not buffered: write in large
/// pieces.
class OutputFile {
 public:
  static absl::StatusOr<OutputFile> Create(const std::filesystem::path& path);

  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  absl::Status Write(const void* data, size_t bytes);
  /// To be called at the end: some file systems report a full disk only here.
  absl::Status Close();

 private:
  OutputFile(std::filesystem::path path, int descriptor);
  absl::Status Failure() const;

  std::filesystem::path path_;
  int descriptor_;
};

}  // namespace ziggurat

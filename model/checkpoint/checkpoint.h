// All weights of a Hugging Face folder, in one file or in several.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/checkpoint/safetensors.h"

namespace ziggurat {

/// Read-only and, once open, safe to use from any thread. Holds no copy of a weight: views point
/// into the mapped files and live as long as the checkpoint.
class Checkpoint {
 public:
  /// Opens `dir`/model.safetensors or else the files that `dir`/model.safetensors.index.json names.
  /// Names may not lead out of the folder (a file in it may be a symbolic link, as in the Hugging
  /// Face cache). NOT_FOUND: neither is there, or a file that the index names is not.
  /// INVALID_ARGUMENT: the index is malformed. DATA_LOSS: a file is corrupt, or lacks a tensor that
  /// the index places in it.
  static absl::StatusOr<Checkpoint> Open(const std::filesystem::path& dir);

  /// nullptr: no such tensor.
  const TensorView* Find(std::string_view name) const;
  /// The file that holds a tensor of Find, for messages.
  const std::filesystem::path& FileOf(const TensorView& tensor) const;
  /// In ascending order.
  std::vector<std::string> Names() const;
  /// Of all tensors.
  size_t total_bytes() const;
  /// For messages.
  const std::filesystem::path& dir() const { return dir_; }

 private:
  Checkpoint() = default;

  absl::Status OpenSingle(const std::filesystem::path& file);
  absl::Status OpenSharded(const std::filesystem::path& index);

  std::filesystem::path dir_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, TensorView, std::less<>> tensors_;
};

}  // namespace ziggurat

#include "model/checkpoint/checkpoint.h"

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/checkpoint/json_fields.h"
#include "model/input_file.h"

namespace ziggurat {

namespace {

constexpr size_t kMaxIndexBytes = size_t{64} << 20;
constexpr size_t kMaxShards = 10'000;

/// A shard's name must be a plain file name: the index must not reach other folders.
bool IsPlainFileName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

/// "weight_map" of the index: tensor -> file.
absl::StatusOr<std::map<std::string, std::string>> ReadWeightMap(
    const std::filesystem::path& index) {
  absl::StatusOr<std::string> text = ReadInputFile(index, kMaxIndexBytes);
  if (!text.ok()) return text.status();
  absl::StatusOr<nlohmann::json> object = ParseJsonObject(*text, index.string());
  if (!object.ok()) return object.status();
  const auto wrong = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(index.string(), ": ", what));
  };
  const auto list = object->find("weight_map");
  if (list == object->end() || !list->is_object() || list->empty()) {
    return wrong("\"weight_map\" must be an object that maps tensors to files");
  }
  std::map<std::string, std::string> map;
  for (const auto& [tensor, file] : list->items()) {
    if (!file.is_string()) return wrong(absl::StrCat("\"", tensor, "\" has no file name"));
    map[tensor] = file.get<std::string>();
    if (!IsPlainFileName(map[tensor])) {
      return wrong(absl::StrCat("\"", tensor, "\" is said to be in \"", map[tensor],
                                "\", which is not the name of a file in the folder"));
    }
  }
  return map;
}

}  // namespace

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::filesystem::path& dir) {
  Checkpoint checkpoint;
  checkpoint.dir_ = dir;
  const std::filesystem::path single = dir / "model.safetensors";
  const std::filesystem::path index = dir / "model.safetensors.index.json";
  const absl::StatusOr<bool> has_single = IsThere(single);
  if (!has_single.ok()) return has_single.status();
  const absl::StatusOr<bool> has_index = IsThere(index);
  if (!has_index.ok() && !*has_single) return has_index.status();
  std::error_code error;
  absl::Status status;
  if (*has_single) {
    status = checkpoint.OpenSingle(single);
  } else if (*has_index) {
    status = checkpoint.OpenSharded(index);
  } else if (std::filesystem::exists(dir / "pytorch_model.bin", error) ||
             std::filesystem::exists(dir / "pytorch_model.bin.index.json", error)) {
    status = absl::NotFoundError(absl::StrCat(
        dir.string(), ": only weights in PyTorch's pickle format; convert them to safetensors"));
  } else {
    status = absl::NotFoundError(absl::StrCat(
        dir.string(), ": neither model.safetensors nor model.safetensors.index.json is there"));
  }
  if (!status.ok()) return status;
  return checkpoint;
}

absl::Status Checkpoint::OpenSingle(const std::filesystem::path& file) {
  absl::StatusOr<SafetensorsFile> opened = SafetensorsFile::Open(file);
  if (!opened.ok()) return opened.status();
  tensors_ = opened->tensors();
  files_.push_back(*std::move(opened));
  return absl::OkStatus();
}

absl::Status Checkpoint::OpenSharded(const std::filesystem::path& index) {
  absl::StatusOr<std::map<std::string, std::string>> map = ReadWeightMap(index);
  if (!map.ok()) return map.status();
  std::map<std::string, size_t> shards;  // file name -> place in files_
  for (const auto& [tensor, file] : *map) {
    if (!shards.contains(file)) {
      if (shards.size() == kMaxShards) {
        return absl::InvalidArgumentError(
            absl::StrCat(index.string(), ": names more than ", kMaxShards, " files"));
      }
      absl::StatusOr<SafetensorsFile> opened = SafetensorsFile::Open(dir_ / file);
      if (absl::IsNotFound(opened.status())) {
        return absl::NotFoundError(absl::StrCat(opened.status().message(), ", but ",
                                                index.filename().string(), " names it"));
      }
      if (!opened.ok()) return opened.status();
      shards[file] = files_.size();
      files_.push_back(*std::move(opened));
    }
    const auto& tensors = files_[shards[file]].tensors();
    const auto found = tensors.find(tensor);
    if (found == tensors.end()) {
      return absl::DataLossError(absl::StrCat((dir_ / file).string(), ": lacks the tensor \"",
                                              tensor, "\", which ", index.filename().string(),
                                              " places there"));
    }
    tensors_.insert(*found);
  }
  return absl::OkStatus();
}

const TensorView* Checkpoint::Find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

const std::filesystem::path& Checkpoint::FileOf(const TensorView& tensor) const {
  for (const SafetensorsFile& file : files_) {
    for (const auto& [name, held] : file.tensors()) {
      if (held.data == tensor.data) return file.path();
    }
  }
  return dir_;
}

std::vector<std::string> Checkpoint::Names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

size_t Checkpoint::total_bytes() const {
  size_t bytes = 0;
  for (const auto& [name, tensor] : tensors_) bytes += tensor.bytes;
  return bytes;
}

}  // namespace ziggurat

// The golden vectors: inputs and results of the published code of the compression methods, one
// folder for each case (manifest.json, expected.json, input*.safetensors, expected_r*.safetensors).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ziggurat::golden {

struct Tensor {
  std::vector<int64_t> shape;
  std::vector<float> values;  ///< row-major
};
using Tensors = std::map<std::string, Tensor>;

/// One run of one reference: what it was asked and what it answered.
struct ReferenceRun {
  std::string name;  ///< "snapkv_gqa_a/r03"
  nlohmann::json manifest;
  nlohmann::json expected;
  Tensors tensors;  ///< empty where the run has none

  std::string method() const { return manifest.at("method"); }
  bool is_kvpress() const;
};

struct Case {
  std::string name;
  nlohmann::json manifest;
  std::vector<Tensors> inputs;  ///< in the manifest's order
  std::vector<ReferenceRun> runs;

  /// Whether a run is of a method that begins so.
  bool Has(std::string_view method) const;
  /// Whether several query heads share a KV head.
  bool HasGroups() const;
};

/// $ZIGGURAT_GOLDENS, or goldens beside the source tree; nullopt where it is not there.
std::optional<std::filesystem::path> FindGoldens();
/// The text of a skip.
std::string MissingGoldens();

/// Whether the folder has that case. Of the cases that the tests were written with it is known what
/// can be compared; a folder without them may have vectors of a single method.
bool HasCase(const std::vector<Case>& cases, std::string_view name);
/// The text of the skip of a test that found nothing to compare.
std::string NothingToCompare(std::string_view method);

/// Every folder with a manifest, by name. Tensors are read only of the cases with a run of a method
/// that begins with one of `methods`. Throws on a file that is not as its manifest says.
std::vector<Case> LoadCases(const std::filesystem::path& folder,
                            const std::vector<std::string>& methods);

}  // namespace ziggurat::golden

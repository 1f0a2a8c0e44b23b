#include "tests/compression/golden/golden_case.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include "model/checkpoint/safetensors.h"
#include "tests/support/files.h"

namespace ziggurat::golden {
namespace {

nlohmann::json ReadJson(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  try {
    return nlohmann::json::parse(file);
  } catch (const nlohmann::json::exception& error) {
    throw std::runtime_error(path.string() + ": " + error.what());
  }
}

template <typename Number>
std::vector<float> ReadNumbers(const TensorView& view) {
  std::vector<Number> numbers(static_cast<size_t>(view.num_elements()));
  std::memcpy(numbers.data(), view.data, view.bytes);
  std::vector<float> values;
  for (const Number number : numbers) values.push_back(static_cast<float>(number));
  return values;
}

/// As float, which holds codes exactly, but not packed words of 32 bits.
Tensors ReadTensors(const std::filesystem::path& path) {
  const auto file = SafetensorsFile::Open(path);
  if (!file.ok()) throw std::runtime_error(std::string(file.status().message()));
  Tensors tensors;
  for (const auto& [name, view] : file->tensors()) {
    Tensor tensor{view.shape, {}};
    if (view.dtype == DType::kF32) {
      tensor.values = ReadNumbers<float>(view);
    } else if (view.dtype == DType::kU8) {
      tensor.values = ReadNumbers<uint8_t>(view);
    } else if (view.dtype == DType::kI32) {
      tensor.values = ReadNumbers<int32_t>(view);
    } else if (view.dtype == DType::kI64) {
      tensor.values = ReadNumbers<int64_t>(view);
    } else if (view.dtype == DType::kF64) {
      tensor.values = ReadNumbers<double>(view);
    } else {
      throw std::runtime_error(path.string() + ": not F32, F64, U8, I32 or I64: " + name);
    }
    tensors.emplace(name, std::move(tensor));
  }
  return tensors;
}

/// All but the tensors.
Case LoadCase(const std::filesystem::path& folder) {
  Case result;
  result.name = folder.filename().string();
  result.manifest = ReadJson(folder / "manifest.json");
  const nlohmann::json expected = ReadJson(folder / "expected.json");
  for (const auto& manifest : result.manifest.at("runs")) {
    const std::string id = manifest.at("run");
    result.runs.push_back({result.name + "/" + id, manifest, expected.at(id), {}});
  }
  return result;
}

void LoadTensors(const std::filesystem::path& folder, Case* golden) {
  for (const auto& input : golden->manifest.at("inputs")) {
    golden->inputs.push_back(ReadTensors(folder / input.at("file").get<std::string>()));
  }
  for (ReferenceRun& run : golden->runs) {
    const auto file = run.manifest.find("expected_tensors");
    if (file != run.manifest.end()) run.tensors = ReadTensors(folder / file->get<std::string>());
  }
}

}  // namespace

bool ReferenceRun::is_kvpress() const {
  const std::string repo = manifest.at("reference").at("repo");
  return repo.find("kvpress") != std::string::npos;
}

bool Case::Has(std::string_view method) const {
  return std::any_of(runs.begin(), runs.end(),
                     [&](const ReferenceRun& run) { return run.method().starts_with(method); });
}

bool Case::HasGroups() const {
  return manifest.value("n_q_heads", 0) != manifest.value("n_kv_heads", 0);
}

std::optional<std::filesystem::path> FindGoldens() {
  const char* named = std::getenv("ZIGGURAT_GOLDENS");
  const std::filesystem::path folder = named != nullptr ? named : SharedFolder() / "goldens";
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) return std::nullopt;
  return folder;
}

std::string MissingGoldens() {
  return "no golden vectors: set ZIGGURAT_GOLDENS to their folder, or put them into "
         "../shared/goldens beside the source tree";
}

bool HasCase(const std::vector<Case>& cases, std::string_view name) {
  return std::any_of(cases.begin(), cases.end(),
                     [&](const Case& golden) { return golden.name == name; });
}

std::string NothingToCompare(std::string_view method) {
  return "no golden vectors of " + std::string(method) + " that can be compared";
}

std::vector<Case> LoadCases(const std::filesystem::path& folder,
                            const std::vector<std::string>& methods) {
  std::vector<std::filesystem::path> folders;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (std::filesystem::exists(entry.path() / "manifest.json")) folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  std::vector<Case> cases;
  for (const auto& path : folders) {
    Case& golden = cases.emplace_back(LoadCase(path));
    const bool wanted = std::any_of(methods.begin(), methods.end(),
                                    [&](const auto& method) { return golden.Has(method); });
    if (wanted) LoadTensors(path, &golden);
  }
  return cases;
}

}  // namespace ziggurat::golden

#include "model/checkpoint/random_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/absl_view.h"
#include "model/checkpoint/model_config.h"
#include "model/checkpoint/random_tokenizer.h"
#include "model/checkpoint/random_weights.h"
#include "model/checkpoint/weights_layout.h"

namespace ziggurat {

namespace {

namespace fs = std::filesystem;

struct Shape {
  std::string_view name;
  Architecture architecture;
  int layers, hidden_size, q_heads, kv_heads, head_dim, intermediate_size, vocab_size;
  int context_tokens;
  double rope_theta;
  double rms_norm_eps;
  bool tied;
};

constexpr Architecture kLlama = Architecture::kLlama;
constexpr Architecture kQwen2 = Architecture::kQwen2;

constexpr std::array<Shape, 5> kShapes = {{
    {"tiny", kLlama, 2, 64, 4, 2, 16, 128, 320, 2048, 1e4, 1e-5, false},
    {"llama-160m", kLlama, 12, 768, 12, 4, 64, 2048, 32000, 4096, 1e4, 1e-5, false},
    {"qwen2.5-0.5b", kQwen2, 24, 896, 14, 2, 64, 4864, 151936, 32768, 1e6, 1e-6, true},
    {"llama-1b", kLlama, 16, 2048, 32, 8, 64, 8192, 32000, 8192, 5e5, 1e-5, false},
    {"llama-3-8b", kLlama, 32, 4096, 32, 8, 128, 14336, 128256, 8192, 5e5, 1e-5, false},
}};

/// The shape with its replacements, checked by the same code that reads config.json.
absl::StatusOr<std::pair<nlohmann::json, ModelConfig>> MakeConfig(
    const RandomModelOptions& options) {
  const auto found = std::find_if(kShapes.begin(), kShapes.end(),
                                  [&](const Shape& row) { return row.name == options.shape; });
  if (found == kShapes.end()) {
    std::string names;
    for (const Shape& shape : kShapes) {
      absl::StrAppend(&names, names.empty() ? "" : ", ", AbslView(shape.name));
    }
    return absl::InvalidArgumentError(
        absl::StrCat("shape \"", options.shape, "\" is not one of ", names));
  }
  const Shape& shape = *found;
  if (options.vocab_size && *options.vocab_size < kMinRandomVocab) {
    return absl::InvalidArgumentError(absl::StrCat("vocabulary of ", *options.vocab_size,
                                                   " tokens; must be at least ", kMinRandomVocab));
  }
  nlohmann::json json = {
      {"architectures", {std::string(ArchitectureName(shape.architecture))}},
      {"model_type", shape.architecture == kQwen2 ? "qwen2" : "llama"},
      {"num_hidden_layers", options.layers.value_or(shape.layers)},
      {"hidden_size", options.hidden_size.value_or(shape.hidden_size)},
      {"num_attention_heads", options.q_heads.value_or(shape.q_heads)},
      {"num_key_value_heads", options.kv_heads.value_or(shape.kv_heads)},
      {"intermediate_size", options.intermediate_size.value_or(shape.intermediate_size)},
      {"vocab_size", options.vocab_size.value_or(shape.vocab_size)},
      {"max_position_embeddings", options.context_tokens.value_or(shape.context_tokens)},
      {"tie_word_embeddings", options.tie_word_embeddings.value_or(shape.tied)},
      {"rope_theta", shape.rope_theta},
      {"rms_norm_eps", shape.rms_norm_eps},
      {"hidden_act", "silu"},
      {"bos_token_id", kRandomBos},
      {"eos_token_id", kRandomEos},
      {"torch_dtype", options.dtype == "f32" ? "float32" : "bfloat16"},
  };
  if (options.head_dim) {
    json["head_dim"] = *options.head_dim;
  } else if (!options.hidden_size && !options.q_heads) {
    json["head_dim"] = shape.head_dim;
  }
  absl::StatusOr<ModelConfig> config = ParseModelConfig(json.dump(), options.shape);
  if (!config.ok()) return config.status();
  json["head_dim"] = config->head_dim;
  if (absl::Status status = CheckSupported(*config); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(options.shape, ": ", status.message()));
  }
  return std::make_pair(std::move(json), *std::move(config));
}

/// Makes the folder, or makes sure that what is in it may be written over. Weights of an earlier
/// model go away: a stale shard or a model.safetensors beside a new index would be read.
absl::Status PrepareFolder(const fs::path& dir, bool force) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (error || !fs::is_directory(dir)) {
    return absl::InternalError(absl::StrCat(dir.string(), ": cannot be made: ", error.message()));
  }
  const bool empty = fs::is_empty(dir, error);
  if (error) return absl::InternalError(absl::StrCat(dir.string(), ": ", error.message()));
  if (empty) return absl::OkStatus();
  if (!force) {
    return absl::AlreadyExistsError(
        absl::StrCat(dir.string(), ": the folder is not empty; --force writes over it"));
  }
  std::vector<fs::path> stale;
  for (fs::directory_iterator entry(dir, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name == "config.json" || name == "model.safetensors.index.json" ||
        (name.starts_with("model") && name.ends_with(".safetensors"))) {
      stale.push_back(entry->path());
    }
  }
  for (const fs::path& file : stale) {
    if (!error) fs::remove(file, error);
  }
  if (error) return absl::InternalError(absl::StrCat(dir.string(), ": ", error.message()));
  return absl::OkStatus();
}

}  // namespace

std::vector<std::string_view> RandomModelShapes() {
  std::vector<std::string_view> names;
  for (const Shape& shape : kShapes) names.push_back(shape.name);
  return names;
}

absl::Status WriteRandomModel(const RandomModelOptions& options, const fs::path& dir) {
  if (options.dtype != "bf16" && options.dtype != "f32") {
    return absl::InvalidArgumentError(
        absl::StrCat("dtype \"", options.dtype, "\" is not one of bf16, f32"));
  }
  absl::StatusOr<std::pair<nlohmann::json, ModelConfig>> made = MakeConfig(options);
  if (!made.ok()) return made.status();
  const auto& [json, config] = *made;

  if (absl::Status status = PrepareFolder(dir, options.force); !status.ok()) return status;
  const DType dtype = options.dtype == "f32" ? DType::kF32 : DType::kBf16;
  absl::Status status =
      WriteRandomWeights(config, dtype, options.seed, options.max_shard_bytes, dir);
  if (status.ok()) status = WriteRandomTokenizer(config.vocab_size, config.MaxContextTokens(), dir);
  if (status.ok()) {
    const nlohmann::json generation = {{"bos_token_id", kRandomBos}, {"eos_token_id", kRandomEos}};
    status = WriteTextFile(dir / "generation_config.json", generation.dump(2) + "\n");
  }
  if (status.ok()) status = WriteTextFile(dir / "config.json", json.dump(2) + "\n");
  return status;
}

}  // namespace ziggurat

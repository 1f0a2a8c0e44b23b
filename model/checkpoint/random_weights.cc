#include "model/checkpoint/random_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "attention/bfloat16.h"
#include "model/checkpoint/output_file.h"
#include "model/checkpoint/random_tokenizer.h"
#include "model/checkpoint/weights_layout.h"

namespace ziggurat {

namespace {

struct Shard {
  std::string file;
  std::vector<WeightSpec> specs;
  size_t bytes = 0;
};

size_t BytesOf(const WeightSpec& spec, DType dtype) {
  size_t bytes = DTypeBytes(dtype);
  for (const int64_t size : spec.shape) bytes *= static_cast<size_t>(size);
  return bytes;
}

std::vector<Shard> PlanShards(const ModelConfig& config, DType dtype, size_t max_shard_bytes) {
  std::vector<Shard> shards(1);
  for (WeightSpec& spec : ExpectedWeights(config)) {
    const size_t bytes = BytesOf(spec, dtype);
    if (shards.back().bytes > 0 && shards.back().bytes + bytes > max_shard_bytes) {
      shards.emplace_back();
    }
    shards.back().bytes += bytes;
    shards.back().specs.push_back(std::move(spec));
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].file = shards.size() == 1
                         ? "model.safetensors"
                         : absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, shards.size());
  }
  return shards;
}

/// splitmix64's finalizer: a bijection of 64 bits that looks random.
inline uint64_t Mix(uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return bits ^ (bits >> 31);
}

/// FNV-1a, so that a tensor's values depend on its name and not on its place.
uint64_t HashName(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

/// Element `index` of a tensor: nearly normal with mean 0 and deviation 1, the sum of four uniform
/// numbers of 16 bits. Integers and one multiplication, so the same on every machine.
inline float NormalAt(uint64_t key, uint64_t index) {
  const uint64_t bits = Mix(key + index * 0x9e3779b97f4a7c15u);
  const uint64_t sum =
      (bits & 0xffff) + ((bits >> 16) & 0xffff) + ((bits >> 32) & 0xffff) + (bits >> 48);
  constexpr int kMean = 2 * 0xffff;
  constexpr float kInverseDeviation = 1.0f / 37836.8f;  // sqrt(4 (2^32 - 1) / 12)
  return static_cast<float>(static_cast<int>(sum) - kMean) * kInverseDeviation;
}

/// Mean and deviation of a tensor's elements. A matrix keeps the scale of its input (deviation
/// 1 / sqrt(inputs)); what is added to the residual stream is scaled down by the number of
/// additions, so that the stream stays near 1 in a model of any depth.
struct Distribution {
  float mean = 0;
  float deviation = 0;
};

Distribution DistributionOf(const WeightSpec& spec, const ModelConfig& config) {
  if (spec.name.ends_with("norm.weight")) return {1, 0};
  if (spec.name.ends_with(".bias")) return {0, 0.02f};
  const auto inputs = static_cast<double>(spec.shape[1]);
  double deviation = 1 / std::sqrt(inputs);
  if (spec.name.ends_with("embed_tokens.weight") && !config.tie_word_embeddings) deviation = 1;
  if (spec.name.ends_with("o_proj.weight") || spec.name.ends_with("down_proj.weight")) {
    deviation /= std::sqrt(2.0 * config.num_layers);
  }
  return {0, static_cast<float>(deviation)};
}

absl::Status WriteTensor(const WeightSpec& spec, const ModelConfig& config, DType dtype,
                         uint64_t seed, OutputFile& file) {
  constexpr size_t kPiece = size_t{1} << 18;  // elements in memory at a time
  const size_t count = BytesOf(spec, dtype) / DTypeBytes(dtype);
  const Distribution distribution = DistributionOf(spec, config);
  const uint64_t key = Mix(HashName(spec.name) ^ Mix(seed));
  std::vector<float> values(std::min(count, kPiece));
  std::vector<uint16_t> halves(dtype == DType::kBf16 ? values.size() : 0);
  for (size_t first = 0; first < count; first += kPiece) {
    const size_t piece = std::min(kPiece, count - first);
    for (size_t i = 0; i < piece; ++i) {
      values[i] = distribution.mean + distribution.deviation * NormalAt(key, first + i);
    }
    const void* data = values.data();
    if (dtype == DType::kBf16) {
      for (size_t i = 0; i < piece; ++i) halves[i] = FloatToBf16(values[i]);
      data = halves.data();
    }
    if (absl::Status status = file.Write(data, piece * DTypeBytes(dtype)); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

/// The length and the JSON, padded with spaces so that the tensors are aligned.
std::string Header(const Shard& shard, DType dtype) {
  constexpr size_t kAlignment = 64;
  nlohmann::json json = {{"__metadata__", {{"format", "pt"}}}};
  size_t begin = 0;
  for (const WeightSpec& spec : shard.specs) {
    const size_t end = begin + BytesOf(spec, dtype);
    json[spec.name] = {{"dtype", std::string(DTypeName(dtype))},
                       {"shape", spec.shape},
                       {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string text = json.dump();
  text.resize((text.size() + 8 + kAlignment - 1) / kAlignment * kAlignment - 8, ' ');
  std::string length(8, '\0');
  for (size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<char>((text.size() >> (8 * i)) & 0xff);
  }
  return length + text;
}

absl::Status WriteShard(const Shard& shard, const ModelConfig& config, DType dtype, uint64_t seed,
                        const std::filesystem::path& dir) {
  absl::StatusOr<OutputFile> file = OutputFile::Create(dir / shard.file);
  if (!file.ok()) return file.status();
  const std::string header = Header(shard, dtype);
  absl::Status status = file->Write(header.data(), header.size());
  for (const WeightSpec& spec : shard.specs) {
    if (status.ok()) status = WriteTensor(spec, config, dtype, seed, *file);
  }
  return status.ok() ? file->Close() : status;
}

absl::Status WriteIndex(const std::vector<Shard>& shards, const std::filesystem::path& dir) {
  nlohmann::json map = nlohmann::json::object();
  size_t bytes = 0;
  for (const Shard& shard : shards) {
    for (const WeightSpec& spec : shard.specs) map[spec.name] = shard.file;
    bytes += shard.bytes;
  }
  const nlohmann::json index = {{"metadata", {{"total_size", bytes}}}, {"weight_map", map}};
  return WriteTextFile(dir / "model.safetensors.index.json", index.dump(2) + "\n");
}

}  // namespace

absl::Status WriteRandomWeights(const ModelConfig& config, DType dtype, uint64_t seed,
                                size_t max_shard_bytes, const std::filesystem::path& dir) {
  const std::vector<Shard> shards = PlanShards(config, dtype, max_shard_bytes);
  size_t bytes = 0;
  for (const Shard& shard : shards) bytes += shard.bytes;
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(dir, error);
  if (!error && space.available < bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(dir.string(), ": the weights take ", bytes,
                                                     " bytes, the disk has ", space.available));
  }
  for (const Shard& shard : shards) {
    absl::Status status = WriteShard(shard, config, dtype, seed, dir);
    if (!status.ok()) return status;
  }
  return shards.size() == 1 ? absl::OkStatus() : WriteIndex(shards, dir);
}

}  // namespace ziggurat

// The weights of a random model, written as they are drawn. Private to this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

#include "absl/status/status.h"
#include "model/checkpoint/model_config.h"
#include "model/checkpoint/safetensors.h"

namespace ziggurat {

/// `dtype` is kBf16 or kF32. Writes model.safetensors, or shards of at most `max_shard_bytes` (a
/// tensor is never split) and their index.
absl::Status WriteRandomWeights(const ModelConfig& config, DType dtype, uint64_t seed,
                                size_t max_shard_bytes, const std::filesystem::path& dir);

}  // namespace ziggurat

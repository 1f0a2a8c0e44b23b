// Writes Hugging Face folders with random weights: for benchmarks, and for tests of any shape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace ziggurat {

struct RandomModelOptions {
  /// One of RandomModelShapes().
  std::string shape = "tiny";

  // These replace what the shape says. Where hidden size or heads are replaced and the head size
  // is not, that becomes hidden_size / heads.
  std::optional<int> layers;
  std::optional<int> hidden_size;
  std::optional<int> q_heads;
  std::optional<int> kv_heads;
  std::optional<int> head_dim;
  std::optional<int> intermediate_size;
  std::optional<int> vocab_size;  ///< at least 258: 256 bytes, beginning and end of text
  std::optional<int> context_tokens;
  std::optional<bool> tie_word_embeddings;

  uint64_t seed = 0;           ///< same options and seed, same bytes
  std::string dtype = "bf16";  ///< of the weights: "bf16" or "f32"
  /// Weights that take more than this are spread over several files with an index.
  size_t max_shard_bytes = size_t{5} << 30;
  bool force = false;  ///< write into a folder that is not empty, over the weights in it
};

/// The names of the shapes, smallest first: "tiny", "llama-160m", "qwen2.5-0.5b", "llama-1b",
/// "llama-3-8b".
std::vector<std::string_view> RandomModelShapes();

/// Writes weights, config.json, generation_config.json, tokenizer.json and tokenizer_config.json
/// into `dir`, which is made if it is not there. config.json comes last, so a folder half written
/// is not taken for a model. Memory: a few megabytes, whatever the shape.
///
/// The tokenizer is byte-level: <|bos|> 0, <|eos|> 1, byte b of a text is token 2 + b; higher ids
/// decode to filler words (" w258") that no text is encoded to.
///
/// INVALID_ARGUMENT: an unknown shape or dtype, or sizes that make no model (names the field).
/// ALREADY_EXISTS: `dir` is not empty. RESOURCE_EXHAUSTED: the disk is full. INTERNAL: it cannot be
/// written.
absl::Status WriteRandomModel(const RandomModelOptions& options, const std::filesystem::path& dir);

}  // namespace ziggurat

// Which tensors a model consists of, under the names that Hugging Face gives them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "block_manager/cache_format.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/model_config.h"

namespace ziggurat {

struct WeightSpec {
  std::string name;
  std::vector<int64_t> shape;                 ///< matrices: [output features, input features]
  std::vector<int64_t> padded_shape = shape;  ///< in a decoder (ModelConfig::padded_head_dim)

  /// Bytes of it in a decoder: matrices are of `element`, vectors f32.
  size_t StoredBytes(ElementType element) const;
};

/// Every tensor of the model: embedding, layers in order, final norm, output head unless tied.
///   model.embed_tokens.weight [vocab_size, hidden_size]
///   model.layers.N.input_layernorm.weight, .post_attention_layernorm.weight [hidden_size]
///   model.layers.N.self_attn.q_proj [q_size, hidden_size], k_proj and v_proj [kv_size,
///     hidden_size], o_proj [hidden_size, q_size]; .weight, and .bias [outputs] where there is one
///   model.layers.N.mlp.gate_proj and up_proj [intermediate_size, hidden_size], down_proj
///     [hidden_size, intermediate_size]; .weight and .bias
///   model.norm.weight [hidden_size]
///   lm_head.weight [vocab_size, hidden_size]
std::vector<WeightSpec> ExpectedWeights(const ModelConfig& config);

/// "model.layers.3." + `suffix`
std::string LayerWeightName(int layer, std::string_view suffix);

/// The weight called `name`. With tied embeddings model.embed_tokens.weight and lm_head.weight are
/// the same matrix, and a checkpoint may hold it under either name. NOT_FOUND names the tensor.
absl::StatusOr<TensorView> FindWeight(const ModelConfig& config, const Checkpoint& checkpoint,
                                      std::string_view name);

/// Whether the checkpoint holds an output head beside the embedding that config.json ties it to,
/// and it is another matrix: somebody has trained it apart, and OpenModel takes it for the head, as
/// version 5 of the Transformers library does.
bool HasHeadOfItsOwn(const ModelConfig& config, const Checkpoint& checkpoint);

/// What a decoder is loaded from.
struct ModelFiles {
  ModelConfig config;  ///< tie_word_embeddings is false where HasHeadOfItsOwn
  Checkpoint checkpoint;
};

/// LoadModelConfig and Checkpoint::Open, with their errors.
absl::StatusOr<ModelFiles> OpenModel(const std::filesystem::path& dir);

/// OK if the checkpoint holds exactly the tensors of the model, with their shapes and a dtype of
/// F32, F16 or BF16. Otherwise INVALID_ARGUMENT lists what is missing, what has another shape or
/// dtype, and what the model has no use for: a tensor left over (a bias that config.json does not
/// announce) means that the model computes something else. Harmless ones are let pass: rotary
/// frequencies, and an output head of the embedding's shape beside tied embeddings.
absl::Status CheckWeights(const ModelConfig& config, const Checkpoint& checkpoint);

}  // namespace ziggurat

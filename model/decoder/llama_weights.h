// The weights of a Llama-family model as the decoder uses them.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "block_manager/cache_format.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/model_config.h"
#include "model/decoder/linear.h"
#include "model/decoder/weight_matrix.h"

namespace ziggurat {

/// One decoder layer; norms are in the memory of the decoder's backend. Projections that read the
/// same activations are one product.
struct LlamaLayer {
  const float* attention_norm = nullptr;  ///< [hidden]
  std::unique_ptr<Linear> qkv;            ///< hidden -> (H + 2G) D: queries, keys, values
  std::unique_ptr<Linear> output;         ///< H D -> hidden
  const float* mlp_norm = nullptr;        ///< [hidden]
  std::unique_ptr<Linear> gate_up;        ///< hidden -> 2f: gate, then up
  std::unique_ptr<Linear> down;           ///< f -> hidden
};

class LlamaWeights {
 public:
  /// Reads, converts to `element` and packs every weight; nothing refers to the checkpoint
  /// afterwards. Errors are those of CheckWeights and of the conversions: they name the tensor.
  static absl::StatusOr<std::unique_ptr<LlamaWeights>> Load(const ModelConfig& config,
                                                            const Checkpoint& checkpoint,
                                                            ElementType element,
                                                            std::unique_ptr<LinearFactory> factory);

  const LlamaLayer& layer(int index) const { return layers_[index]; }
  const float* final_norm() const { return final_norm_; }  ///< [hidden]
  Linear& head() const { return *head_; }                  ///< hidden -> vocabulary
  const void* embedding() const { return embedding_; }     ///< [vocabulary, hidden]

 private:
  LlamaWeights() = default;

  std::unique_ptr<LinearFactory> factory_;  // outlives the linears below, and what pointers name
  const void* embedding_ = nullptr;
  std::vector<LlamaLayer> layers_;
  const float* final_norm_ = nullptr;
  std::unique_ptr<Linear> head_;
};

}  // namespace ziggurat

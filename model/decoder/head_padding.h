// Heads of sizes that attention has no kernels for get channels of zero.
#pragma once

#include <vector>

#include "model/checkpoint/model_config.h"
#include "model/decoder/weight_matrix.h"

namespace ziggurat {

/// One or several of a layer's projections, one below the other.
struct Projection {
  WeightMatrix weight;
  std::vector<float> bias;  ///< empty: none
};

/// Pads the weights of a layer's attention from head_dim to padded_head_dim channels a head. What
/// is computed stays the same: scores get products of zeros, and outputs that are zero meet columns
/// of zeros. Since RoPE turns channel i with i + half a head, of queries and keys each half is
/// padded; of values the end. Does nothing where the sizes are equal. Throws std::bad_alloc.
class HeadPadding {
 public:
  explicit HeadPadding(const ModelConfig& config);

  /// q_proj, k_proj and v_proj: their outputs.
  void PadQkv(Projection& qkv) const;
  /// o_proj: its inputs.
  void PadOutput(Projection& output) const;

 private:
  bool is_needed() const { return padded_ != stored_; }
  /// Where a row of q_proj, k_proj and v_proj goes.
  int PaddedRow(int row) const;

  int rotated_heads_;    ///< of queries and keys; those of values follow
  int heads_;            ///< of all three
  int stored_, padded_;  ///< channels of a head
};

}  // namespace ziggurat

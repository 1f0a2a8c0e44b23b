// Decode steps in the host's memory: a batch of all running sequences, one token each, layer by
// layer over their block tables.
#pragma once

#include <climits>
#include <memory>
#include <vector>

#include "model/decoder/decode_buffers.h"
#include "model/decoder/llama_runner.h"

namespace ziggurat {

class HostLlamaRunner final : public LlamaRunner {
 public:
  HostLlamaRunner(const ModelConfig& config, const DecoderOptions& options,
                  std::unique_ptr<AttentionBackend> backend, std::unique_ptr<LlamaWeights> weights,
                  std::unique_ptr<WorkspaceRegion> workspace);

  absl::Status Decode(absl::Span<const DecodeInput> inputs, float* logits) override;

  /// Prefills a chunk and decodes a token, in a pool of its own, then gives the workspace back.
  absl::Status WarmUp();

 private:
  void PrepareThread() const override;
  int most_head_rows() const override { return INT_MAX; }
  absl::Status RunHead(const void* normed, int rows, float* logits) override {
    return weights_->head().Run(normed, rows, ElementType::kF32, logits);
  }

  void MeasureLazyMass(int layer, absl::Span<const DecodeInput> inputs,
                       const DecodeBuffers::Pointers& buffers);
  absl::Status DecodeLayer(int layer, absl::Span<const DecodeInput> inputs,
                           const DecodeBuffers::Pointers& buffers);

  AttentionBackend& attention_;  ///< backend_, for what only the host does by it
  DecodeBuffers decode_buffers_;
  // Of the layer at hand, kept for their capacity:
  std::vector<DecodeItem> items_;
  std::vector<TokenTarget> moved_targets_;  ///< of items whose layer is as of an earlier step
};

}  // namespace ziggurat

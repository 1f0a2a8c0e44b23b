// The decoder behind llama_decoder.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "attention/backend.h"
#include "model/decoder/decode_buffers.h"
#include "model/decoder/llama_decoder.h"
#include "model/decoder/llama_weights.h"
#include "model/decoder/prefill_workspace.h"
#include "model/decoder/step_decoder.h"
#include "model/model_runner.h"

namespace ziggurat {

/// What a runner is made of. The weights and the workspace are in the backend's memory.
struct LlamaParts {
  std::unique_ptr<AttentionBackend> backend;
  std::unique_ptr<LlamaWeights> weights;
  std::unique_ptr<WorkspaceRegion> workspace;
  /// Null: steps go layer by layer through the backend, in the host's memory.
  std::unique_ptr<StepDecoder> steps;
};

AttentionShape AttentionShapeOf(const ModelConfig& config, ElementType element);
absl::Status CheckOptions(const DecoderOptions& options);

class LlamaRunner final : public ModelRunner {
 public:
  LlamaRunner(const ModelConfig& config, const DecoderOptions& options, LlamaParts parts);

  const ModelShape& shape() const override { return workspace_shape_.model; }
  void AttachPool(PoolView pool) override;
  absl::StatusOr<std::byte*> AllocatePool(size_t num_blocks, size_t block_bytes) override;
  absl::StatusOr<size_t> FreePoolBytes() override;

  size_t WorkspaceBytes(int tokens) const override;
  size_t PromptNeedsBytes(int prompt_tokens, const PrefillNeeds& needs) const override;
  bool is_asynchronous() const override { return steps_ != nullptr; }
  absl::Span<const PrefillLane> lanes() const override { return lanes_; }
  size_t workspace_high_water_bytes() const override;

  absl::StatusOr<std::unique_ptr<PromptBatch>> BeginPrefill(
      int lane, absl::Span<const PrefillPrompt> prompts) override;

  absl::Status Decode(absl::Span<const DecodeInput> inputs, float* logits) override;
  bool draws_tokens() const override { return steps_ != nullptr; }
  absl::Status DecodeTokens(absl::Span<const DecodeInput> inputs, absl::Span<const TokenDraw> draws,
                            SampledToken* tokens) override;
  void PrepareDecode(absl::Span<const DecodeInput> inputs) override;
  absl::Status AwaitTokens() override;
  void Sample(absl::Span<const TokenDraw> draws, absl::Span<float* const> logits,
              SampledToken* tokens) override;
  absl::Status EditCache(absl::Span<const CacheEdit> edits) override;

  double attention_seconds() const override { return attention_seconds_; }
  DeviceSeconds device_seconds() const override {
    return {steps_ == nullptr ? 0 : steps_->busy_seconds(), backend_->edit_seconds()};
  }

  /// Prefills a chunk through layer 0 and decodes a token through all, in a pool of its own, then
  /// gives the workspace back.
  absl::Status WarmUp();

 private:
  friend class LlamaBatch;

  absl::Status CheckPrompts(int lane, absl::Span<const PrefillPrompt> prompts) const;

  // llama_decode.cc
  absl::Status CheckInputs(absl::Span<const DecodeInput> inputs) const;
  absl::Status CheckLayers(const DecodeInput& input) const;
  void MeasureLazyMass(int layer, absl::Span<const DecodeInput> inputs,
                       const DecodeBuffers::Pointers& buffers);
  absl::Status DecodeLayer(int layer, absl::Span<const DecodeInput> inputs,
                           const DecodeBuffers::Pointers& buffers);

  /// residual += down(SwiGLU(gate_up(norm(residual)))), for rows that are ready.
  absl::Status RunMlp(const LlamaLayer& layer, int rows, float* residual, void* normed, void* wide,
                      void* gated);
  /// Before anything is computed, on whichever thread calls.
  void UseThreads() const;

  const DecoderOptions options_;
  WorkspaceShape workspace_shape_;
  std::vector<PrefillLane> lanes_;
  /// [lanes] Bytes that the batch there uses, 0 where none runs; and the most so far, which stays
  /// resident.
  std::vector<size_t> used_bytes_, high_water_bytes_;
  AttentionShape attention_shape_;
  ElementType element_;
  size_t element_bytes_;
  float norm_epsilon_;
  std::vector<float> inverse_frequencies_;  ///< [head_dim / 2], of the rotary embedding
  std::unique_ptr<AttentionBackend> backend_;
  std::unique_ptr<LlamaWeights> weights_;
  std::unique_ptr<WorkspaceRegion> workspace_;
  std::unique_ptr<StepDecoder> steps_;
  double attention_seconds_ = 0;
  PoolView pool_;
  DecodeBuffers decode_buffers_;
  /// The step of each sequence's input that PrepareDecode was told of and found right.
  std::unordered_map<uint64_t, int> checked_steps_;
  // Of the layer at hand, kept for their capacity:
  std::vector<DecodeItem> items_;
  std::vector<TokenTarget> moved_targets_;  ///< of items whose layer is as of an earlier step
};

}  // namespace ziggurat

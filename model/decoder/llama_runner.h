// The decoder behind llama_decoder.h and cuda_decoder.h: prompts, and what steps have in common
// wherever they are computed.
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
#include "model/decoder/llama_decoder.h"
#include "model/decoder/llama_weights.h"
#include "model/decoder/prefill_workspace.h"
#include "model/model_runner.h"

namespace ziggurat {

AttentionShape AttentionShapeOf(const ModelConfig& config, ElementType element);
absl::Status CheckOptions(const DecoderOptions& options);

/// What a runner is made of. The weights and the workspace are in the backend's memory.
struct LlamaParts {
  std::unique_ptr<PromptBackend> backend;
  std::unique_ptr<LlamaWeights> weights;
  std::unique_ptr<WorkspaceRegion> workspace;
};

class LlamaRunner : public ModelRunner {
 public:
  LlamaRunner(const ModelConfig& config, const DecoderOptions& options, LlamaParts parts);

  const ModelShape& shape() const override { return workspace_shape_.model; }
  void AttachPool(PoolView pool) override { pool_ = pool; }

  size_t WorkspaceBytes(int tokens) const override;
  size_t PromptNeedsBytes(int prompt_tokens, const PrefillNeeds& needs) const override;
  absl::Span<const PrefillLane> lanes() const override { return lanes_; }
  size_t workspace_high_water_bytes() const override;

  absl::StatusOr<std::unique_ptr<PromptBatch>> BeginPrefill(
      int lane, absl::Span<const PrefillPrompt> prompts) override;
  absl::Status EditCache(absl::Span<const CacheEdit> edits) override;

  double attention_seconds() const override { return attention_seconds_; }

 protected:
  void SampleAll(absl::Span<const TokenDraw> draws, float* logits, SampledToken* tokens) override;

  /// Before anything is computed, on whichever thread calls.
  virtual void PrepareThread() const = 0;
  /// The head's products, of up to most_head_rows() rows at a time.
  ///   normed  [rows, hidden] in the backend's memory
  ///   logits  [rows, vocab_size] f32, the host's
  virtual int most_head_rows() const = 0;
  virtual absl::Status RunHead(const void* normed, int rows, float* logits) = 0;

  /// What no step may be computed of. Looks at layers only where they are new, and have not been
  /// found right ahead.
  absl::Status CheckInputs(absl::Span<const DecodeInput> inputs) const;
  /// For inputs that PrepareDecode is told of.
  void CheckAhead(absl::Span<const DecodeInput> inputs);
  void ForgetAhead() { checked_steps_.clear(); }

  /// residual += down(SwiGLU(gate_up(norm(residual)))), for rows that are ready.
  absl::Status RunMlp(const LlamaLayer& layer, int rows, float* residual, void* normed, void* wide,
                      void* gated);

  const DecoderOptions options_;
  const WorkspaceShape workspace_shape_;
  const AttentionShape attention_shape_;
  const ElementType element_;
  const float norm_epsilon_;
  const std::vector<float> inverse_frequencies_;  ///< [head_dim / 2], of the rotary embedding
  const std::unique_ptr<PromptBackend> backend_;
  const std::unique_ptr<LlamaWeights> weights_;
  const std::unique_ptr<WorkspaceRegion> workspace_;
  const std::vector<PrefillLane> lanes_;
  /// [lanes] Bytes that the batch there uses, 0 where none runs; and the most so far, which stays
  /// resident.
  std::vector<size_t> used_bytes_, high_water_bytes_;
  double attention_seconds_ = 0;
  PoolView pool_;

 private:
  friend class LlamaBatch;

  absl::Status CheckPrompts(int lane, absl::Span<const PrefillPrompt> prompts) const;
  absl::Status CheckLayers(const DecodeInput& input) const;

  /// The step of each sequence's input that was found right ahead.
  std::unordered_map<uint64_t, int> checked_steps_;
};

}  // namespace ziggurat

// The decoder behind llama_decoder.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "attention/backend.h"
#include "model/cache_ops/prompt_layer.h"
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
  size_t workspace_capacity_bytes() const override { return workspace_->bytes(); }
  size_t workspace_high_water_bytes() const override { return workspace_high_water_; }
  int max_prefill_tokens() const override { return options_.max_prefill_tokens; }

  absl::Status BeginPrefill(absl::Span<const PrefillPrompt> prompts) override;
  void DropPrompt(int prompt) override;
  absl::StatusOr<bool> AttendLayer(int layer, PauseTest pause,
                                   std::vector<LayerMeasured>* measured) override;
  absl::Status WriteLayer(int layer, absl::Span<const LayerWrite> writes) override;
  absl::StatusOr<bool> FinishLayer(int layer, PauseTest pause,
                                   std::vector<double>* cosines) override;
  absl::Status SelectStored(int prompt, int layer, const KeepBest& edit,
                            std::vector<int32_t>* kept) override;
  absl::Status LastAttention(int prompt, int rows, float* attention) override;
  absl::Status FinishPrefill(float* logits) override;
  void AbandonPrefill() override { batch_ = Batch(); }

  absl::Status Decode(absl::Span<const DecodeInput> inputs, float* logits) override;
  bool draws_tokens() const override { return steps_ != nullptr; }
  absl::Status DecodeTokens(absl::Span<const DecodeInput> inputs, absl::Span<const TokenDraw> draws,
                            SampledToken* tokens) override;
  void Sample(absl::Span<const TokenDraw> draws, absl::Span<float* const> logits,
              SampledToken* tokens) override;
  absl::Status EditCache(absl::Span<const CacheEdit> edits) override;

  double attention_seconds() const override { return attention_seconds_; }

  /// Prefills a chunk through layer 0 and decodes a token through all, in a pool of its own, then
  /// gives the workspace back.
  absl::Status WarmUp();

 private:
  /// What comes next of a layer.
  enum class Stage : uint8_t { kProject, kAttend, kWrite, kFinish };
  static const char* StageName(Stage stage);

  /// The prefill batch at hand.
  struct Batch {
    bool active = false;
    int next_layer = 0;
    Stage stage = Stage::kProject;  ///< of next_layer
    int next_row = 0;               ///< rows before it are done in this stage
    std::vector<double> cosines;    ///< [prompts] of the rows that are done in kFinish
    PrefillLayout layout;
    std::vector<int> offsets;  ///< [prompts + 1] first token of each
    std::vector<bool> gone;    ///< [prompts] nothing more is computed of it
    std::vector<PromptLayers> prompts;

    int num_prompts() const { return static_cast<int>(offsets.size()) - 1; }
    int num_tokens() const { return offsets.back(); }
  };

  /// A part of the workspace, `rows` rows of `row_width` elements in.
  template <typename T>
  T* Part(size_t offset, size_t rows = 0, size_t row_width = 0) const {
    return reinterpret_cast<T*>(workspace_->base() + offset) + rows * row_width;
  }
  void* ElementPart(size_t offset, size_t rows = 0, size_t row_width = 0) const {
    return workspace_->base() + offset + rows * row_width * element_bytes_;
  }

  // llama_prefill.cc
  absl::Status CheckPrompts(absl::Span<const PrefillPrompt> prompts) const;
  void EmbedPrompts(absl::Span<const PrefillPrompt> prompts);
  absl::Status CheckTurn(int layer, Stage stage) const;
  absl::StatusOr<bool> ForChunks(PauseTest pause,
                                 absl::FunctionRef<absl::Status(int first, int rows)> run);
  absl::Status Project(const LlamaLayer& layer, int first, int rows);
  PromptTensors TensorsOf(int prompt) const;
  bool AttendPart(int layer);
  int EndOfPart(int prompt, int first_row, double* flops) const;
  absl::Status EndRows(const LlamaLayer& layer, int first, int rows);
  void AddCosines(int first, int rows);
  absl::Status LastLogits(float* logits);

  // llama_decode.cc
  absl::Status CheckInputs(absl::Span<const DecodeInput> inputs) const;
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
  AttentionShape attention_shape_;
  ElementType element_;
  size_t element_bytes_;
  float norm_epsilon_;
  std::vector<float> inverse_frequencies_;  ///< [head_dim / 2], of the rotary embedding
  std::unique_ptr<AttentionBackend> backend_;
  std::unique_ptr<LlamaWeights> weights_;
  std::unique_ptr<WorkspaceRegion> workspace_;
  std::unique_ptr<StepDecoder> steps_;
  size_t workspace_high_water_ = 0;
  double attention_seconds_ = 0;
  PoolView pool_;
  Batch batch_;
  DecodeBuffers decode_buffers_;
  // Of the layer at hand, kept for their capacity:
  std::vector<DecodeItem> items_;
  std::vector<TokenTarget> moved_targets_;  ///< of items whose layer is as of an earlier step
};

}  // namespace ziggurat

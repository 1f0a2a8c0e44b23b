// A prefill batch of LlamaRunner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/cache_ops/prompt_layer.h"
#include "model/decoder/llama_runner.h"

namespace ziggurat {

class LlamaBatch final : public PromptBatch {
 public:
  /// The prompts have been checked, and the lane is free.
  LlamaBatch(LlamaRunner* runner, int lane, absl::Span<const PrefillPrompt> prompts);
  ~LlamaBatch() override;

  void Drop(int prompt) override { gone_[prompt] = true; }
  absl::StatusOr<bool> AttendLayer(int layer, PauseTest pause,
                                   std::vector<LayerMeasured>* measured) override;
  absl::Status WriteLayer(int layer, absl::Span<const LayerWrite> writes) override;
  absl::StatusOr<bool> FinishLayer(int layer, PauseTest pause,
                                   std::vector<double>* cosines) override;
  absl::Status SelectStored(int prompt, int layer, const KeepBest& edit,
                            std::vector<int32_t>* kept) override;
  absl::Status LastLogits(float* logits) override;
  absl::Status LastAttention(int prompt, int rows, float* attention) override;

 private:
  /// What comes next of a layer.
  enum class Stage : uint8_t { kProject, kAttend, kSumColumns, kWrite, kFinish };
  static const char* StageName(Stage stage);

  int num_prompts() const { return static_cast<int>(offsets_.size()) - 1; }
  int num_tokens() const { return offsets_.back(); }
  /// Row `row` of a part of the workspace, whose rows have `width` elements.
  static float* RowOf(float* part, size_t row, size_t width) { return part + row * width; }
  void* RowOf(void* part, size_t row, size_t width) const {
    return static_cast<std::byte*>(part) + row * width * ElementBytes(element_);
  }
  PromptTensors TensorsOf(int prompt) const;

  void EmbedPrompts(absl::Span<const PrefillPrompt> prompts);
  absl::Status CheckTurn(int layer, Stage stage) const;
  absl::StatusOr<bool> ForChunks(PauseTest pause,
                                 absl::FunctionRef<absl::Status(int first, int rows)> run);
  absl::Status Project(const LlamaLayer& layer, int first, int rows);
  int EndOfRows() const;
  void AttendPart(int layer);
  double FlopsOfAPart() const;
  int JobsOfAHead() const;
  int EndOfPart(int prompt, int first_row, double* flops) const;
  int NextToSum(int layer) const;
  void SumPart(int prompt);
  absl::Status EndRows(const LlamaLayer& layer, int first, int rows);
  bool WantsCosine(int prompt) const {
    return !gone_[prompt] && prompts_[prompt].plan().importance == LayerImportance::kCosine;
  }
  void AddCosines(int first, int rows);

  LlamaRunner& runner_;
  PromptBackend& backend_;
  const LlamaWeights& weights_;
  const ModelShape& shape_;
  const AttentionShape& heads_;
  const ElementType element_;
  const int lane_;
  std::byte* base_;  ///< of the lane

  PrefillLayout layout_;
  std::vector<int> offsets_ = {0};  ///< [prompts + 1] first token of each
  std::vector<bool> gone_;          ///< [prompts] nothing more is computed of it
  std::vector<PromptLayers> prompts_;
  int next_layer_ = 0;
  Stage stage_ = Stage::kProject;  ///< of next_layer_
  int next_row_ = 0;               ///< rows before it are done in this stage
  std::vector<double> cosines_;    ///< [prompts] of the rows that are done in kFinish
};

}  // namespace ziggurat

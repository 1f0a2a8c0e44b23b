// A model that computes nothing, so that what is left of a step is the engine: to time that, and to
// forecast what a request will hold.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "compression/pod_groups.h"
#include "model/model_runner.h"

namespace ziggurat {

/// Every selection keeps the last tokens that it must, and the first ones, as many as the plan
/// allows; every logit is 0. Touches no cache.
class NullModel : public ModelRunner {
 public:
  explicit NullModel(const ModelShape& shape) : shape_(shape) {}

  const ModelShape& shape() const override { return shape_; }
  size_t WorkspaceBytes(int /*tokens*/) const override { return 0; }
  size_t PromptNeedsBytes(int /*tokens*/, const PrefillNeeds& /*needs*/) const override {
    return 0;
  }
  absl::Span<const PrefillLane> lanes() const override { return {&lane_, 1}; }
  size_t workspace_high_water_bytes() const override { return 0; }

  /// Of the layers that a plan has tested, the lowest are found lazy, this share of them. 0 at
  /// first.
  void set_lazy_share(double share) { lazy_share_ = share; }

  absl::StatusOr<std::unique_ptr<PromptBatch>> BeginPrefill(
      int /*lane*/, absl::Span<const PrefillPrompt> prompts) override {
    return std::make_unique<Batch>(this, prompts);
  }
  absl::Status Decode(absl::Span<const DecodeInput> inputs, float* logits) override {
    return ZeroLogits(inputs.size(), logits);
  }
  absl::Status EditCache(absl::Span<const CacheEdit> /*edits*/) override {
    return absl::OkStatus();
  }

 private:
  class Batch final : public PromptBatch {
   public:
    Batch(const NullModel* model, absl::Span<const PrefillPrompt> prompts)
        : model_(*model), prompts_(prompts.begin(), prompts.end()) {}

    void Drop(int prompt) override { prompts_[prompt].plan = nullptr; }
    absl::StatusOr<bool> AttendLayer(int layer, PauseTest /*pause*/,
                                     std::vector<LayerMeasured>* measured) override {
      for (size_t i = 0; i < prompts_.size(); ++i) {
        if (prompts_[i].plan == nullptr) continue;
        (*measured)[i] = model_.MeasureLayer(layer, prompts_[i]);
      }
      return true;
    }
    absl::Status WriteLayer(int /*layer*/, absl::Span<const LayerWrite> /*writes*/) override {
      return absl::OkStatus();
    }
    absl::StatusOr<bool> FinishLayer(int /*layer*/, PauseTest /*pause*/,
                                     std::vector<double>* /*cosines*/) override {
      return true;
    }
    absl::Status SelectStored(int /*prompt*/, int /*layer*/, const KeepBest& edit,
                              std::vector<int32_t>* kept) override {
      kept->clear();
      for (int head = 0; head < model_.shape_.num_kv_heads; ++head) {
        for (int i = 0; i < edit.best + edit.recent; ++i) kept->push_back(i);
      }
      return absl::OkStatus();
    }
    absl::Status LastLogits(float* logits) override {
      return model_.ZeroLogits(prompts_.size(), logits);
    }

   private:
    const NullModel& model_;
    std::vector<PrefillPrompt> prompts_;
  };

  LayerMeasured MeasureLayer(int layer, const PrefillPrompt& prompt) const {
    const LayerPlan& plan = prompt.plan->layers[layer];
    const int tokens = static_cast<int>(prompt.token_ids.size());
    LayerMeasured measured;
    measured.kept_tokens =
        static_cast<int>(std::min<size_t>(prompt.token_ids.size(), plan.prompt_tokens_kept));
    measured.first_tokens = std::max(0, measured.kept_tokens - LastTokens(*prompt.plan, layer));
    if (plan.merge == MergeRole::kUpper) {
      measured.retained_tokens = prompt.plan->merge->Retained(measured.kept_tokens);
    }
    measured.lazy = IsLazy(*prompt.plan, layer);
    if (measured.lazy) measured.KeepFirstAndLast(plan.lazy->sinks, plan.lazy->recent, tokens);
    return measured;
  }
  /// How many of the tokens that the layer keeps are the last ones, whatever it selects.
  static int LastTokens(const CachePlan& plan, int layer) {
    const LayerEdit& edit = plan.layers[layer].edit;
    if (const auto* best = std::get_if<KeepBest>(&edit)) return best->recent;
    if (const auto* ring = std::get_if<KeepRing>(&edit)) return ring->recent;
    if (const auto* heavy = std::get_if<KeepHeavy>(&edit)) return heavy->recent;
    if (const auto* windows = std::get_if<KeepWindows>(&edit)) return windows->observe;
    if (const auto* leaders = std::get_if<KeepAsLeader>(&edit)) {
      return LastTokens(
          plan, leaders->leader == -1 ? *plan.distant->groups->Followed(layer) : leaders->leader);
    }
    return 0;
  }
  bool IsLazy(const CachePlan& plan, int layer) const {
    const auto tested = [&](int end) {
      return std::count_if(plan.layers.begin(), plan.layers.begin() + end,
                           [](const LayerPlan& of_layer) { return of_layer.lazy.has_value(); });
    };
    const double lazy = lazy_share_ * static_cast<double>(tested(shape_.num_layers));
    return plan.layers[layer].lazy.has_value() && tested(layer) < std::lround(lazy);
  }
  absl::Status ZeroLogits(size_t rows, float* logits) const {
    std::fill_n(logits, rows * shape_.vocab_size, 0.0f);
    return absl::OkStatus();
  }

  ModelShape shape_;
  double lazy_share_ = 0;
  PrefillLane lane_ = {.max_tokens = std::numeric_limits<int>::max()};
};

}  // namespace ziggurat

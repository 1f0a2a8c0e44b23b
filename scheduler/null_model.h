// A model that computes nothing, so that what is left of a step is the engine: to time that, and to
// forecast what a request will hold.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "model/model_runner.h"

namespace ziggurat {

/// Every selection keeps the first and the last tokens, as many as the plan allows; every logit is
/// 0. Touches no cache.
class NullModel final : public ModelRunner {
 public:
  NullModel(const ModelShape& shape, int batch) : shape_(shape), batch_(batch) {}

  const ModelShape& shape() const override { return shape_; }
  size_t WorkspaceBytes(int /*tokens*/) const override { return 0; }
  size_t PromptNeedsBytes(int /*tokens*/, const PrefillNeeds& /*needs*/) const override {
    return 0;
  }
  size_t workspace_capacity_bytes() const override { return 0; }
  size_t workspace_high_water_bytes() const override { return 0; }
  int max_prefill_tokens() const override { return std::numeric_limits<int>::max(); }

  /// Of the layers that a plan has tested, the lowest are found lazy, this share of them. 0 at
  /// first.
  void set_lazy_share(double share) { lazy_share_ = share; }
  /// Called with the inputs of every decode step.
  void set_on_decode(std::function<void(absl::Span<const DecodeInput>)> on_decode) {
    on_decode_ = std::move(on_decode);
  }
  /// Until then the first prefill waits, so that no request decodes while others are on their way.
  void Start() { may_start_.store(true); }
  /// Until then the second step that decodes the whole batch waits.
  void Continue() { may_continue_.store(true); }

  absl::Status BeginPrefill(absl::Span<const PrefillPrompt> prompts) override {
    Await(may_start_);
    prompts_.assign(prompts.begin(), prompts.end());
    return absl::OkStatus();
  }
  void DropPrompt(int /*prompt*/) override {}
  absl::StatusOr<bool> AttendLayer(int layer, PauseTest /*pause*/,
                                   std::vector<LayerMeasured>* measured) override {
    for (size_t i = 0; i < prompts_.size(); ++i) {
      const LayerPlan& plan = prompts_[i].plan->layers[layer];
      LayerMeasured& of_prompt = (*measured)[i];
      of_prompt.kept_tokens =
          static_cast<int>(std::min<size_t>(prompts_[i].token_ids.size(), plan.prompt_tokens_kept));
      of_prompt.first_tokens = of_prompt.kept_tokens;
      if (const auto* ring = std::get_if<KeepRing>(&plan.edit)) {
        of_prompt.first_tokens = std::min(ring->sinks, of_prompt.kept_tokens);
      }
      if (plan.merge == MergeRole::kUpper) {
        of_prompt.retained_tokens = prompts_[i].plan->merge->Retained(of_prompt.kept_tokens);
      }
      of_prompt.lazy = IsLazy(*prompts_[i].plan, layer);
      if (!of_prompt.lazy) continue;
      of_prompt.KeepFirstAndLast(plan.lazy->sinks, plan.lazy->recent,
                                 static_cast<int>(prompts_[i].token_ids.size()));
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
    for (int head = 0; head < shape_.num_kv_heads; ++head) {
      for (int i = 0; i < edit.best + edit.recent; ++i) kept->push_back(i);
    }
    return absl::OkStatus();
  }
  absl::Status FinishPrefill(float* logits) override { return ZeroLogits(prompts_.size(), logits); }
  void AbandonPrefill() override { prompts_.clear(); }
  absl::Status Decode(absl::Span<const DecodeInput> inputs, float* logits) override {
    if (static_cast<int>(inputs.size()) == batch_ && ++whole_steps_ == 2) Await(may_continue_);
    if (on_decode_) on_decode_(inputs);
    return ZeroLogits(inputs.size(), logits);
  }
  absl::Status EditCache(absl::Span<const CacheEdit> /*edits*/) override {
    return absl::OkStatus();
  }

 private:
  static void Await(const std::atomic<bool>& permission) {
    while (!permission.load()) std::this_thread::sleep_for(std::chrono::microseconds(100));
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
  int batch_;
  int whole_steps_ = 0;
  double lazy_share_ = 0;
  std::function<void(absl::Span<const DecodeInput>)> on_decode_;
  std::atomic<bool> may_start_ = false;
  std::atomic<bool> may_continue_ = false;
  std::vector<PrefillPrompt> prompts_;
};

}  // namespace ziggurat

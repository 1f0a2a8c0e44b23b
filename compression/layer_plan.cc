#include "compression/layer_plan.h"

#include <algorithm>
#include <utility>

namespace ziggurat {

LayerPlan PlanKeepAll(const SequenceLimits& limits) {
  LayerPlan plan;
  plan.edit = KeepAll{};
  plan.prompt_tokens_kept = limits.prompt_tokens;
  plan.max_tokens = plan.prompt_tokens_kept + limits.appended_tokens();
  return plan;
}

LayerPlan PlanKeepBest(const SequenceLimits& limits, const WindowScoreStatistic& statistic,
                       int64_t budget) {
  if (limits.prompt_tokens <= budget) return PlanKeepAll(limits);
  LayerPlan plan;
  plan.statistic = statistic;
  plan.edit = KeepBest{static_cast<int>(budget - statistic.window), statistic.window};
  plan.prompt_tokens_kept = static_cast<size_t>(budget);
  plan.max_tokens = plan.prompt_tokens_kept + limits.appended_tokens();
  return plan;
}

LayerPlan PlanKeepRing(const SequenceLimits& limits, int sinks, int recent) {
  const int64_t slots = int64_t{sinks} + recent;
  LayerPlan plan;
  plan.edit = KeepRing{sinks, recent};
  plan.prompt_tokens_kept = std::min<int64_t>(limits.prompt_tokens, slots);
  plan.max_tokens = std::min(limits.prompt_tokens + limits.appended_tokens(), slots);
  return plan;
}

CachePlan CompletePlan(std::vector<LayerPlan> layers) {
  CachePlan plan;
  for (const LayerPlan& layer : layers) {
    if (const auto* score = std::get_if<WindowScoreStatistic>(&layer.statistic)) {
      plan.window_rows = std::max(plan.window_rows, score->window);
    }
  }
  plan.layers = std::move(layers);
  return plan;
}

}  // namespace ziggurat

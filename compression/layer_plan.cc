#include "compression/layer_plan.h"

#include <algorithm>

#include "absl/algorithm/container.h"

namespace ziggurat {
namespace {

/// Query rows that prefill must keep; -1 is all of them, and more than any number.
void NeedRows(int rows, PrefillNeeds* needs) {
  if (rows < 0 || needs->window_rows < 0) {
    needs->window_rows = -1;
  } else {
    needs->window_rows = std::max(needs->window_rows, rows);
  }
}

void NeedScores(int rows, int heads, PrefillNeeds* needs) {
  NeedRows(rows, needs);
  needs->score_heads = std::max(needs->score_heads, heads);
  needs->selects = true;
}

void AddNeeds(const PolicyContext& context, const LayerPlan& layer, PrefillNeeds* needs) {
  if (const auto* score = std::get_if<WindowScoreStatistic>(&layer.statistic)) {
    NeedScores(score->window, context.num_kv_heads, needs);
  }
  if (std::holds_alternative<KeepHeavy>(layer.edit)) {
    NeedScores(-1, context.num_kv_heads, needs);
  }
  if (const auto* windows = std::get_if<KeepWindows>(&layer.edit)) {
    NeedScores(windows->observe, context.num_q_heads, needs);
  }
  if (std::holds_alternative<KeepAsLeader>(layer.edit)) needs->selects = true;
  if (layer.lazy.has_value()) NeedRows(layer.lazy->last, needs);
  if (layer.merge == MergeRole::kUpper) needs->lower_kv = true;
}

bool HasScores(const LayerPlan& layer) {
  return std::holds_alternative<WindowScoreStatistic>(layer.statistic);
}

}  // namespace

LayerPlan PlanKeepAll(const SequenceLimits& limits) {
  LayerPlan plan;
  plan.edit = KeepAll{};
  plan.prompt_tokens_kept = limits.prompt_tokens;
  return plan;
}

CachePlan PlanFull(const PolicyContext& context, const SequenceLimits& limits) {
  CachePlan plan;
  plan.layers.assign(context.num_layers, PlanKeepAll(limits));
  return plan;
}

LayerPlan PlanKeepBest(const SequenceLimits& limits, const WindowScoreStatistic& statistic,
                       int64_t budget) {
  if (limits.prompt_tokens <= budget) return PlanKeepAll(limits);
  LayerPlan plan;
  plan.statistic = statistic;
  plan.edit = KeepBest{static_cast<int>(budget - statistic.window), statistic.window};
  plan.prompt_tokens_kept = static_cast<size_t>(budget);
  return plan;
}

LayerPlan PlanKeepRing(const SequenceLimits& limits, int sinks, int recent) {
  const int64_t slots = int64_t{sinks} + recent;
  LayerPlan plan;
  plan.edit = KeepRing{sinks, recent};
  plan.prompt_tokens_kept = std::min<int64_t>(limits.prompt_tokens, slots);
  return plan;
}

LayerPlan PlanKeepHeavy(const SequenceLimits& limits, const KeepHeavy& edit) {
  const int64_t slots = int64_t{edit.heavy} + edit.recent + 1;
  // Its last token may take the spare slot: nothing attends after it is freed.
  if (limits.prompt_tokens < slots && limits.total_tokens() <= slots) return PlanKeepAll(limits);
  LayerPlan plan;
  plan.edit = edit;
  plan.prompt_tokens_kept = std::min<int64_t>(limits.prompt_tokens, slots - 1);
  return plan;
}

LayerPlan PlanKeepWindows(const SequenceLimits& limits, const KeepWindows& edit) {
  const int64_t kept = int64_t{edit.observe} + edit.budget;
  if (limits.prompt_tokens <= kept) return PlanKeepAll(limits);
  LayerPlan plan;
  plan.edit = edit;
  plan.prompt_tokens_kept = static_cast<size_t>(kept);
  return plan;
}

LayerPlan PlanKeepAsLeader(const LayerPlan& leader, const KeepAsLeader& edit) {
  if (std::holds_alternative<KeepAll>(leader.edit)) return leader;
  LayerPlan plan = leader;
  plan.statistic = {};
  plan.edit = edit;
  return plan;
}

void RaiseNeeds(const PolicyContext& context, const SequenceLimits& limits, CachePlan* plan) {
  PrefillNeeds& needs = plan->needs;
  for (const LayerPlan& layer : plan->layers) AddNeeds(context, layer, &needs);
  // Within the near window of the last query nothing is distant.
  if (plan->distant.has_value() &&
      limits.prompt_tokens > int64_t{plan->distant->sinks} + plan->distant->recent) {
    needs.group_qk = true;
  }
  if (plan->decide == DecideAt::kPrompt && absl::c_any_of(plan->layers, HasScores)) {
    needs.stored_score_layers = static_cast<int>(plan->layers.size());
  }
}

}  // namespace ziggurat

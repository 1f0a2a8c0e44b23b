// The slots that each kind of edit needs: how edits become LayerPlans and those a CachePlan.
#pragma once

#include <cstdint>
#include <vector>

#include "compression/cache_plan.h"
#include "compression/policy.h"

namespace ziggurat {

/// The length of a sequence. The cache receives one token for each generated one but the last.
struct SequenceLimits {
  int prompt_tokens = 1;   ///< >= 1
  int max_new_tokens = 0;  ///< >= 0

  int64_t appended_tokens() const { return max_new_tokens > 1 ? max_new_tokens - 1 : 0; }
  /// All that the cache of an uncompressed layer ever receives.
  int64_t total_tokens() const { return prompt_tokens + appended_tokens(); }
};

/// Everything is kept, new tokens are appended.
LayerPlan PlanKeepAll(const SequenceLimits& limits);

/// The `budget` - statistic.window best tokens by `statistic` and the window; new tokens are
/// appended. A prompt of at most `budget` tokens is kept whole and nothing is measured.
/// budget >= statistic.window.
LayerPlan PlanKeepBest(const SequenceLimits& limits, const WindowScoreStatistic& statistic,
                       int64_t budget);

/// The first `sinks` tokens and a ring of the last `recent`.
LayerPlan PlanKeepRing(const SequenceLimits& limits, int sinks, int recent);

/// The `heavy` tokens with most accumulated attention and the last `recent`, in heavy + recent + 1
/// slots. A sequence that never fills those is kept whole and nothing is measured.
LayerPlan PlanKeepHeavy(const SequenceLimits& limits, const KeepHeavy& edit);

/// The observed tokens and windows of at most `edit.budget` tokens; new tokens are appended. A
/// prompt that fits is kept whole and nothing is measured.
LayerPlan PlanKeepWindows(const SequenceLimits& limits, const KeepWindows& edit);

/// The tokens that `leader`, the plan of another layer, keeps: `edit` names that layer. A leader
/// that keeps everything needs no following.
LayerPlan PlanKeepAsLeader(const LayerPlan& leader, const KeepAsLeader& edit);

/// Adds what concerns all layers together: what the prefill needs for them (CachePlan::needs).
/// Whoever changes a plan completes it again.
CachePlan CompletePlan(const PolicyContext& context, const SequenceLimits& limits, CachePlan plan);
CachePlan CompletePlan(const PolicyContext& context, const SequenceLimits& limits,
                       std::vector<LayerPlan> layers);

}  // namespace ziggurat

// How edits become LayerPlans, and what these need of prefill.
#pragma once

#include <cstdint>

#include "compression/cache_plan.h"
#include "compression/policy.h"

namespace ziggurat {

/// Everything is kept, new tokens are appended.
LayerPlan PlanKeepAll(const SequenceLimits& limits);
/// The same in every layer: the plan of `full`.
CachePlan PlanFull(const PolicyContext& context, const SequenceLimits& limits);

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

/// Raises `plan->needs` to what the layers need of prefill. AskForPlan does so with every plan.
void RaiseNeeds(const PolicyContext& context, const SequenceLimits& limits, CachePlan* plan);

}  // namespace ziggurat

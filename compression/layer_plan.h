// The slots that each kind of edit needs: how edits become LayerPlans and those a CachePlan.
#pragma once

#include <cstdint>
#include <vector>

#include "compression/cache_plan.h"

namespace ziggurat {

/// The length of a sequence. The cache receives one token for each generated one but the last.
struct SequenceLimits {
  int prompt_tokens = 1;   ///< >= 1
  int max_new_tokens = 0;  ///< >= 0

  int64_t appended_tokens() const { return max_new_tokens > 1 ? max_new_tokens - 1 : 0; }
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

/// Adds what concerns all layers together.
CachePlan CompletePlan(std::vector<LayerPlan> layers);

}  // namespace ziggurat

#include "scheduler/store/distant_runs.h"

#include <algorithm>

namespace ziggurat {

std::vector<HeadRun> HeadRunsOf(const CachePlan& plan) {
  const PodGroups& groups = *plan.distant->groups;
  const bool apart = plan.SelectsTokens();
  std::vector<HeadRun> runs;
  for (int head = 0; head < groups.num_kv_heads; ++head) {
    bool alike = head > 0 && !apart;
    for (int layer = 0; alike && layer < groups.num_layers; ++layer) {
      alike = groups.Lowest(layer, head) == groups.Lowest(layer, head - 1);
    }
    if (alike) {
      ++runs.back().count;
    } else {
      runs.push_back({head, 1});
    }
  }
  return runs;
}

RunRole RoleOf(const PodGroups& groups, int layer, int head) {
  if (groups.Lowest(layer, head) != layer) return RunRole::kFollows;
  return groups.IsShared(layer, head) ? RunRole::kLowest : RunRole::kAlone;
}

KeptParts PartsOfKept(const StoreContext& context, const LayerMeasured& measured,
                      const HeadRun& run) {
  const DistantOptions& options = *context.plan->distant;
  const int kept = measured.kept_tokens, prompt = context.prompt_tokens;
  const auto is_before = [&](int i, int end) {
    return i < kept && measured.PositionOf(run.first, i, prompt) < end;
  };
  KeptParts parts;
  while (is_before(parts.sinks, options.sinks)) ++parts.sinks;
  parts.near_begin = parts.sinks;
  while (is_before(parts.near_begin, prompt - options.recent)) ++parts.near_begin;
  return parts;
}

int DistantBefore(const StoreContext& context) {
  return context.prompt_tokens + context.appended_tokens - context.plan->distant->recent;
}

}  // namespace ziggurat

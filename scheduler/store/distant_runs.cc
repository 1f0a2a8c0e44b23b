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

int DistantBefore(const StoreContext& context) {
  return context.prompt_tokens + context.appended_tokens - context.plan->distant->recent;
}

}  // namespace ziggurat

#include "scheduler/store/distant_runs.h"

#include <algorithm>

namespace ziggurat {

namespace {

RunRole RoleOf(const PodGroups& groups, int layer, int head) {
  if (groups.Lowest(layer, head) != layer) return RunRole::kFollows;
  return groups.IsShared(layer, head) ? RunRole::kLowest : RunRole::kAlone;
}

}  // namespace

std::vector<LayerRun> RunsOf(const CachePlan& plan, int layer) {
  const PodGroups& groups = *plan.distant->groups;
  const bool apart = plan.SelectsTokens();
  std::vector<LayerRun> runs;
  for (int head = 0; head < groups.num_kv_heads; ++head) {
    bool alike = head > 0 && !apart;
    for (int other = 0; alike && other < groups.num_layers; ++other) {
      alike = groups.Lowest(other, head) == groups.Lowest(other, head - 1);
    }
    if (alike) {
      ++runs.back().heads.count;
    } else {
      runs.push_back({{head, 1}, RoleOf(groups, layer, head), groups.Lowest(layer, head)});
    }
  }
  return runs;
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

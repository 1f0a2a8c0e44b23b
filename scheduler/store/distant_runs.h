// PoD: which KV heads of a layer go together, and what they are in it. Shared by the two stores of
// distant tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "compression/cache_plan.h"
#include "compression/pod_groups.h"
#include "scheduler/store/layer_store.h"

namespace ziggurat {

/// Which layers form a group may differ from KV head to KV head. A *run* is a range of neighbouring
/// heads that is grouped alike in all layers; each run has segments of its own. Where a policy
/// selects tokens, every head keeps others, and each head is a run.
struct HeadRun {
  int first = 0;
  int count = 0;
};

/// What a run is in a layer.
enum class RunRole : uint8_t {
  kAlone,    ///< a group of this layer alone: nothing is ever distant
  kLowest,   ///< its distant keys are read by the layers above
  kFollows,  ///< reads those of the lowest layer
};
struct LayerRun {
  HeadRun heads;
  RunRole role = RunRole::kAlone;
  int lowest_layer = 0;  ///< of its group: this one, unless the run follows
};
/// The same runs for every layer, in order.
std::vector<LayerRun> RunsOf(const CachePlan& plan, int layer);

/// Options of a segment of the run's heads.
inline SegmentOptions OptionsOf(const HeadRun& run, const CacheFormat& format) {
  return {.format = format, .first_kv_head = run.first, .num_kv_heads = run.count};
}

/// How the list of the prompt's kept tokens divides for a run that is not alone: sinks, then
/// distant ones, and from `near_begin` on near ones. All heads of a run keep the same.
struct KeptParts {
  int sinks = 0;
  int near_begin = 0;
};
KeptParts PartsOfKept(const StoreContext& context, const LayerMeasured& measured,
                      const HeadRun& run);

/// Tokens below this position, sinks apart, are distant from the last token that may come.
int DistantBefore(const StoreContext& context);
/// Of the near tokens of a run and of those that may come after the prompt, as many as become
/// distant. `window`: the near tokens that are no sinks, oldest first, each with its position.
template <class Window, class PositionOf = std::identity>
int TokensToLeave(const StoreContext& context, const Window& window, PositionOf position_of = {}) {
  const int end = DistantBefore(context);
  const auto stays = std::ranges::lower_bound(window, end, {}, position_of);
  const int first_appended = std::max(context.prompt_tokens, context.plan->distant->sinks);
  return static_cast<int>(stays - window.begin()) + std::max(0, end - first_appended);
}

/// The store where tokens become codes in groups (grouped_distant_store.cc).
size_t MaxGroupedDistantBlocks(const StoreContext& context, int layer);
std::unique_ptr<LayerStore> MakeGroupedDistantStore(
    const StoreContext& context, int layer, SequenceCache* cache,
    absl::Span<const std::unique_ptr<LayerStore>> stores);

}  // namespace ziggurat

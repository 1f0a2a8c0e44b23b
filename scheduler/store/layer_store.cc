#include "scheduler/store/layer_store.h"

#include <algorithm>

namespace ziggurat {
namespace {

size_t MaxEditBlocks(const StoreContext& context, const LayerPlan& plan) {
  if (const auto* ring = std::get_if<KeepRing>(&plan.edit)) return MaxRingBlocks(context, *ring);
  if (const auto* heavy = std::get_if<KeepHeavy>(&plan.edit)) {
    return MaxScoredBlocks(context, *heavy);
  }
  return MaxGrowingBlocks(context, plan.prompt_tokens_kept + context.appended_tokens);
}

}  // namespace

size_t MaxLayerBlocks(const StoreContext& context, int layer) {
  const CachePlan& plan = *context.plan;
  const LayerPlan& of_layer = plan.layers[layer];
  if (plan.decide != DecideAt::kLayer) {
    // All tokens as they are, and beside them, while they are copied, what becomes of them. Nothing
    // is copied where the slots can be used again.
    StoreContext plain = context;
    CachePlan held;
    plain.plan = &held;
    const size_t tokens = static_cast<size_t>(context.prompt_tokens) + context.appended_tokens;
    const size_t full = MaxGrowingBlocks(plain, tokens);
    if (!plan.quantization) return full;
    // A ring has its sinks in a segment of their own, and with it one more tail in every plane.
    return full + MaxGrowingBlocks(context, tokens) +
           MaxGrowingBlocks(plain, plan.most_sinks_decided) + kMaxPlanes;
  }
  if (of_layer.merge != MergeRole::kNone) return MaxMergedBlocks(context, of_layer.merge);
  if (plan.distant) return MaxDistantBlocks(context, layer);
  size_t blocks = MaxEditBlocks(context, of_layer);
  if (of_layer.lazy) {
    blocks =
        std::max(blocks, MaxRingBlocks(context, {of_layer.lazy->sinks, of_layer.lazy->recent}));
  }
  return blocks;
}

std::unique_ptr<LayerStore> MakeLayerStore(const StoreContext& context, int layer, bool lazy,
                                           SequenceCache* cache,
                                           absl::Span<const std::unique_ptr<LayerStore>> stores) {
  const LayerPlan& plan = context.plan->layers[layer];
  LayerBlockTable* table = &cache->layer(layer);
  if (lazy) return MakeRingStore(context, {plan.lazy->sinks, plan.lazy->recent}, table);
  if (plan.merge == MergeRole::kLower) return MakeLowerStore(context, table);
  if (plan.merge == MergeRole::kUpper) {
    return MakeUpperStore(context, table, stores[layer - 1].get());
  }
  if (context.plan->distant) return MakeDistantStore(context, layer, cache, stores);
  if (const auto* ring = std::get_if<KeepRing>(&plan.edit)) {
    return MakeRingStore(context, *ring, table);
  }
  if (const auto* heavy = std::get_if<KeepHeavy>(&plan.edit)) {
    return MakeScoredStore(context, *heavy, table);
  }
  return MakeGrowingStore(context, table);
}

}  // namespace ziggurat

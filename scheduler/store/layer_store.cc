#include "scheduler/store/layer_store.h"

#include <algorithm>

#include "scheduler/store/store_format.h"
#include "scheduler/store/token_list.h"

namespace ziggurat {
namespace {

size_t MaxEditBlocks(const StoreContext& context, const LayerPlan& plan) {
  if (const auto* ring = std::get_if<KeepRing>(&plan.edit)) return MaxRingBlocks(context, *ring);
  if (const auto* heavy = std::get_if<KeepHeavy>(&plan.edit)) {
    return MaxScoredBlocks(context, *heavy);
  }
  return MaxGrowingBlocks(context, plan.prompt_tokens_kept + context.appended_tokens);
}

/// Most blocks of a layer whose policy decides when it holds all tokens.
struct BoundsAroundDecision {
  size_t held = 0;     ///< of the tokens as they are until then
  size_t decided = 0;  ///< of what becomes of them
};
BoundsAroundDecision BoundsAround(const StoreContext& context) {
  StoreContext plain = context;
  CachePlan plan;
  plain.plan = &plan;
  const size_t tokens = static_cast<size_t>(context.prompt_tokens) + context.appended_tokens;
  const size_t held = MaxGrowingBlocks(plain, tokens);
  if (!context.plan->quantization) return {held, held};
  // A ring has its sinks in a segment of their own, and with it one more tail in every plane. Of a
  // ring of codes up to two groups are open.
  const StoreFormat format = MakeStoreFormat(context.element, context.plan->quantization);
  return {held, TokenList::MaxBlocks(*context.geometry, format, context.geometry->num_kv_heads,
                                     tokens, /*burst=*/format.group()) +
                    MaxGrowingBlocks(plain, context.plan->most_sinks_decided) + kMaxPlanes};
}

}  // namespace

size_t DecisionBlocks(const StoreContext& context) {
  // Nothing is copied where the slots can be used again.
  if (context.plan->decide == DecideAt::kLayer || !context.plan->quantization) return 0;
  const auto [held, decided] = BoundsAround(context);
  return std::min(held, decided);
}

size_t MaxLayerBlocks(const StoreContext& context, int layer) {
  const CachePlan& plan = *context.plan;
  const LayerPlan& of_layer = plan.layers[layer];
  if (plan.decide != DecideAt::kLayer) {
    const auto [held, decided] = BoundsAround(context);
    return std::max(held, decided) + (layer == 0 ? DecisionBlocks(context) : 0);
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

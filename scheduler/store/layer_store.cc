#include "scheduler/store/layer_store.h"

#include <algorithm>

#include "scheduler/store/store_format.h"

namespace ziggurat {
namespace {

size_t MaxEditBlocks(const StoreContext& context, const LayerPlan& plan) {
  if (const auto* ring = std::get_if<KeepRing>(&plan.edit)) return MaxRingBlocks(context, *ring);
  if (const auto* heavy = std::get_if<KeepHeavy>(&plan.edit)) {
    return MaxScoredBlocks(context, *heavy);
  }
  return MaxGrowingBlocks(context, plan.prompt_tokens_kept + context.appended_tokens);
}

size_t MaxPlannedBlocks(const StoreContext& context, int layer) {
  const CachePlan& plan = *context.plan;
  const LayerPlan& of_layer = plan.layers[layer];
  if (of_layer.merge != MergeRole::kNone) return MaxMergedBlocks(context, of_layer.merge);
  if (plan.distant) return MaxDistantBlocks(context, layer);
  size_t blocks = MaxEditBlocks(context, of_layer);
  if (of_layer.lazy) {
    blocks = std::max(blocks, MaxRingBlocks(context, of_layer.lazy->ring()));
  }
  return blocks;
}

/// Blocks that no layer exceeds which comes to hold `tokens` tokens after a decision. Nor do
/// several on average that hold as many on average, which is why this grows by less and less with
/// the tokens and, up to what all tokens take, has a tail for each plane.
size_t MaxDecidedBlocks(const StoreContext& context, int64_t tokens) {
  const CacheGeometry& geometry = *context.geometry;
  const int heads = geometry.num_kv_heads;
  const int64_t all = int64_t{context.prompt_tokens} + context.appended_tokens;
  const auto blocks = [&](const CacheFormat& format, int64_t count) {
    const int tails = PlanesOf(format, heads, geometry.head_dim).count;
    return std::min(geometry.BlocksFor(format, heads, static_cast<size_t>(count)) + tails,
                    geometry.BlocksFor(format, heads, static_cast<size_t>(all)));
  };
  const StoreFormat format = context.Format();
  if (!format.coded) return blocks(format.open, tokens);
  // A ring of codes has its sinks apart, and holds up to a group more than its tokens; up to two
  // groups, besides the residual ones, are open.
  const int64_t group = format.group();
  const int64_t held = std::min(tokens + group - 1, all);
  const int64_t open = std::min(held, format.residual + 2 * group - 1);
  return blocks(format.open, context.plan->decided.most_sinks) + blocks(*format.coded, held) +
         blocks(format.open, open);
}

/// Of layers whose policy decides when they hold all tokens. Until then they are all alike; then
/// they are laid out anew, one after the other, out of what all have together.
std::vector<size_t> MaxBlocksAroundDecision(const StoreContext& context) {
  const CachePlan& plan = *context.plan;
  const size_t layers = plan.layers.size();
  const int64_t tokens = context.prompt_tokens + (plan.decide == DecideAt::kFirstToken ? 1 : 0);
  const size_t held = context.geometry->BlocksFor(
      KeyValueFormat(context.element), context.geometry->num_kv_heads, static_cast<size_t>(tokens));
  size_t during = held * layers;
  if (plan.quantization) {
    // One layer is there twice while it is copied; without quantization its slots are used again.
    const size_t laid_out = MaxDecidedBlocks(context, tokens);
    during = std::max(held, laid_out) * layers + std::min(held, laid_out);
  }
  const size_t all = std::max(during, MaxDecidedBlocks(context, plan.decided.mean_tokens) * layers);
  std::vector<size_t> blocks(layers, all / layers);
  blocks[0] += all % layers;
  return blocks;
}

}  // namespace

std::vector<size_t> MaxLayerBlocks(const StoreContext& context) {
  const CachePlan& plan = *context.plan;
  if (plan.decide != DecideAt::kLayer) return MaxBlocksAroundDecision(context);
  std::vector<size_t> blocks(plan.layers.size());
  for (size_t layer = 0; layer < blocks.size(); ++layer) {
    blocks[layer] = MaxPlannedBlocks(context, static_cast<int>(layer));
  }
  return blocks;
}

std::unique_ptr<LayerStore> MakeLayerStore(const StoreContext& context, int layer, bool lazy,
                                           SequenceCache* cache,
                                           absl::Span<const std::unique_ptr<LayerStore>> stores) {
  const LayerPlan& plan = context.plan->layers[layer];
  LayerBlockTable* table = &cache->layer(layer);
  if (lazy) return MakeRingStore(context, plan.lazy->ring(), table);
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
  return MakeGrowingStore(context, context.Format(), table);
}

}  // namespace ziggurat

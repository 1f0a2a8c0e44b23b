#include "scheduler/sequence.h"

#include <algorithm>
#include <map>
#include <variant>
#include <vector>

#include "compression/plan_check.h"
#include "scheduler/store/store_format.h"

namespace ziggurat {

namespace {

/// Every format that the plan's storage brings must suit the model and the block.
absl::Status CheckFormats(const CachePlan& plan, const ModelShape& shape,
                          const CacheGeometry& geometry) {
  std::vector<CacheFormat> formats;
  const auto add = [&](const StoreFormat& kind) {
    formats.push_back(kind.open);
    if (kind.coded) formats.push_back(*kind.coded);
  };
  add(MakeStoreFormat(shape.element, plan.quantization));
  const bool scores = std::any_of(plan.layers.begin(), plan.layers.end(), [](const auto& layer) {
    return std::holds_alternative<KeepHeavy>(layer.edit);
  });
  if (scores) {
    formats.push_back(formats.front());
    formats.back().scored = true;
  }
  if (plan.merge) add(MakeStoreFormat(shape.element, plan.quantization, /*merged=*/true));
  for (const CacheFormat& format : formats) {
    if (absl::Status status = geometry.CheckFormat(format); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

PolicyContext PolicyContextOf(const ModelShape& shape) {
  return {shape.num_layers, shape.num_q_heads, shape.num_kv_heads, shape.head_dim,
          shape.architecture};
}

absl::StatusOr<BlockPlan> PlanBlocks(const Policy& policy, const ModelShape& shape,
                                     const CacheGeometry& geometry, int prompt_tokens,
                                     int max_new_tokens) {
  const PolicyContext context = PolicyContextOf(shape);
  if (absl::Status status = AskWhetherItSuits(policy, context); !status.ok()) return status;
  BlockPlan result;
  absl::StatusOr<CachePlan> plan = AskForPlan(policy, context, {prompt_tokens, max_new_tokens});
  if (!plan.ok()) return plan.status();
  result.plan = *std::move(plan);
  if (absl::Status status = CheckFormats(result.plan, shape, geometry); !status.ok()) return status;
  const StoreContext store{&result.plan, &geometry, shape.element, prompt_tokens,
                           std::max(0, max_new_tokens - 1)};
  for (const size_t blocks : MaxLayerBlocks(store)) {
    result.layer_blocks.push_back(static_cast<uint32_t>(blocks));
    result.total_blocks += blocks;
  }
  return result;
}

namespace {

/// Slots of a layer in segments of one kind, the mean over KV heads.
template <typename Which>
size_t MeanSlots(LayerView view, int kv_heads, Which which) {
  size_t slots = 0;
  for (const SegmentView& segment : view) {
    if (which(segment)) slots += static_cast<size_t>(segment.num_slots) * segment.num_kv_heads;
  }
  return (slots + kv_heads / 2) / kv_heads;
}

CacheFormat FormatOf(const SegmentView& segment) {
  CacheFormat format{segment.encoding};
  format.group = static_cast<uint16_t>(segment.group);
  format.values_only = segment.use == SegmentUse::kBorrowedKeys;
  format.merged = segment.key_norms.blocks != nullptr;
  format.scored = segment.scores.blocks != nullptr;
  return format;
}

LayerCacheReport MakeLayerReport(const Sequence& sequence, int layer, const CacheGeometry& geometry,
                                 ElementType element) {
  const LayerBlockTable& table = sequence.cache->layer(layer);
  const LayerView view = table.view();
  const LayerFacts& facts = sequence.store->facts(layer);
  const int heads = geometry.num_kv_heads;
  LayerCacheReport report;
  std::map<CacheFormat, LayerOccupancy> by_format;
  table.AddOccupancyByFormat(&by_format);
  size_t most = 0;
  report.format = KeyValueFormat(element);
  for (const auto& [held_as, part] : by_format) {
    const CacheFormat& format = held_as;  // what a lambda may capture
    const size_t tokens =
        MeanSlots(view, heads, [&](const SegmentView& s) { return FormatOf(s) == format; });
    report.formats.push_back({format, part.owned_blocks, tokens});
    report.blocks += part.owned_blocks;
    report.live_bytes += part.owned_live_bytes;
    if (part.blocks > most) report.format = format;
    most = std::max(most, part.blocks);
  }
  report.budget_tokens = facts.kept_tokens;
  report.tokens = MeanSlots(view, heads, [](const SegmentView&) { return true; });
  report.bytes = report.blocks * geometry.block_bytes;
  report.lazy = facts.lazy;
  report.attention_recall = facts.attention_recall;
  const auto seen = static_cast<size_t>(sequence.logical_tokens);
  report.evicted_tokens = seen - std::min(seen, report.tokens);
  report.merged_tokens =
      MeanSlots(view, heads, [](const SegmentView& s) { return s.key_norms.blocks != nullptr; });
  report.distant_tokens = MeanSlots(
      view, heads, [](const SegmentView& s) { return s.use == SegmentUse::kBorrowedKeys; });
  report.quantized_tokens =
      MeanSlots(view, heads, [](const SegmentView& s) { return !IsPlain(s.encoding); });
  const CachePlan& plan = sequence.store->plan();
  const MergeRole merge = plan.layers[layer].merge;
  if (merge == MergeRole::kLower) report.merged_with = layer + 1;
  if (merge == MergeRole::kUpper) report.merged_with = layer - 1;
  if (plan.distant) {
    for (int head = 0; head < heads; ++head) {
      const int lowest = plan.distant->groups->Lowest(layer, head);
      if (lowest != layer) report.keys_of.insert(lowest);
    }
  }
  return report;
}

}  // namespace

CacheReport MakeCacheReport(const Sequence& sequence, const CacheGeometry& geometry,
                            ElementType element) {
  CacheReport report;
  report.policy = sequence.policy_text;
  report.block_bytes = geometry.block_bytes;
  if (!sequence.cache.has_value() || sequence.state != RequestState::kDecoding) return report;
  report.layers.reserve(geometry.num_layers);
  for (int layer = 0; layer < geometry.num_layers; ++layer) {
    report.layers.push_back(MakeLayerReport(sequence, layer, geometry, element));
    report.blocks += report.layers.back().blocks;
  }
  report.bytes = report.blocks * geometry.block_bytes;
  report.distant = sequence.store->distant_counts;
  report.full_blocks =
      geometry.BlocksFor(KeyValueFormat(element), geometry.num_kv_heads, sequence.logical_tokens) *
      static_cast<size_t>(geometry.num_layers);
  if (report.blocks > 0) {
    report.compression_ratio =
        static_cast<double>(report.full_blocks) / static_cast<double>(report.blocks);
  }
  return report;
}

RequestSnapshot MakeRequestSnapshot(const Sequence& sequence, const CacheGeometry& geometry,
                                    ElementType element) {
  RequestSnapshot snapshot;
  snapshot.id = sequence.id;
  snapshot.name = sequence.request.name;
  snapshot.policy = sequence.policy_text;
  snapshot.state = sequence.state;
  snapshot.prompt_tokens = sequence.prompt_tokens();
  snapshot.generated_tokens = sequence.generated;
  if (!sequence.cache.has_value()) return snapshot;
  snapshot.reserved_blocks = sequence.reservation.total;
  snapshot.layer_blocks.reserve(geometry.num_layers);
  for (int l = 0; l < sequence.cache->num_layers(); ++l) {
    const size_t blocks = sequence.cache->layer(l).owned_blocks();
    snapshot.layer_blocks.push_back(static_cast<uint32_t>(blocks));
    snapshot.blocks += blocks;
  }
  snapshot.layers = MakeCacheReport(sequence, geometry, element).layers;
  return snapshot;
}

}  // namespace ziggurat

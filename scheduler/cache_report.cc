#include "scheduler/cache_report.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/functional/function_ref.h"
#include "compression/pod_groups.h"

namespace ziggurat {
namespace {

/// Slots of all heads, as tokens.
size_t MeanOverHeads(size_t head_slots, int kv_heads) {
  return (head_slots + kv_heads / 2) / kv_heads;
}

/// What the layer holds in those formats, as tokens.
size_t TokensIn(const OccupancyByFormat& by_format, int kv_heads,
                absl::FunctionRef<bool(const CacheFormat&)> which) {
  size_t slots = 0;
  for (const auto& [format, part] : by_format) {
    if (which(format)) slots += part.head_slots;
  }
  return MeanOverHeads(slots, kv_heads);
}

LayerCacheReport MakeLayerReport(const Sequence& sequence, int layer) {
  const BlockPlan& planned = sequence.block_plan;
  const LayerFacts& facts = sequence.store->facts(layer);
  const int heads = planned.geometry->num_kv_heads;
  OccupancyByFormat by_format;
  sequence.store->cache().layer(layer).AddOccupancyByFormat(&by_format);
  LayerCacheReport report;
  report.format = KeyValueFormat(planned.element);
  size_t most = 0;
  for (const auto& [format, part] : by_format) {
    report.formats.push_back({format, part.owned_blocks, MeanOverHeads(part.head_slots, heads)});
    report.blocks += part.owned_blocks;
    report.live_bytes += part.owned_live_bytes;
    if (part.blocks > most) report.format = format;
    most = std::max(most, part.blocks);
  }
  report.budget_tokens = facts.kept_tokens;
  report.tokens = TokensIn(by_format, heads, [](const CacheFormat&) { return true; });
  report.bytes = report.blocks * planned.geometry->block_bytes;
  report.lazy = facts.lazy;
  report.attention_recall = facts.attention_recall;
  const auto seen = static_cast<size_t>(sequence.logical_tokens);
  report.evicted_tokens = seen - std::min(seen, report.tokens);
  report.merged_tokens = TokensIn(by_format, heads, [](const CacheFormat& f) { return f.merged; });
  report.distant_tokens =
      TokensIn(by_format, heads, [](const CacheFormat& f) { return f.values_only; });
  report.quantized_tokens =
      TokensIn(by_format, heads, [](const CacheFormat& f) { return !IsPlain(f.encoding); });
  const CachePlan& plan = planned.plan;
  const MergeRole merge = plan.layers[layer].merge;
  if (merge == MergeRole::kLower) report.merged_with = layer + 1;
  if (merge == MergeRole::kUpper) report.merged_with = layer - 1;
  const bool has_distant = absl::c_any_of(by_format, [](const auto& part) {
    return part.first.values_only && part.second.head_slots > 0;
  });
  if (has_distant) {
    for (int head = 0; head < heads; ++head) {
      const int lowest = plan.distant->groups->Lowest(layer, head);
      if (lowest != layer) report.keys_of.insert(lowest);
    }
  }
  return report;
}

/// Adds what a layer of one sequence holds in one format.
void AddFormat(const CacheFormat& format, size_t blocks, LayerSnapshot* layer) {
  layer->used_blocks += blocks;
  layer->blocks_by_format[format] += blocks;
}

/// Adds a layer of a sequence of which there is no report yet.
void AddTable(const LayerBlockTable& table, LayerSnapshot* layer) {
  OccupancyByFormat by_format;
  table.AddOccupancyByFormat(&by_format);
  for (const auto& [format, part] : by_format) {
    AddFormat(format, part.owned_blocks, layer);
    layer->live_bytes += part.owned_live_bytes;
  }
}

void AddReport(const LayerCacheReport& report, LayerSnapshot* layer) {
  for (const FormatReport& part : report.formats) AddFormat(part.format, part.blocks, layer);
  layer->live_bytes += report.live_bytes;
}

}  // namespace

CacheReport MakeCacheReport(const Sequence& sequence) {
  const CacheGeometry& geometry = *sequence.block_plan.geometry;
  CacheReport report;
  report.policy = sequence.policy_text;
  report.block_bytes = geometry.block_bytes;
  if (sequence.store == nullptr || sequence.state != RequestState::kDecoding) return report;
  report.layers.reserve(geometry.num_layers);
  for (int layer = 0; layer < geometry.num_layers; ++layer) {
    report.layers.push_back(MakeLayerReport(sequence, layer));
    report.blocks += report.layers.back().blocks;
  }
  report.bytes = report.blocks * geometry.block_bytes;
  report.distant = sequence.store->distant_counts;
  report.full_blocks = geometry.BlocksFor(KeyValueFormat(sequence.block_plan.element),
                                          geometry.num_kv_heads, sequence.logical_tokens) *
                       static_cast<size_t>(geometry.num_layers);
  if (report.blocks > 0) {
    report.compression_ratio =
        static_cast<double>(report.full_blocks) / static_cast<double>(report.blocks);
  }
  return report;
}

RequestSnapshot MakeRequestSnapshot(const Sequence& sequence) {
  RequestSnapshot snapshot;
  snapshot.id = sequence.id;
  snapshot.name = sequence.request.name;
  snapshot.policy = sequence.policy_text;
  snapshot.state = sequence.state;
  snapshot.prompt_tokens = sequence.prompt_tokens();
  snapshot.generated_tokens = sequence.generated;
  if (sequence.store == nullptr) return snapshot;
  const SequenceCache& cache = sequence.store->cache();
  snapshot.reserved_blocks = sequence.store->reserved_blocks();
  snapshot.layer_blocks.reserve(cache.num_layers());
  for (int l = 0; l < cache.num_layers(); ++l) {
    const size_t blocks = cache.layer(l).owned_blocks();
    snapshot.layer_blocks.push_back(static_cast<uint32_t>(blocks));
    snapshot.blocks += blocks;
  }
  snapshot.layers = MakeCacheReport(sequence).layers;
  return snapshot;
}

void AddToLayers(const RequestSnapshot& request, const SequenceCache& cache,
                 absl::Span<LayerSnapshot> layers) {
  for (size_t l = 0; l < layers.size(); ++l) {
    if (request.layers.empty()) {
      AddTable(cache.layer(static_cast<int>(l)), &layers[l]);
    } else {
      AddReport(request.layers[l], &layers[l]);
    }
  }
}

}  // namespace ziggurat

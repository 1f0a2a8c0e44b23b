#include "scheduler/sequence.h"

#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"

namespace ziggurat {

std::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kError:
      return "error";
  }
  return "unknown";
}

std::string_view RequestStateName(RequestState state) {
  switch (state) {
    case RequestState::kWaiting:
      return "waiting";
    case RequestState::kPrefilling:
      return "prefilling";
    case RequestState::kDecoding:
      return "decoding";
  }
  return "unknown";
}

SegmentOptions SegmentFor(const LayerEdit& edit, ElementType element) {
  SegmentOptions options;
  options.format = KeyValueFormat(element);
  if (const auto* ring = std::get_if<KeepRing>(&edit)) {
    options.ring = RingShape{ring->sinks, ring->recent};
  }
  return options;
}

BlockPlan PlanBlocks(const Policy& policy, const ModelShape& shape, const CacheGeometry& geometry,
                     int prompt_tokens, int max_new_tokens) {
  const PolicyContext context{shape.num_layers, shape.num_q_heads, shape.num_kv_heads,
                              shape.head_dim};
  BlockPlan result;
  result.plan = policy.Plan(context, prompt_tokens, max_new_tokens);
  const CacheFormat format = KeyValueFormat(shape.element);
  for (const LayerPlan& layer : result.plan.layers) {
    const size_t blocks = geometry.BlocksFor(format, geometry.num_kv_heads, layer.max_tokens);
    result.layer_blocks.push_back(static_cast<uint32_t>(blocks));
    result.total_blocks += blocks;
  }
  return result;
}

absl::Status AllocatePromptLayer(Sequence& sequence, int layer, ElementType element,
                                 ReservationLedger& ledger) {
  const LayerPlan& plan = sequence.block_plan.plan.layers[layer];
  LayerBlockTable& table = sequence.cache->layer(layer);
  const int segment = table.AddSegment(SegmentFor(plan.edit, element));
  if (absl::Status status = table.Extend(segment, static_cast<int>(plan.prompt_tokens_kept));
      !status.ok()) {
    return status;
  }
  const size_t held = table.blocks();
  const size_t growth = table.BlocksToAppend(segment, std::max(0, sequence.tokens_to_append()));
  const size_t planned = sequence.reservation.layer_blocks[layer];
  if (held + growth > planned) {
    return absl::InternalError(absl::StrCat("layer ", layer, " needs ", held + growth,
                                            " blocks, its plan reserved ", planned));
  }
  ledger.Lower(sequence.reservation, layer, planned - growth);
  return absl::OkStatus();
}

absl::Status AllocateStep(Sequence& sequence, ReservationLedger& ledger) {
  SequenceCache& cache = *sequence.cache;
  const int num_layers = cache.num_layers();
  sequence.step_layers.resize(num_layers);
  for (int l = 0; l < num_layers; ++l) {
    LayerBlockTable& table = cache.layer(l);
    const int segment = table.num_segments() - 1;  // new tokens go to the last segment
    const size_t blocks = table.BlocksToAppend(segment, 1);
    absl::StatusOr<int> slot = table.AppendSlot(segment);
    if (!slot.ok()) return slot.status();
    if (blocks > 0) ledger.Lower(sequence.reservation, l, blocks);
    sequence.step_layers[l] = {table.view(), segment, *slot};
  }
  return absl::OkStatus();
}

CacheReport MakeCacheReport(const Sequence& sequence, const CacheGeometry& geometry,
                            ElementType element) {
  CacheReport report;
  report.policy = sequence.policy_text;
  report.block_bytes = geometry.block_bytes;
  if (!sequence.cache.has_value() || sequence.state != RequestState::kDecoding) return report;
  const CacheFormat format = KeyValueFormat(element);
  for (int l = 0; l < geometry.num_layers; ++l) {
    const LayerOccupancy held = sequence.cache->layer(l).occupancy();
    LayerCacheReport layer;
    layer.budget_tokens = sequence.block_plan.plan.layers[l].prompt_tokens_kept;
    layer.tokens = held.tokens;
    layer.blocks = held.blocks;
    layer.bytes = held.blocks * geometry.block_bytes;
    layer.live_bytes = held.live_bytes;
    layer.format = format;
    report.layers.push_back(layer);
    report.blocks += held.blocks;
  }
  report.bytes = report.blocks * geometry.block_bytes;
  report.full_blocks = geometry.BlocksFor(format, geometry.num_kv_heads, sequence.logical_tokens) *
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
  if (!sequence.cache.has_value()) return snapshot;
  snapshot.reserved_blocks = sequence.reservation.total;
  for (int l = 0; l < sequence.cache->num_layers(); ++l) {
    const size_t blocks = sequence.cache->layer(l).blocks();
    snapshot.layer_blocks.push_back(static_cast<uint32_t>(blocks));
    snapshot.blocks += blocks;
  }
  return snapshot;
}

}  // namespace ziggurat

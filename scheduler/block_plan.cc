#include "scheduler/block_plan.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "compression/plan_check.h"
#include "scheduler/store/layer_store.h"

namespace ziggurat {
namespace {

/// Every format that the plan's storage brings must suit the model and the block.
absl::Status CheckFormats(const StoreContext& store) {
  const CachePlan& plan = *store.plan;
  std::vector<CacheFormat> formats;
  const auto add = [&](const StoreFormat& kind) {
    formats.push_back(kind.open);
    if (kind.coded) formats.push_back(*kind.coded);
  };
  add(store.Format());
  const bool scores = std::any_of(plan.layers.begin(), plan.layers.end(), [](const auto& layer) {
    return std::holds_alternative<KeepHeavy>(layer.edit);
  });
  if (scores) {
    formats.push_back(formats.front());
    formats.back().scored = true;
  }
  if (plan.merge) add(store.Format(/*merged=*/true));
  for (const CacheFormat& format : formats) {
    if (absl::Status status = store.geometry->CheckFormat(format); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

PolicyContext PolicyContextOf(const ModelShape& shape) {
  return {shape.num_layers, shape.num_q_heads, shape.num_kv_heads, shape.head_dim,
          shape.architecture};
}

absl::StatusOr<BlockPlan> PlanBlocks(const Policy& policy, const ModelShape& shape,
                                     const CacheGeometry& geometry, const SequenceLimits& limits) {
  const PolicyContext context = PolicyContextOf(shape);
  if (absl::Status status = AskWhetherItSuits(policy, context); !status.ok()) return status;
  absl::StatusOr<CachePlan> plan = AskForPlan(policy, context, limits);
  if (!plan.ok()) return plan.status();
  BlockPlan result{*std::move(plan), limits, &geometry, shape.element, {}, 0};
  const StoreContext store = StoreContextOf(result);
  if (absl::Status status = CheckFormats(store); !status.ok()) return status;
  for (const size_t blocks : MaxLayerBlocks(store)) {
    result.layer_blocks.push_back(static_cast<uint32_t>(blocks));
    result.total_blocks += blocks;
  }
  return result;
}

absl::Status CheckServes(const Policy& policy, const ModelShape& shape,
                         const CacheGeometry& geometry, int prompt_tokens) {
  // Two new tokens: of one, simlayerkv(decide=decode) tests no layer.
  return PlanBlocks(policy, shape, geometry, {std::max(1, prompt_tokens), 2}).status();
}

}  // namespace ziggurat

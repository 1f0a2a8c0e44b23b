// What a policy's plan for a sequence comes to in blocks: from it admission reserves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "block_manager/cache_format.h"
#include "compression/cache_plan.h"
#include "compression/policy.h"
#include "model/model_runner.h"

namespace ziggurat {

/// A plan, what it was made for, and the blocks that it takes.
struct BlockPlan {
  CachePlan plan;
  SequenceLimits limits;
  const CacheGeometry* geometry = nullptr;  ///< that of the engine, which outlives it
  ElementType element = ElementType::kBf16;
  std::vector<uint32_t> layer_blocks;  ///< upper bound for each layer
  size_t total_blocks = 0;
};

/// What policies may know of the model.
PolicyContext PolicyContextOf(const ModelShape& shape);
/// Upper bounds in blocks for a prompt and its output. Pure; any thread. INVALID_ARGUMENT where the
/// policy, or a format that it needs, does not suit the model or the block size; INTERNAL where its
/// plan makes no sense. `geometry` outlives what is returned.
absl::StatusOr<BlockPlan> PlanBlocks(const Policy& policy, const ModelShape& shape,
                                     const CacheGeometry& geometry, const SequenceLimits& limits);
/// Whether the policy can serve this model at all, asked with a prompt of `prompt_tokens`. Errors
/// as PlanBlocks's.
absl::Status CheckServes(const Policy& policy, const ModelShape& shape,
                         const CacheGeometry& geometry, int prompt_tokens);

}  // namespace ziggurat

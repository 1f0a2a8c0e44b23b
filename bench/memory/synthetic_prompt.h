// What one prompt holds in the KV cache after prefill, measured without a model: keys, values and
// queries of a random number generator go through the same policies, stores and kernels as in the
// daemon. Memory does not depend on weights.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "block_manager/cache_format.h"
#include "compression/policy.h"

namespace ziggurat {

struct SyntheticPrompt {
  std::string policy = "full";
  PolicyResources resources;
  int num_layers = 32;  ///< the shape of LLaMA-3-8B
  int num_q_heads = 32;
  int num_kv_heads = 8;
  int head_dim = 128;
  int tokens = 8192;
  ElementType element = ElementType::kBf16;
  /// Every second layer attends to its first tokens and the last ones alone.
  bool lazy_layers = false;
  int threads = 2;
};

struct HeldMemory {
  size_t block_bytes = 0;
  size_t planned_blocks = 0;             ///< what admission reserves
  size_t blocks = 0;                     ///< held after prefill
  size_t high_water_blocks = 0;          ///< most held at once
  size_t live_bytes = 0;                 ///< of the blocks held: what holds tokens
  size_t resident_bytes = 0;             ///< that the process has grown by
  size_t free_blocks_after_release = 0;  ///< must be all of the pool
  size_t pool_blocks = 0;

  size_t bytes() const { return blocks * block_bytes; }
};

absl::StatusOr<HeldMemory> MeasureHeldMemory(const SyntheticPrompt& prompt);

}  // namespace ziggurat

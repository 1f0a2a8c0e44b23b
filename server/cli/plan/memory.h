// Where the memory of a daemon goes.
#pragma once

#include <cstddef>

#include "absl/types/span.h"
#include "compression/cache_plan.h"
#include "model/checkpoint/model_config.h"
#include "model/model_runner.h"
#include "server/config.h"

namespace ziggurat::plan {

struct MemoryParts {
  size_t program = 0;  ///< code, libraries, tokenizer, threads
  size_t weights = 0;
  size_t workspace = 0;           ///< that prefill batches of the traffic make resident
  size_t workspace_capacity = 0;  ///< addresses that are set aside for it
  size_t decode = 0;              ///< activations and logits of a step
  size_t requests = 0;            ///< their streams and prompts, as many as may run and wait
  size_t spare = 0;               ///< kept free on purpose
  size_t pool = 0;                ///< the KV cache
  size_t block_counts = 0;        ///< what the pool remembers of its blocks

  size_t besides_pool() const {
    return program + weights + workspace + decode + requests + spare + block_counts;
  }
  size_t total() const { return besides_pool() + pool; }
};

/// What the prompts of the traffic are like, for the workspace.
struct PromptSizes {
  int usual = 1;
  int largest = 1;
};

/// All parts but `pool`, `block_counts` and `spare`. `needs` are those of each policy; the one that
/// takes most counts. What the program takes is measured of this process, before it has done
/// anything else, and with what a daemon has besides added.
MemoryParts EstimateMemory(const ModelConfig& model, const ServeConfig& config, ElementType element,
                           const PromptSizes& prompts, absl::Span<const PrefillNeeds> needs);

}  // namespace ziggurat::plan

// One request inside the engine: what it asked for, what it holds, how far it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "block_manager/sequence_cache.h"
#include "compression/cache_plan.h"
#include "model/model_runner.h"
#include "model/sampling/sampling.h"
#include "scheduler/engine.h"
#include "scheduler/request.h"
#include "scheduler/reservation.h"

namespace ziggurat {

/// What a policy's plan comes to in blocks.
struct BlockPlan {
  CachePlan plan;
  std::vector<uint32_t> layer_blocks;  ///< upper bound for each layer
  size_t total_blocks = 0;
};

/// The segment that a layer's edit asks for.
SegmentOptions SegmentFor(const LayerEdit& edit, ElementType element);
/// Upper bounds in blocks for a prompt and its output. Pure; any thread.
BlockPlan PlanBlocks(const Policy& policy, const ModelShape& shape, const CacheGeometry& geometry,
                     int prompt_tokens, int max_new_tokens);

/// Engine thread only, from admission on. Before that its creator's.
struct Sequence {
  RequestId id = 0;
  EngineRequest request;
  std::string policy_text;  ///< canonical
  BlockPlan block_plan;
  RequestState state = RequestState::kWaiting;
  int overtaken = 0;  ///< times that a later request was admitted first

  // From admission on:
  std::optional<SequenceCache> cache;
  Reservation reservation;
  std::optional<Sampler> sampler;
  int logical_tokens = 0;  ///< tokens whose keys and values have been computed
  int generated = 0;
  int32_t last_token = 0;
  std::vector<DecodeInput::Layer> step_layers;

  SteadyTime submitted;
  SteadyTime admitted;
  SteadyTime first_token;
  SteadyTime latest_token;

  int prompt_tokens() const { return static_cast<int>(request.prompt.size()); }
  /// Tokens that may still be appended to the cache: the last one drawn never is.
  int tokens_to_append() const { return request.max_new_tokens - generated - 1; }
};

/// Adds layer `layer`'s segment, extends it to what the plan keeps of the prompt, and lowers the
/// reservation to what the layer can still grow to.
absl::Status AllocatePromptLayer(Sequence& sequence, int layer, ElementType element,
                                 ReservationLedger& ledger);
/// Takes the slot of the next token in every layer, and points `step_layers` at it.
absl::Status AllocateStep(Sequence& sequence, ReservationLedger& ledger);

CacheReport MakeCacheReport(const Sequence& sequence, const CacheGeometry& geometry,
                            ElementType element);
RequestSnapshot MakeRequestSnapshot(const Sequence& sequence);

}  // namespace ziggurat

// One request inside the engine: what it asked for, what it holds, how far it is.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "model/sampling/sampling.h"
#include "scheduler/block_plan.h"
#include "scheduler/engine.h"
#include "scheduler/request.h"
#include "scheduler/sequence_store.h"

namespace ziggurat {

/// Engine thread only, from admission on. Before that its creator's.
struct Sequence {
  RequestId id = 0;
  EngineRequest request;
  std::string policy_text;  ///< canonical
  BlockPlan block_plan;
  RequestState state = RequestState::kWaiting;
  int overtaken = 0;  ///< times that a later request was admitted first
  SteadyTime submitted;
  /// It ends where its prompt has not been begun by then.
  SteadyTime begin_by = SteadyTime::max();

  // From admission on:
  std::unique_ptr<SequenceStore> store;  ///< its cache; null before
  std::optional<Sampler> sampler;
  /// What carrying out edits of its cache came to: where it is an error, no other step follows.
  absl::Status edit_status;
  int logical_tokens = 0;  ///< tokens whose keys and values have been computed
  int generated = 0;
  int32_t last_token_id = 0;
  SteadyTime prefill_start;
  SteadyTime first_token_time;
  SteadyTime latest_token_time;

  /// When it ends by itself.
  SteadyTime expires() const {
    const SteadyTime deadline = request.deadline.value_or(SteadyTime::max());
    return state == RequestState::kWaiting ? std::min(deadline, begin_by) : deadline;
  }
  /// Whether a stop token may be drawn.
  bool may_stop() const { return generated >= request.min_new_tokens; }
  int prompt_tokens() const { return static_cast<int>(request.prompt.size()); }
  /// Tokens that may still be appended to the cache: the last one drawn never is.
  int tokens_to_append() const { return request.max_new_tokens - generated - 1; }
};

}  // namespace ziggurat

// What a request will take of the pool, before there is one: its policy's plan and the very stores
// that would hold its cache, run over a model that computes nothing.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "block_manager/cache_format.h"
#include "compression/policy.h"
#include "model/model_runner.h"

namespace ziggurat {

struct ForecastOptions {
  int prompt_tokens = 1;
  int max_new_tokens = 1;  ///< what the request asks for, and reserves
  /// Tokens that are generated in the forecast; 0: it ends with the prompt.
  int generated_tokens = 0;
  /// Of the layers that a policy tests (SimLayerKV), the share that is found lazy.
  double lazy_share = 0;
};

/// Blocks of one request. What it has is what it holds and what is reserved for it: others cannot
/// have that.
struct RequestForecast {
  size_t admitted_blocks = 0;  ///< of its plan: so many must be free when it is admitted
  size_t settled_blocks = 0;   ///< that it has once its prompt is laid out and nothing is to decide
  size_t prompt_blocks = 0;    ///< of these, those that it holds then
  size_t last_blocks = 0;      ///< that it holds when `generated_tokens` are there
  std::vector<size_t> layer_blocks;  ///< the same, by layer
  /// Prompt or answer decide how much is kept, so that this is one way it may come.
  bool depends_on_content = false;
};

/// Pure; any thread. INVALID_ARGUMENT where the policy does not suit the model.
absl::StatusOr<RequestForecast> ForecastRequest(const Policy& policy, const ModelShape& shape,
                                                const CacheGeometry& geometry,
                                                const ForecastOptions& options);

}  // namespace ziggurat

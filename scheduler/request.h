// What goes into the engine and what comes out of it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "block_manager/cache_format.h"
#include "compression/policy.h"
#include "model/sampling/sampling.h"

namespace ziggurat {

using RequestId = uint64_t;
using SteadyTime = std::chrono::steady_clock::time_point;

/// One generation, as the engine sees it: token ids in, token ids out.
struct EngineRequest {
  std::string name;                      ///< the client's request id, for log lines and GetCache
  std::vector<int32_t> prompt;           ///< at least one token
  std::shared_ptr<const Policy> policy;  ///< never null
  SamplingParameters sampling;
  int max_new_tokens = 0;               ///< >= 1
  int min_new_tokens = 0;               ///< stop tokens are not drawn before this many
  std::vector<int32_t> stop_token_ids;  ///< the model's and the request's
  std::optional<SteadyTime> deadline;
};

enum class FinishReason : uint8_t { kStop, kLength, kCancelled, kDeadline, kError };
std::string_view FinishReasonName(FinishReason reason);  ///< "stop", "length", "cancelled", ...

/// What one layer of a sequence held when the report was made.
struct LayerCacheReport {
  size_t budget_tokens = 0;  ///< KV pairs per KV head that the policy kept of the prompt
  size_t tokens = 0;         ///< KV pairs per KV head held now
  size_t blocks = 0;
  size_t bytes = 0;  ///< blocks * block bytes
  size_t live_bytes = 0;
  CacheFormat format = CacheFormat::kBf16;
};

/// The cache of one request, measured from the blocks it held.
struct CacheReport {
  std::string policy;  ///< canonical text
  size_t block_bytes = 0;
  std::vector<LayerCacheReport> layers;
  size_t blocks = 0;
  size_t bytes = 0;
  size_t full_blocks = 0;        ///< what `full` would have held for the same tokens
  double compression_ratio = 1;  ///< full_blocks / blocks
};

struct Usage {
  int prompt_tokens = 0;
  int completion_tokens = 0;
};

/// One request's share of a step.
struct EngineOutput {
  RequestId id = 0;
  std::vector<SampledToken> tokens;  ///< new ones, in order; a stop token is not among them
  bool finished = false;
  // Valid when finished:
  FinishReason reason = FinishReason::kStop;
  std::optional<int32_t> stop_token_id;  ///< the stop token that was drawn
  absl::Status status;                   ///< not OK for kCancelled, kDeadline and kError
  Usage usage;
  CacheReport cache;  ///< empty layers where prefill had not finished
  double queue_seconds = 0;
  double first_token_seconds = 0;  ///< from submission; 0 where there was none
  double total_seconds = 0;
};

}  // namespace ziggurat

// What goes into the engine and what comes out of it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "attention/cache_orders.h"
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
  /// When it came to the server, from which its times are counted; unset: when it is submitted.
  std::optional<SteadyTime> arrived;
  bool report_attention_recall = false;
  /// Whoever reads the text may end it, and knows why it ended: it counts the reason
  /// (Metrics::CountFinished), not the engine.
  bool may_end_by_text = false;
};

/// kCancelled: by who asked. kUnavailable: by the server, which drains or ends. kQueueTime: its
/// prompt was not begun in time (EngineOptions::max_queue_time).
enum class FinishReason : uint8_t {
  kStop,
  kLength,
  kCancelled,
  kUnavailable,
  kDeadline,
  kQueueTime,
  kError
};
inline constexpr FinishReason kFinishReasons[] = {
    FinishReason::kStop,        FinishReason::kLength,   FinishReason::kCancelled,
    FinishReason::kUnavailable, FinishReason::kDeadline, FinishReason::kQueueTime,
    FinishReason::kError};
std::string_view FinishReasonName(FinishReason reason);  ///< "stop", "length", "cancelled", ...

/// Blocks and tokens of one format in a layer.
struct FormatReport {
  CacheFormat format;
  size_t blocks = 0;
  size_t tokens = 0;  ///< per KV head
};

/// What one layer of a sequence held when the report was made. Tokens are KV pairs per KV head, the
/// mean over heads where they differ.
struct LayerCacheReport {
  size_t budget_tokens = 0;  ///< those that the policy kept of the prompt
  size_t tokens = 0;         ///< held now
  size_t blocks = 0;         ///< those that two layers share count in the lower one
  size_t bytes = 0;          ///< blocks * block bytes
  size_t live_bytes = 0;
  CacheFormat format;  ///< that of most blocks
  std::vector<FormatReport> formats;
  bool lazy = false;               ///< SimLayerKV
  std::optional<int> merged_with;  ///< MiniCache: the other layer of the pair
  std::set<int> keys_of;           ///< PoD: the layers whose keys it attends with
  size_t evicted_tokens = 0;
  size_t merged_tokens = 0;
  size_t distant_tokens = 0;  ///< without keys of this layer
  size_t quantized_tokens = 0;
  double attention_recall = -1;  ///< negative: not measured
};

/// The cache of one request, measured from the blocks it held.
struct CacheReport {
  std::string policy;  ///< canonical text
  size_t block_bytes = 0;
  std::vector<LayerCacheReport> layers;
  size_t blocks = 0;  ///< different ones: a shared block counts once
  size_t bytes = 0;
  size_t full_blocks = 0;        ///< what `full` would have held for the same tokens
  double compression_ratio = 1;  ///< full_blocks / blocks
  DistantCounts distant;         ///< PoD
};

struct Usage {
  int prompt_tokens = 0;
  int completion_tokens = 0;
};

/// How a request ended.
struct EngineResult {
  FinishReason reason = FinishReason::kStop;
  std::optional<int32_t> stop_token_id;  ///< the stop token that was drawn
  absl::Status status;  ///< OK for kStop and kLength, else the error that the client gets
  Usage usage;
  CacheReport cache;               ///< empty layers where prefill had not finished
  double queue_seconds = 0;        ///< from arrival until its prompt was begun
  double first_token_seconds = 0;  ///< from arrival; 0 where there was none
  double total_seconds = 0;
};

/// One request's share of a step. Small: a step brings one of each sequence to another thread.
struct EngineOutput {
  RequestId id = 0;
  /// New ones, in order; a stop token is not among them.
  absl::InlinedVector<SampledToken, 1> tokens;
  std::unique_ptr<EngineResult> result;  ///< of the last one of the request, else null
};

}  // namespace ziggurat

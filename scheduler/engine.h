// The engine: continuous batching over one pool, one thread that owns all state.
//
// What a request passes through, once, in one direction: Submit -> queue -> admission (its policy's
// plan against free blocks) -> prefill slices -> decode steps -> outputs. Messages at the borders
// (submissions and cancellations in, one batch of outputs per step out), no locks inside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "block_manager/cache_format.h"
#include "model/model_runner.h"
#include "scheduler/metrics.h"
#include "scheduler/request.h"

namespace ziggurat {

struct EngineOptions {
  size_t kv_cache_bytes = 0;  ///< the pool; rounded down to whole blocks
  size_t block_bytes = 0;     ///< 0: CacheGeometry::DefaultBlockBytes
  int max_running = 256;      ///< admitted requests, those that wait for prefill among them
  int max_queue = 1024;       ///< requests waiting for admission, at least 1
  /// A request whose prompt has not been begun so long after its arrival ends with
  /// RESOURCE_EXHAUSTED, admitted or not; zero: it waits as long as its deadline lets it.
  absl::Duration max_queue_time = absl::ZeroDuration();
  int max_prompt_tokens = 0;  ///< 0: the model's context less one, or what its prefill takes
  int prefill_tokens = 8192;  ///< tokens of one prefill batch
  /// How long prefill goes on between two decode steps, or twice as long as the last decode step
  /// where that is more (up to a second): it gets two thirds of the time. About: a model pauses
  /// where it can (PauseTest).
  absl::Duration prefill_slice = absl::Milliseconds(100);
  /// On a device (ModelRunner::is_asynchronous), of which the clock sees little, so many tokens
  /// times layers, but one layer of the batch at least.
  int device_slice_token_layers = 8192;
  int max_overtakes = 64;         ///< how often a large request may be passed over by later ones
  bool check_every_step = false;  ///< prove conservation after every step (always in debug and
                                  ///< sanitizer builds)
};

/// State of a request that the engine holds. kWaiting: nothing of it has been computed; it may
/// have been admitted, and have blocks reserved, and wait for its turn in prefill.
enum class RequestState : uint8_t { kWaiting, kPrefilling, kDecoding };
std::string_view RequestStateName(RequestState state);  ///< "waiting", "prefilling", "decoding"

struct RequestSnapshot {
  RequestId id = 0;
  std::string name;
  std::string policy;
  RequestState state = RequestState::kWaiting;
  int prompt_tokens = 0;
  int generated_tokens = 0;
  size_t blocks = 0;
  size_t reserved_blocks = 0;
  std::vector<uint32_t> layer_blocks;    ///< empty until admission
  std::vector<LayerCacheReport> layers;  ///< empty until the prompt has been prefilled
};

struct LayerSnapshot {
  size_t used_blocks = 0;
  size_t reserved_blocks = 0;
  size_t live_bytes = 0;
  size_t tail_waste_bytes = 0;
  std::map<CacheFormat, size_t> blocks_by_format;
};

/// Occupancy of the pool and what runs, as of the end of a recent step: exact when the engine is
/// idle, else made at the end of the first step after 100 ms, and 10 ms where a request was
/// admitted, begun or finished since.
/// Where making one takes long, they come less often, so that they cost 1 % of the time at most, or
/// a quarter of that where a device waits meanwhile; but none is older than 2 seconds.
struct EngineSnapshot {
  size_t block_bytes = 0;
  int block_tokens = 0;  ///< of one layer, in the type that they are computed in
  size_t total_blocks = 0;
  size_t used_blocks = 0;
  size_t reserved_blocks = 0;
  size_t high_water_blocks = 0;
  size_t workspace_capacity_bytes = 0;
  size_t workspace_high_water_bytes = 0;
  std::vector<LayerSnapshot> layers;
  std::vector<RequestSnapshot> requests;  ///< running ones first, then waiting ones
  int running = 0;                        ///< prefilling or decoding
  int waiting = 0;
  absl::Time made_at;
};

class Engine {
 public:
  /// `metrics` must outlive the engine. INVALID_ARGUMENT where options make no sense (a pool of
  /// less than one block per layer, ...).
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options,
                                                        std::unique_ptr<ModelRunner> model,
                                                        Metrics* metrics);
  /// Cancels what runs, joins the thread, checks that the pool is empty.
  ~Engine();

  // ---- Any thread --------------------------------------------------------------------------

  /// Whether a request may be taken now, if it is small enough, behind `before` others that will be
  /// submitted. UNAVAILABLE: draining. RESOURCE_EXHAUSTED: the queue is full. Submit asks too; this
  /// is for who has much to do before. A refusal counts in the metrics, as one of Submit does.
  absl::Status CheckOpen(int before = 0) const;

  /// The same of a request that came at `arrived` and has waited since, for who lets it wait before
  /// it can be submitted; `has_left`: its client has cancelled or gone away. Where it has ended
  /// meanwhile (CANCELLED, DEADLINE_EXCEEDED, or RESOURCE_EXHAUSTED since `max_queue_time` is
  /// over), it counts in the metrics as one that ends in the queue.
  absl::Status CheckWaited(SteadyTime arrived, std::optional<SteadyTime> deadline,
                           bool has_left) const;

  /// Whether requests can be served under the policy at all, asked with the longest prompt: as
  /// CheckServes (scheduler/block_plan.h).
  absl::Status CheckServes(const Policy& policy) const;

  RequestId NewId();
  /// Queues a request under an id that NewId gave, or refuses it at once (RefusalReason says why,
  /// in a word). INVALID_ARGUMENT: the prompt is empty or too long, a token id outside the
  /// vocabulary, a parameter wrong. RESOURCE_EXHAUSTED: the request can never fit (the blocks that
  /// it needs and those that there are, are named). And as CheckOpen. Its first output may come
  /// before this returns.
  absl::Status Submit(RequestId id, EngineRequest request);
  /// The same under a new id.
  absl::StatusOr<RequestId> Submit(EngineRequest request);

  /// Ends a request early, for one of two reasons: kStop (a stop string was seen) or kCancelled.
  /// Its blocks are free before the next step. A final output follows. Unknown or finished ids are
  /// ignored.
  void Cancel(RequestId id, FinishReason reason);

  /// Refuses new requests from now on, and ends those still there at `deadline` with UNAVAILABLE.
  void Drain(absl::Time deadline);
  /// Waits until no request is left, or `timeout`. True when none is left.
  bool WaitIdle(absl::Duration timeout) const;

  /// The latest one, never null. O(1): readers share it, and the engine's thread does not wait for
  /// them.
  std::shared_ptr<const EngineSnapshot> Snapshot() const;
  const ModelShape& model_shape() const;
  const EngineOptions& options() const;  ///< with defaults filled in
  size_t total_blocks() const;

  // ---- The one thread that consumes outputs --------------------------------------------------

  /// Blocks until there are outputs and moves them to `outputs`. False after Stop, when none is
  /// left.
  bool NextOutputs(std::vector<EngineOutput>* outputs);

  /// Ends the engine: cancels what is left, joins the engine thread, lets NextOutputs return false
  /// once drained. Idempotent.
  void Stop();

 private:
  class Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ziggurat

// The clock of an EngineCase: told what the engine sends, it knows how far the requests have come.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "compression/policy.h"
#include "scheduler/engine.h"
#include "scheduler/metrics.h"

namespace ziggurat::bench {

/// `batch` requests of `context` random tokens each, all at once.
struct EngineCase {
  std::shared_ptr<const Policy> policy;
  int batch = 1;
  int context = 1;
  int decode_tokens = 0;  ///< of each request while all are decoding; 0: prefill only
  /// Of `batch` requests those are timed that the pool holds at once; the others never start.
  bool fills_pool = false;
  std::function<void()> after_submit = {};  ///< called once all have been submitted
  /// Not empty: called once all decode. The model waits for it, and the steps from then to the end
  /// are timed: they may be shorter than it takes to wake whoever reads their outputs.
  std::function<void()> after_start = {};
};

/// Steps of the engine thread while a case ran, and its seconds in them.
struct StepParts {
  uint64_t steps = 0;
  DeviceSeconds device;  ///< at work, whatever the thread did
  double model = 0;      ///< matrix products, norms, activations
  double attention = 0;
  double sample = 0;
  double schedule = 0;  ///< everything else

  double total() const { return model + attention + sample + schedule; }
};
StepParts operator-(const StepParts& a, const StepParts& b);

struct EngineFigures {
  double prefill_seconds = 0;  ///< until every request had its first token
  double prefill_tokens_per_second = 0;
  StepParts prefill_parts;  ///< where nothing is decoded behind it

  int batch = 0;  ///< requests that decoded together
  int steps = 0;  ///< timed decode steps, all requests in each
  double decode_seconds = 0;
  double decode_tokens_per_second = 0;
  /// Of `steps` steps, by the mean of those that the engine had done. With after_start by the mean
  /// of those in which no request begins or ends, unless all were over too soon to tell them apart.
  StepParts decode_parts;
  /// With after_start: what the steps in which requests begin and end took beyond that, without the
  /// model's time.
  double edges_seconds = 0;
  size_t cache_bytes = 0;       ///< blocks held by all requests at the end
  double bytes_per_second = 0;  ///< weights and cache that a step reads, by its time
};

/// Read from the series that the daemon shows too.
StepParts PartsSoFar(const Metrics& metrics);

/// How far the requests of a case have come.
class CaseProgress {
 public:
  explicit CaseProgress(int batch) : batch_(batch) {}

  /// The status of a request that ended with an error.
  absl::Status Add(const EngineOutput& output);

  int started() const { return started_; }
  bool all_started() const { return started_ == batch_; }
  /// Nothing has started for some steps, so the pool has no room for another request: where it has,
  /// a prompt goes through between one step and the next.
  bool is_pool_full() const { return started_ > 0 && steps() >= kStepsUntilFull; }
  bool any_finished() const { return finished_ > 0; }
  bool all_finished() const { return finished_ + never_started_ == batch_; }
  /// Once all have started: steps since then, each of which brought every request a token. Outputs
  /// of several steps may arrive together.
  int steps() const { return tokens_.at(last_) - 1; }

 private:
  static constexpr int kStepsUntilFull = 4;
  int batch_;
  int started_ = 0;
  int finished_ = 0;  ///< of those that have started
  int never_started_ = 0;
  RequestId last_ = 0;  ///< the one that started last
  std::unordered_map<RequestId, int> tokens_;
};

/// Times one run of a case, from its construction on. One thread.
class CaseTimer {
 public:
  /// Both must outlive this.
  CaseTimer(const EngineCase& which, const Metrics& metrics);

  /// What the engine has sent since the last call.
  void Add(const std::vector<EngineOutput>& outputs);

  /// Whether no request needs to go on: all that is timed is over, or one has failed.
  bool is_over() const { return stage_ == Stage::kDone || !failure_.ok(); }
  bool all_finished() const { return progress_.all_finished(); }
  /// The first error of a request.
  const absl::Status& failure() const { return failure_; }
  /// Seconds, steps, their parts, and bytes of the cache; rates are not in it.
  const EngineFigures& figures() const { return figures_; }
  const StepParts& parts_at_start() const { return at_start_; }

 private:
  using Clock = std::chrono::steady_clock;
  /// kFirstStep and kTimed time steps out of the middle; kToTheEnd, with after_start, all of them.
  enum class Stage : uint8_t { kPrefill, kFirstStep, kTimed, kToTheEnd, kDone };

  void Advance();
  void EndPrefill();
  void BeginDecode(Stage stage);
  void EndTimedSteps();
  void WatchSteadySteps();
  void EndAllSteps();

  const EngineCase& case_;
  const Metrics& metrics_;
  CaseProgress progress_;
  const StepParts at_start_;
  const Clock::time_point start_;

  Stage stage_ = Stage::kPrefill;
  absl::Status failure_;
  EngineFigures figures_;
  Clock::time_point decode_start_;
  StepParts decode_from_;
  int first_step_ = 0;              ///< with Stage::kTimed
  StepParts steady_from_, steady_;  ///< with Stage::kToTheEnd: steps in which none begins or ends
};

}  // namespace ziggurat::bench

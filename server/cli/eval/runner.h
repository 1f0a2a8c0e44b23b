// Asks many questions at once, and writes down every answer as it comes.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/cli/eval/asking.h"
#include "server/cli/eval/result_log.h"
#include "server/cli/patience.h"
#include "server/cli/progress.h"

namespace ziggurat::eval {

/// One request to be made. Both are somebody else's and outlive the runner.
struct Job {
  const Asking* asking = nullptr;
  const EvalPolicy* policy = nullptr;
};

struct RunnerOptions {
  int concurrency = 1;
  bool attention_recall = false;
  absl::Duration deadline = absl::InfiniteDuration();  ///< of each request
  absl::Duration busy_patience = kBusyPatience;
};

/// Starts at once, in threads of its own. A request that the daemon fails is a result like others;
/// where the queue of the daemon is full it is asked again for a while. The run ends early, without
/// a result for what was under way, when it is told to stop, when no daemon answers any more, and
/// when the log cannot be written.
class Runner {
 public:
  Runner(v1::Ziggurat::StubInterface& stub, const v1::GetModelResponse& model, ResultLog& log,
         std::vector<Job> jobs, const RunnerOptions& options);
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  /// Any thread.
  RunProgress progress() const;
  /// Whether all threads are through.
  bool finished() const { return running_ == 0; }
  /// Cancels what is under way. Any thread.
  void Stop();

  /// Waits for the end: OK, CANCELLED after Stop, UNAVAILABLE with what the connection said, or
  /// FAILED_PRECONDITION where the log cannot be written.
  absl::Status Wait();
  /// What was written to the log, after Wait.
  std::vector<Result> TakeResults() { return std::move(results_); }

 private:
  void Work(size_t worker);
  /// False: the run is over, and `result` is none.
  bool Ask(size_t worker, const Job& job, Result& result);
  grpc::Status Call(size_t worker, const Job& job, Result& result);
  /// The first reason to end early counts.
  void End(absl::Status why);

  v1::Ziggurat::StubInterface& stub_;
  const v1::GetModelResponse& model_;
  ResultLog& log_;
  const std::vector<Job> jobs_;
  const RunnerOptions options_;

  std::atomic<size_t> next_ = 0;
  std::atomic<bool> stopping_ = false;
  std::atomic<int> running_ = 0;
  mutable std::mutex mutex_;
  absl::Status end_;                            // guarded by mutex_
  RunProgress progress_;                        // guarded by mutex_
  std::vector<Result> results_;                 // guarded by mutex_
  std::vector<grpc::ClientContext*> contexts_;  // guarded by mutex_; of each worker, or null
  std::vector<std::thread> workers_;
};

}  // namespace ziggurat::eval

// Puts a daemon under load.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "server/cli/bench/load/request_record.h"
#include "server/cli/bench/load/workload.h"
#include "ziggurat/v1/ziggurat.grpc.pb.h"

namespace ziggurat::bench {

struct LoadOptions {
  /// Of a closed loop, each of which sends its next request when its last one has ended; one that
  /// was refused or failed waits up to kPause first. 0: every request is sent when it arrives.
  int clients = 0;
  /// No request that is due after this is sent; those under way are waited for.
  std::optional<double> duration_seconds = {};
  std::optional<double> timeout_seconds = {};  ///< of a request
  std::string compression = {};                ///< empty: the daemon's choice
};

/// How far a run is.
struct LoadProgress {
  int64_t sent = 0;
  int64_t ended = 0;
  int64_t done = 0;
};

/// Starts at once, with one thread of its own that sends what arrives; answers are taken by the
/// few threads that gRPC has. It ends when the workload or the time is over and nothing is under
/// way, when it is told to stop, and when no daemon answers any more.
class LoadRunner {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kPause{100};

  /// Stub and prompts outlive the runner.
  LoadRunner(v1::Ziggurat::StubInterface& stub, Workload workload, const PromptMaker& prompts,
             const LoadOptions& options);
  ~LoadRunner();
  LoadRunner(const LoadRunner&) = delete;
  LoadRunner& operator=(const LoadRunner&) = delete;

  Clock::time_point start() const { return start_; }
  /// Any thread.
  LoadProgress progress() const;
  bool finished() const;
  /// Cancels what is under way. Any thread but gRPC's.
  void Stop();

  /// Waits for the end: OK; CANCELLED after Stop; UNAVAILABLE, with what the connection said.
  absl::Status Wait();
  /// After Wait, in the order in which requests were sent.
  std::vector<RequestRecord> TakeRecords();

 private:
  class Call;

  void Dispatch();
  void SendArrivals();
  void KeepClientsBusy();
  // Mutex held: a call for the next request, to be started without the mutex; null: no more.
  std::shared_ptr<Call> TakeNext();
  std::shared_ptr<Call> MakeCall(const PlannedRequest& plan);
  void OnEnd(const std::shared_ptr<Call>& call, const grpc::Status& status);
  // Once the call is no more: the last thing that it does with the runner.
  void OnGone();

  double Now() const;
  Clock::time_point Arrival(const PlannedRequest& plan) const;
  bool IsOver() const;  // mutex held: no request may be sent any more

  v1::Ziggurat::StubInterface& stub_;
  const PromptMaker& prompts_;
  const LoadOptions options_;
  const Clock::time_point start_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Workload workload_;       // guarded by mutex_, as all that follows
  bool exhausted_ = false;  // the workload has no more
  bool stopping_ = false;
  bool finished_ = false;
  int resting_ = 0;  // clients that wait before their next request
  absl::Status end_;
  LoadProgress progress_;
  std::set<std::shared_ptr<Call>> calls_;  // under way
  int ending_ = 0;                         // calls that have ended and are not gone
  std::vector<RequestRecord> records_;
  std::thread dispatcher_;
};

}  // namespace ziggurat::bench

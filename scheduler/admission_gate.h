// Who comes in: requests are taken or refused on any thread, by what the engine's thread has last
// said of itself.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "scheduler/metrics.h"

namespace ziggurat {

/// Requests and the blocks that they may take.
struct Places {
  int requests = 0;
  size_t blocks = 0;

  Places& operator+=(const Places& other) {
    requests += other.requests;
    blocks += other.blocks;
    return *this;
  }
  Places& operator-=(const Places& other) {
    requests -= other.requests;
    blocks -= other.blocks;
    return *this;
  }
};

/// Counts the requests that are in: taken, and not over.
///
/// Each step says what it leaves free. A request that fits into that, less what others were
/// promised since, is *promised* its place: the next step admits it, so it does not count as one
/// that waits, and a full queue does not refuse it. Where requests wait nothing is promised.
class AdmissionGate {
 public:
  /// `metrics` outlives it, and counts refusals.
  AdmissionGate(int max_queue, Metrics* metrics) : max_queue_(max_queue), metrics_(metrics) {}

  // ---- Any thread -------------------------------------------------------------------------------

  /// Whether a request may come in, if it is small enough, behind `before` others. UNAVAILABLE:
  /// closed. RESOURCE_EXHAUSTED: the queue is full.
  absl::Status CheckOpen(int before) const;
  /// Takes a request that may come to hold so many blocks, or refuses it as CheckOpen does.
  ///   send  passes it on, with the place that it was promised; nothing comes behind Close
  absl::Status Enter(size_t blocks, absl::FunctionRef<void(Places promised)> send);
  /// Nobody comes in any more.
  void Close();
  /// Waits until nobody is in, or `timeout`. True when nobody is.
  bool AwaitEmpty(absl::Duration timeout) const;

  // ---- The engine's thread ----------------------------------------------------------------------

  /// What a step has left.
  ///   finished  requests that are over, since the last call
  ///   reached   promises of those that `send` has brought, since the last call
  ///   running   requests that have been admitted
  ///   free      what further ones find, those with a promise first; nothing where requests wait
  void Publish(int finished, Places reached, int running, Places free);

 private:
  // Of these `mutex_` is held.
  bool HasPlace(size_t blocks) const { return open_.requests > 0 && blocks <= open_.blocks; }
  absl::Status CheckLocked(bool has_place, int before) const;

  const int max_queue_;
  Metrics* const metrics_;
  mutable std::mutex mutex_;
  mutable std::condition_variable emptied_;
  int in_ = 0;
  int waiting_ = 0;  ///< of them, not admitted
  Places open_;      ///< what the last step left, less what has been promised since
  Places promised_;  ///< to those that have not reached the engine's thread
  bool closed_ = false;
};

}  // namespace ziggurat

// Requests that wait for admission: first come, first served, with a limit on overtaking.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "scheduler/sequence.h"

namespace ziggurat {

/// A request that does not fit yet may be overtaken by later, smaller ones, but only
/// `max_overtakes` times; then nobody passes it, and blocks collect until it fits. Engine thread
/// only.
class WaitingQueue {
 public:
  explicit WaitingQueue(int max_overtakes) : max_overtakes_(max_overtakes) {}

  void Push(std::unique_ptr<Sequence> sequence);
  /// The next request whose plan fits into `available_blocks`, or null. Cheap when neither the
  /// queue changed nor `available_blocks` grew since the last null.
  std::unique_ptr<Sequence> PopFitting(size_t available_blocks);
  /// Takes out the request with this id, or null.
  std::unique_ptr<Sequence> Remove(RequestId id);
  /// Takes out those that have expired by `now`. Looks at the queue only once the earliest expiry
  /// that it knows of has come.
  std::vector<std::unique_ptr<Sequence>> RemoveExpired(SteadyTime now);
  /// Takes out everything.
  std::vector<std::unique_ptr<Sequence>> RemoveAll();

  size_t size() const { return queue_.size(); }
  const std::deque<std::unique_ptr<Sequence>>& sequences() const { return queue_; }

 private:
  int max_overtakes_;
  std::deque<std::unique_ptr<Sequence>> queue_;
  size_t hopeless_below_ = 0;  ///< fewer available blocks than this were tried in vain
  SteadyTime next_expiry_ = SteadyTime::max();  ///< no request here expires earlier
};

}  // namespace ziggurat

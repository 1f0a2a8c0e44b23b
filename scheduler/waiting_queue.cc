#include "scheduler/waiting_queue.h"

#include <algorithm>
#include <utility>

namespace ziggurat {

void WaitingQueue::Push(std::unique_ptr<Sequence> sequence) {
  next_expiry_ = std::min(next_expiry_, sequence->expires());
  queue_.push_back(std::move(sequence));
  hopeless_below_ = 0;
}

std::unique_ptr<Sequence> WaitingQueue::PopFitting(size_t available_blocks) {
  if (available_blocks < hopeless_below_) return nullptr;
  for (size_t i = 0; i < queue_.size(); ++i) {
    if (queue_[i]->block_plan.total_blocks <= available_blocks) {
      std::unique_ptr<Sequence> sequence = std::move(queue_[i]);
      queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(i));
      for (size_t earlier = 0; earlier < i; ++earlier) ++queue_[earlier]->overtaken;
      hopeless_below_ = 0;
      return sequence;
    }
    if (queue_[i]->overtaken >= max_overtakes_) break;
  }
  hopeless_below_ = available_blocks + 1;
  return nullptr;
}

std::unique_ptr<Sequence> WaitingQueue::Remove(RequestId id) {
  auto it = std::find_if(queue_.begin(), queue_.end(),
                         [id](const auto& sequence) { return sequence->id == id; });
  if (it == queue_.end()) return nullptr;
  std::unique_ptr<Sequence> sequence = std::move(*it);
  queue_.erase(it);
  hopeless_below_ = 0;
  return sequence;
}

std::vector<std::unique_ptr<Sequence>> WaitingQueue::RemoveExpired(SteadyTime now) {
  std::vector<std::unique_ptr<Sequence>> expired;
  if (now < next_expiry_) return expired;
  next_expiry_ = SteadyTime::max();
  std::deque<std::unique_ptr<Sequence>> left;
  for (std::unique_ptr<Sequence>& sequence : queue_) {
    if (sequence->expires() <= now) {
      expired.push_back(std::move(sequence));
    } else {
      next_expiry_ = std::min(next_expiry_, sequence->expires());
      left.push_back(std::move(sequence));
    }
  }
  queue_ = std::move(left);
  if (!expired.empty()) hopeless_below_ = 0;
  return expired;
}

std::vector<std::unique_ptr<Sequence>> WaitingQueue::RemoveAll() {
  std::vector<std::unique_ptr<Sequence>> all(std::make_move_iterator(queue_.begin()),
                                             std::make_move_iterator(queue_.end()));
  queue_.clear();
  return all;
}

}  // namespace ziggurat

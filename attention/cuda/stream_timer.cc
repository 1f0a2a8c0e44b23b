#include "attention/cuda/stream_timer.h"

#include <utility>

namespace ziggurat::cuda {

StreamTimer::Span::Span(StreamTimer& timer) : timer_(timer) {
  if (timer_.free_.empty()) timer_.free_.emplace_back();
  timer_.asked_.push_back(std::move(timer_.free_.back()));
  timer_.free_.pop_back();
  timer_.asked_.back().begin->Record(timer_.stream_);
}

StreamTimer::Span::~Span() { timer_.asked_.back().end->Record(timer_.stream_); }

double StreamTimer::Seconds() {
  while (!asked_.empty() && asked_.front().end->IsReached()) {
    seconds_ += asked_.front().end->SecondsSince(*asked_.front().begin);
    free_.push_back(std::move(asked_.front()));
    asked_.pop_front();
  }
  return seconds_;
}

}  // namespace ziggurat::cuda

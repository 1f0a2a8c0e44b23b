#include "attention/cuda/stream_timer.h"

#include <utility>

namespace ziggurat::cuda {

StreamTimer::Span::Span(StreamTimer& timer) : stream_(timer.stream_), end_(timer.Begin()) {}

StreamTimer::Span::~Span() { end_.Record(stream_); }

Event& StreamTimer::Begin() {
  if (free_.empty()) free_.emplace_back();
  asked_.push_back(std::move(free_.back()));
  free_.pop_back();
  asked_.back().begin->Record(stream_);
  return *asked_.back().end;
}

double StreamTimer::Seconds() {
  while (!asked_.empty() && asked_.front().end->IsReached()) {
    seconds_ += asked_.front().end->SecondsSince(*asked_.front().begin);
    free_.push_back(std::move(asked_.front()));
    asked_.pop_front();
  }
  return seconds_;
}

}  // namespace ziggurat::cuda

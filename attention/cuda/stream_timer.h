// How long a device is at work on some of what a stream is asked for, by its own clock.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "attention/cuda/device.h"

namespace ziggurat::cuda {

/// Waits for nothing: what the stream has not come to yet counts later.
class StreamTimer {
 public:
  explicit StreamTimer(const Stream* stream) : stream_(*stream) {}

  /// Counts what is asked of the stream while it lives; of one within another that counts twice.
  /// Launches alone are to stand in between: where the stream is idle, what the host does counts.
  class Span;

  /// Of all spans that the stream is through with. Not within one.
  double Seconds();

 private:
  struct Events {
    std::unique_ptr<Event> begin = Event::Create();
    std::unique_ptr<Event> end = Event::Create();
  };

  /// Where a span begins; the event that is to be recorded at its end.
  Event& Begin();

  const Stream& stream_;
  std::deque<Events> asked_;  ///< in the order of the stream
  std::vector<Events> free_;
  double seconds_ = 0;
};

class StreamTimer::Span {
 public:
  explicit Span(StreamTimer& timer);
  ~Span();
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  const Stream& stream_;
  Event& end_;
};

}  // namespace ziggurat::cuda

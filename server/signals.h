// SIGTERM and SIGINT as events that a thread waits for, so nothing runs inside a signal handler.
#pragma once

#include "absl/time/time.h"

namespace ziggurat {

/// Blocks both signals in the calling thread and in all that it starts later; construct it before
/// any other thread. One waiter at a time.
class TerminationSignals {
 public:
  TerminationSignals();

  /// The number of the signal that came, or 0 after `timeout`.
  int Wait(absl::Duration timeout = absl::InfiniteDuration());
};

}  // namespace ziggurat

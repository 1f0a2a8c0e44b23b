// SIGTERM, SIGINT and SIGHUP as events that a thread waits for, so nothing runs inside a signal
// handler.
#pragma once

#include <signal.h>

#include "absl/time/time.h"

namespace ziggurat {

/// Blocks these signals in the calling thread and in all that it starts later; construct it before
/// any other thread. SIGHUP comes when a terminal is closed, and stays ignored where whoever
/// started us ignores it (nohup). One waiter at a time.
class TerminationSignals {
 public:
  TerminationSignals();

  /// The number of the signal that came, or 0 after `timeout`.
  int Wait(absl::Duration timeout = absl::InfiniteDuration());
  /// Whether this process sent itself the one that Wait gave last.
  bool is_own() const { return is_own_; }

 private:
  sigset_t signals_;
  bool is_own_ = false;
};

}  // namespace ziggurat

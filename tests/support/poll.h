// Waiting for what comes sooner or later.
#pragma once

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace ziggurat {

/// For what comes at once but on a machine that is very busy.
inline constexpr absl::Duration kPatience = absl::Seconds(60);

/// Polls `condition` every few milliseconds. Whether it came true in time: the test is to fail
/// else, and to say what it has waited for.
template <typename Condition>
bool PollUntil(absl::Duration timeout, Condition condition) {
  const absl::Time deadline = absl::Now() + timeout;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

}  // namespace ziggurat

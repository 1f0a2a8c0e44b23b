// Why a request ends that is not done, wherever it waits or runs.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "scheduler/metrics.h"
#include "scheduler/request.h"

namespace ziggurat {

struct Ending {
  FinishReason reason = FinishReason::kCancelled;
  absl::Status status;
};

/// Of one whose deadline has passed.
Ending PastDeadline();

/// Of one whose client has cancelled or gone away. A client that gives up at its deadline says so
/// by cancelling, and may do so a little before our own clock sees the deadline: less than 50 ms
/// before it, that is the reason.
Ending WhyLeft(std::optional<SteadyTime> deadline, SteadyTime now);

/// Of one that has waited for `max_queue_time` seconds; counts it as refused.
Ending PastQueueTime(double max_queue_time, Metrics* metrics);

}  // namespace ziggurat

#include "scheduler/endings.h"

#include <chrono>

#include "absl/strings/str_format.h"
#include "scheduler/refusal.h"

namespace ziggurat {
namespace {

constexpr auto kDeadlineSlack = std::chrono::milliseconds(50);

}  // namespace

Ending PastDeadline() {
  return {FinishReason::kDeadline,
          absl::DeadlineExceededError("the request's deadline has passed")};
}

Ending WhyLeft(std::optional<SteadyTime> deadline, SteadyTime now) {
  if (deadline.has_value() && *deadline <= now + kDeadlineSlack) return PastDeadline();
  return {FinishReason::kCancelled, absl::CancelledError("the client cancelled the request")};
}

Ending PastQueueTime(double max_queue_time, Metrics* metrics) {
  absl::Status status = absl::ResourceExhaustedError(absl::StrFormat(
      "the server is busy: nothing of the request was computed within %g seconds", max_queue_time));
  return {FinishReason::kQueueTime, Refuse(metrics, Refusal::kQueueTime, std::move(status))};
}

}  // namespace ziggurat

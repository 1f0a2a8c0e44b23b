#include "scheduler/refusal.h"

#include <utility>

#include "absl/strings/cord.h"
#include "scheduler/metrics.h"
#include "scheduler/request.h"

namespace ziggurat {
namespace {

constexpr char kPayload[] = "ziggurat/refusal_reason";

}  // namespace

absl::Status Refuse(Metrics* metrics, Refusal reason, absl::Status status) {
  metrics->CountRefused(reason);
  status.SetPayload(kPayload, absl::Cord(std::string(RefusalName(reason))));
  return status;
}

absl::Status RefuseInvalid(Metrics* metrics, absl::Status status) {
  if (!absl::IsInternal(status)) return Refuse(metrics, Refusal::kInvalid, std::move(status));
  metrics->CountFinished(FinishReason::kError);
  return status;
}

std::string RefusalReason(const absl::Status& status) {
  const auto reason = status.GetPayload(kPayload);
  return reason.has_value() ? std::string(*reason) : "";
}

}  // namespace ziggurat

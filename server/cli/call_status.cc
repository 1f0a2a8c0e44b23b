#include "server/cli/call_status.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/refusal.h"
#include "server/wire.h"

namespace ziggurat {

void SetDeadline(grpc::ClientContext& context, absl::Duration time) {
  context.set_deadline(absl::ToChronoTime(absl::Now() + time));
}

std::string CodeName(grpc::StatusCode code) {
  return absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
}

bool IsAskedWrongly(grpc::StatusCode code) {
  return code == grpc::StatusCode::INVALID_ARGUMENT || code == grpc::StatusCode::PERMISSION_DENIED;
}

grpc::Status WithRefusalReason(const grpc::Status& status, const grpc::ClientContext& context) {
  const auto& metadata = context.GetServerTrailingMetadata();
  const auto reason = metadata.find(kRefusalReasonKey);
  if (status.ok() || reason == metadata.end()) return status;
  return {status.error_code(), status.error_message(),
          std::string(reason->second.data(), reason->second.size())};
}

bool IsBusy(const grpc::Status& status) {
  const std::string reason = status.error_details();
  return reason == RefusalName(Refusal::kQueueFull) || reason == RefusalName(Refusal::kQueueTime) ||
         reason == RefusalName(Refusal::kTooManyStreams);
}

grpc::Status WithoutAnswer(const grpc::Status& status, absl::Duration deadline) {
  if (status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED) return status;
  return {status.error_code(), absl::StrCat("no answer to a request of one token within ",
                                            absl::FormatDuration(deadline))};
}

bool IsDaemonGone(grpc::StatusCode code, bool we_cancelled) {
  return code == grpc::StatusCode::UNAVAILABLE ||
         (code == grpc::StatusCode::CANCELLED && !we_cancelled);
}

}  // namespace ziggurat

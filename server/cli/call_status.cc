#include "server/cli/call_status.h"

#include "absl/status/status.h"
#include "absl/strings/match.h"

namespace ziggurat {

std::string CodeName(grpc::StatusCode code) {
  return absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
}

bool IsAskedWrongly(grpc::StatusCode code) {
  return code == grpc::StatusCode::INVALID_ARGUMENT || code == grpc::StatusCode::PERMISSION_DENIED;
}

bool IsBusy(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED &&
         (absl::StartsWith(status.error_message(), "the queue is full") ||
          absl::StartsWith(status.error_message(), "too many streams"));
}

bool IsDaemonGone(grpc::StatusCode code, bool we_cancelled) {
  return code == grpc::StatusCode::UNAVAILABLE ||
         (code == grpc::StatusCode::CANCELLED && !we_cancelled);
}

}  // namespace ziggurat

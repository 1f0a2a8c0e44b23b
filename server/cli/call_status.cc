#include "server/cli/call_status.h"

#include "absl/status/status.h"
#include "server/wire.h"

namespace ziggurat {

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
  return reason == "queue_full" || reason == "queue_time" || reason == "too_many_streams";
}

bool IsDaemonGone(grpc::StatusCode code, bool we_cancelled) {
  return code == grpc::StatusCode::UNAVAILABLE ||
         (code == grpc::StatusCode::CANCELLED && !we_cancelled);
}

}  // namespace ziggurat

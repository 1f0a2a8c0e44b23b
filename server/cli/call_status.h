// How a call to a daemon ended, as its clients see it.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include <string>

#include "absl/time/time.h"

namespace ziggurat {

/// The call fails with DEADLINE_EXCEEDED unless it ends within that time from now.
void SetDeadline(grpc::ClientContext& context, absl::Duration time);

/// "RESOURCE_EXHAUSTED", ...
std::string CodeName(grpc::StatusCode code);

/// Whether the client asked for what is never given: what ends a command with kExitUsage.
bool IsAskedWrongly(grpc::StatusCode code);

/// The status of a finished Generate call; where that was refused, error_details() is why,
/// in a word (docs/api.md).
grpc::Status WithRefusalReason(const grpc::Status& status, const grpc::ClientContext& context);

/// Whether such a call was refused for what may be over a moment later, the daemon being busy:
/// other requests that exhaust it are too large for ever.
bool IsBusy(const grpc::Status& status);

/// The status of a request of one token; where nothing came within its deadline, says so.
grpc::Status WithoutAnswer(const grpc::Status& status, absl::Duration deadline);

/// Whether nobody is there, or not for long. A daemon that goes away cuts off what is on its way to
/// it: CANCELLED, which is its doing where `we_cancelled` is false.
bool IsDaemonGone(grpc::StatusCode code, bool we_cancelled);

}  // namespace ziggurat

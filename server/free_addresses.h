// Whether a port can be listened on, beyond what gRPC and httplib find out.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "server/config.h"

namespace ziggurat {

/// UNAVAILABLE, with what the system says, where the host cannot be resolved or bound, or where
/// somebody else listens on any of its addresses: `localhost` has two, and gRPC and httplib are
/// content with either.
///   scheme  begins the name of the endpoint in the message
absl::Status CheckAddressesAreFree(std::string_view scheme, const Endpoint& endpoint);

}  // namespace ziggurat

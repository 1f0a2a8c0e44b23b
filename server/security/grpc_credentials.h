// How gRPC's port is protected.
#pragma once

#include <functional>
#include <memory>

#include "grpcpp/security/server_credentials.h"
#include "server/security/port_security.h"

namespace ziggurat {

/// Plain text or TLS, as `security` has it, with whatever it has at the time of each connection. A
/// call without a valid token, of any service but gRPC's health, is ended with UNAUTHENTICATED
/// before any service sees it, after `on_refused` was called (any thread, at once).
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(
    std::shared_ptr<const PortSecurity> security, std::function<void()> on_refused);

}  // namespace ziggurat

// The HTTP server under the daemon's pages: plain text or TLS, and who may see them.
#pragma once

#include <memory>

#include "httplib.h"
#include "server/security/port_security.h"

namespace ziggurat {

/// A server that speaks TLS where `security` has it, and asks what gRPC's port asks: a client
/// certificate, a token (as a bearer token or, for browsers, as the password of any user). Only
/// /healthz and /readyz are for everybody. GET and HEAD alone: bodies are never read. Ranges are
/// ignored. Has no pages yet.
std::unique_ptr<httplib::Server> MakeHttpServer(std::shared_ptr<const PortSecurity> security);

}  // namespace ziggurat

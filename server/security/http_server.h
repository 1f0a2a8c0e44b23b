// The HTTP server under the daemon's pages: plain text or TLS, and who may see them.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <set>

#include "httplib.h"
#include "server/security/port_security.h"
#include "server/security/tls_identity.h"

namespace ziggurat {

/// A server that speaks TLS where `security` has it, and asks what gRPC's port asks: a client
/// certificate, a token (as a bearer token or, for browsers, as the password of any user). Only
/// /healthz and /readyz are for everybody. One request of a connection, GET and HEAD alone, without
/// bodies and ranges, within the limits of HttpConnection. 64 connections are served at a time and
/// 256 wait; more are closed unheard. Has no pages yet.
class HttpServer final : public httplib::Server {
 public:
  /// is_local  only this machine reaches it. Where nothing is asked of who does, it answers no
  ///           request for a host of another name: a web site could give its own name this
  ///           machine's address, and its pages could then read ours (DNS rebinding).
  /// on_refused  called for every request without a valid token. Any thread.
  HttpServer(std::shared_ptr<const PortSecurity> security, bool is_local,
             std::function<void()> on_refused);

  /// Ends connections, and those to come, in the middle of whatever they do. Any thread.
  void CutConnections();

 private:
  bool process_and_close_socket(socket_t socket) override;

  const std::shared_ptr<const PortSecurity> security_;
  const bool asks_for_own_name_;
  OwnedTlsContext context_;  ///< null: plain text
  std::mutex mutex_;
  std::set<socket_t> open_;
  bool is_cut_ = false;
};

}  // namespace ziggurat

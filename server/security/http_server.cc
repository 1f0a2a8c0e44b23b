#include "server/security/http_server.h"

#include <openssl/ssl.h>

#include <string>
#include <utility>

namespace ziggurat {
namespace {

using Handled = httplib::Server::HandlerResponse;

// Asked for every connection, so that it gets what the files say now.
int ShowCurrentIdentity(SSL* ssl, void* security) {
  const auto identity = static_cast<const PortSecurity*>(security)->Identity();
  return SSL_set_SSL_CTX(ssl, identity->context()) != nullptr ? 1 : 0;
}

// The context that connections begin with; it has no certificate of its own.
bool SetUpContext(const PortSecurity& security, SSL_CTX& context) {
  SSL_CTX_set_min_proto_version(&context, TLS1_2_VERSION);
  // No resumption: who was let in by an authority that has gone since is not let in by a ticket.
  SSL_CTX_set_options(&context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_session_cache_mode(&context, SSL_SESS_CACHE_OFF);
  // Probes have no certificate; Check asks for one.
  if (security.asks_for_certificate()) SSL_CTX_set_verify(&context, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_cert_cb(&context, ShowCurrentIdentity, const_cast<PortSecurity*>(&security));
  return true;
}

bool ShowsCertificate(const httplib::Request& request) {
  return request.ssl != nullptr && SSL_get0_peer_certificate(request.ssl) != nullptr &&
         SSL_get_verify_result(request.ssl) == X509_V_OK;
}

bool ShowsToken(const PortSecurity& security, const httplib::Request& request) {
  if (request.get_header_value_count("Authorization") != 1) return false;
  const std::string authorization = request.get_header_value("Authorization");
  return security.AcceptsToken(BearerToken(authorization)) ||
         security.AcceptsToken(BasicPassword(authorization));
}

Handled Refuse(httplib::Response& response, int status, const char* why) {
  response.status = status;
  response.set_content(why, "text/plain");
  return Handled::Handled;
}

/// Before anything of the body is read.
Handled Check(const PortSecurity& security, const httplib::Request& request,
              httplib::Response& response) {
  if (request.method != "GET" && request.method != "HEAD") {
    response.set_header("Allow", "GET, HEAD");
    return Refuse(response, 405, "GET only\n");
  }
  if (request.path == "/healthz" || request.path == "/readyz") return Handled::Unhandled;
  if (security.asks_for_certificate() && !ShowsCertificate(request)) {
    return Refuse(response, 403, "a client certificate is needed\n");
  }
  if (security.asks_for_token() && !ShowsToken(security, request)) {
    response.set_header("WWW-Authenticate",
                        R"(Basic realm="Ziggurat: any name, and a token as password")");
    return Refuse(response, 401,
                  "a valid token is needed: 'Authorization: Bearer TOKEN', or as a password\n");
  }
  return Handled::Unhandled;
}

}  // namespace

std::unique_ptr<httplib::Server> MakeHttpServer(std::shared_ptr<const PortSecurity> security) {
  std::unique_ptr<httplib::Server> server;
  if (security->has_tls()) {
    server = std::make_unique<httplib::SSLServer>(
        [&security](SSL_CTX& context) { return SetUpContext(*security, context); });
  } else {
    server = std::make_unique<httplib::Server>();
  }
  // Also keeps `security` alive for as long as the server.
  server->set_pre_routing_handler([security = std::move(security)](const httplib::Request& request,
                                                                   httplib::Response& response) {
    // Nobody needs parts of a page, and a request may name thousands of them, each a copy. httplib
    // has no switch for it; the request that it hands out is a variable of its own.
    const_cast<httplib::Request&>(request).ranges.clear();
    return Check(*security, request, response);
  });
  return server;
}

}  // namespace ziggurat

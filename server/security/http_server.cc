#include "server/security/http_server.h"

#include <arpa/inet.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "server/security/http_connection.h"

namespace ziggurat {
namespace {

using Handled = httplib::Server::HandlerResponse;

constexpr int kUnauthorized = 401;
constexpr size_t kThreads = 64;
constexpr int kMostWaiting = 256;

// On a thread that closes a connection instead of serving it.
thread_local bool turns_away = false;

// httplib's own has no bound: connections that say nothing would take all file descriptors.
class BoundedPool final : public httplib::ThreadPool {
 public:
  BoundedPool() : ThreadPool(kThreads) {}

  void enqueue(std::function<void()> connection) override {
    if (waiting_ >= kMostWaiting) {
      turns_away = true;
      connection();
      turns_away = false;
      return;
    }
    ++waiting_;
    ThreadPool::enqueue([this, connection = std::move(connection)] {
      --waiting_;
      connection();
    });
  }

 private:
  std::atomic<int> waiting_ = 0;
};

// Whether an Accept-Encoding has gzip, and not as "gzip;q=0".
bool TakesGzip(absl::string_view encodings) {
  for (const absl::string_view encoding : absl::StrSplit(encodings, ',')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(encoding, ';');
    if (!absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(parts[0]), "gzip")) continue;
    double weight = 1;
    if (parts.size() > 1) {
      absl::string_view text = absl::StripAsciiWhitespace(parts[1]);
      if (absl::ConsumePrefix(&text, "q=") && !absl::SimpleAtod(text, &weight)) weight = 0;
    }
    return weight > 0;
  }
  return false;
}

// Of what a client takes, gzip alone: httplib would take brotli before it, at its slowest.
void KeepGzip(httplib::Headers& headers) {
  const auto [begin, end] = headers.equal_range("Accept-Encoding");
  const bool takes_gzip =
      std::any_of(begin, end, [](const auto& header) { return TakesGzip(header.second); });
  headers.erase(begin, end);
  if (takes_gzip) headers.emplace("Accept-Encoding", "gzip");
}

// Asked for every connection, so that it gets what the files say now.
int ShowCurrentIdentity(SSL* ssl, void* security) {
  const auto identity = static_cast<const PortSecurity*>(security)->Identity();
  return SSL_set_SSL_CTX(ssl, identity->context()) != nullptr ? 1 : 0;
}

// The context that connections begin with; it has no certificate of its own.
SSL_CTX* NewContext(const PortSecurity& security) {
  if (!security.has_tls()) return nullptr;
  SSL_CTX* context = SSL_CTX_new(TLS_server_method());
  if (context == nullptr) throw std::bad_alloc();  // null would mean plain text
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  // No resumption: who was let in by an authority that has gone since is not let in by a ticket.
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  // Probes have no certificate; Check asks for one.
  if (security.asks_for_certificate()) SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_cert_cb(context, ShowCurrentIdentity, const_cast<PortSecurity*>(&security));
  return context;
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

/// Of a Host header: an address, "localhost", or nothing at all.
bool IsOwnName(std::string host) {
  const size_t bracket = host.rfind(']');
  const size_t colon = host.rfind(':');
  if (colon != std::string::npos && (bracket == std::string::npos || colon > bracket)) {
    host.resize(colon);
  }
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  unsigned char address[sizeof(in6_addr)];
  return host.empty() || absl::EqualsIgnoreCase(host, "localhost") ||
         inet_pton(AF_INET, host.c_str(), address) == 1 ||
         inet_pton(AF_INET6, host.c_str(), address) == 1;
}

Handled Check(const PortSecurity& security, bool asks_for_own_name, const httplib::Request& request,
              httplib::Response& response) {
  if (request.method != "GET" && request.method != "HEAD") {
    response.set_header("Allow", "GET, HEAD");
    return Refuse(response, 405, "GET and HEAD only\n");
  }
  if (request.path == "/healthz" || request.path == "/readyz") return Handled::Unhandled;
  if (asks_for_own_name && !IsOwnName(request.get_header_value("Host"))) {
    return Refuse(response, 403,
                  "only this machine may ask: call it localhost or by an address, such as "
                  "127.0.0.1\n");
  }
  if (security.asks_for_certificate() && !ShowsCertificate(request)) {
    return Refuse(response, 403, "a client certificate is needed\n");
  }
  if (security.asks_for_token() && !ShowsToken(security, request)) {
    response.set_header("WWW-Authenticate",
                        R"(Basic realm="Ziggurat: any name, and a token as password")");
    return Refuse(response, kUnauthorized,
                  "a valid token is needed: 'Authorization: Bearer TOKEN', or as a password\n");
  }
  return Handled::Unhandled;
}

}  // namespace

HttpServer::HttpServer(std::shared_ptr<const PortSecurity> security, bool is_local,
                       std::function<void()> on_refused)
    : security_(std::move(security)),
      asks_for_own_name_(is_local && !security_->asks_for_certificate() &&
                         !security_->asks_for_token()),
      context_(NewContext(*security_)) {
  // Asked before a body would be read.
  set_pre_routing_handler([this, on_refused = std::move(on_refused)](
                              const httplib::Request& request, httplib::Response& response) {
    const Handled handled = Check(*security_, asks_for_own_name_, request, response);
    if (response.status == kUnauthorized) on_refused();
    return handled;
  });
  new_task_queue = [] { return new BoundedPool(); };
}

bool HttpServer::process_and_close_socket(socket_t socket) {
  if (turns_away) {
    close(socket);
    return false;
  }
  bool has_begun = false;
  {
    std::lock_guard lock(mutex_);
    has_begun = !is_cut_ && open_.insert(socket).second;
  }
  bool is_answered = false;
  if (has_begun) {
    HttpConnection connection(socket, context_.get());
    if (connection.Accept()) {
      bool is_closed = false;
      is_answered = process_request(connection, /*close_connection=*/true, is_closed,
                                    [&](httplib::Request& request) {
                                      request.ssl = connection.ssl();
                                      KeepGzip(request.headers);
                                    });
    }
    connection.Close();
  }
  std::lock_guard lock(mutex_);
  open_.erase(socket);
  close(socket);
  return is_answered;
}

void HttpServer::CutConnections() {
  std::lock_guard lock(mutex_);
  is_cut_ = true;
  for (const socket_t socket : open_) shutdown(socket, SHUT_RDWR);
}

}  // namespace ziggurat

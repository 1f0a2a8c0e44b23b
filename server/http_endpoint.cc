#include "server/http_endpoint.h"

#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "httplib.h"
#include "prometheus/text_serializer.h"
#include "server/page/page_routes.h"
#include "server/security/http_server.h"

namespace ziggurat {
namespace {

// A connection that says nothing holds one until it times out.
constexpr int kThreads = 64;
constexpr int kTimeoutSeconds = 1;
constexpr char kMetricsType[] = "text/plain; version=0.0.4; charset=utf-8";

// httplib's default sets SO_REUSEPORT, with which two daemons could share a port unnoticed.
void SetSocketOptions(socket_t socket) {
  const int yes = 1;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
}

}  // namespace

class HttpEndpoint::Impl {
 public:
  std::unique_ptr<httplib::Server> server;
  std::thread thread;
};

absl::StatusOr<std::unique_ptr<HttpEndpoint>> HttpEndpoint::Start(
    const Endpoint& endpoint, std::shared_ptr<const PortSecurity> security, Metrics* metrics,
    PageData* page) {
  auto http = std::unique_ptr<HttpEndpoint>(new HttpEndpoint());
  http->impl_ = std::make_unique<Impl>();
  const char* scheme = security->has_tls() ? "https://" : "http://";
  http->impl_->server = MakeHttpServer(security);
  httplib::Server& server = *http->impl_->server;
  server.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
  server.set_socket_options(SetSocketOptions);
  server.set_read_timeout(kTimeoutSeconds);
  server.set_keep_alive_timeout(kTimeoutSeconds);  // until the first byte of a request, too
  server.set_keep_alive_max_count(1);  // a kept connection would hold one of the few threads

  server.Get("/metrics", [metrics, security = std::move(security)](const httplib::Request&,
                                                                   httplib::Response& response) {
    if (security->has_tls()) {
      metrics->SetCertificateExpiry(
          absl::ToDoubleSeconds(security->Identity()->expires() - absl::UnixEpoch()));
    }
    response.set_content(prometheus::TextSerializer().Serialize(metrics->Collect()), kMetricsType);
  });
  server.Get("/healthz", [](const httplib::Request&, httplib::Response& response) {
    response.set_content("ok\n", "text/plain");
  });
  HttpEndpoint* self = http.get();
  server.Get("/readyz", [self](const httplib::Request&, httplib::Response& response) {
    const Readiness readiness = self->readiness_;
    if (readiness == Readiness::kServing) {
      response.set_content("ok\n", "text/plain");
      return;
    }
    response.status = 503;
    response.set_content(absl::StrCat(ReadinessName(readiness), "\n"), "text/plain");
  });
  if (page != nullptr) {
    AddPageRoutes(
        page, [self] { return self->readiness_.load(); }, &server);
  }

  errno = 0;
  if (endpoint.port == 0) {
    http->port_ = server.bind_to_any_port(endpoint.host);
  } else {
    http->port_ = server.bind_to_port(endpoint.host, endpoint.port) ? endpoint.port : -1;
  }
  if (http->port_ <= 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", scheme,
                                               FormatEndpoint(endpoint), ": ",
                                               errno ? std::strerror(errno) : "no such host"));
  }
  http->impl_->thread = std::thread([&server] { server.listen_after_bind(); });
  // stop() does nothing before the loop runs, so the destructor may not come earlier.
  while (!server.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return http;
}

HttpEndpoint::~HttpEndpoint() {
  if (!impl_->thread.joinable()) return;
  impl_->server->stop();
  impl_->thread.join();
}

}  // namespace ziggurat

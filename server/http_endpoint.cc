#include "server/http_endpoint.h"

#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <future>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "httplib.h"
#include "prometheus/text_serializer.h"
#include "server/free_addresses.h"
#include "server/page/page_routes.h"
#include "server/port_failure.h"
#include "server/security/http_server.h"
#include "server/security/security_config.h"

namespace ziggurat {
namespace {

// At the end, for a page that is being read.
constexpr std::chrono::milliseconds kPatience{500};
constexpr char kMetricsType[] = "text/plain; version=0.0.4; charset=utf-8";

// httplib's default sets SO_REUSEPORT, with which two daemons could share a port unnoticed.
void SetSocketOptions(socket_t socket) {
  const int yes = 1;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
}

}  // namespace

class HttpEndpoint::Impl {
 public:
  std::unique_ptr<HttpServer> server;
  std::thread thread;
  std::atomic<bool> is_stopping = false;
  std::promise<void> ended;
  std::future<void> has_ended;  ///< of it
};

absl::StatusOr<std::unique_ptr<HttpEndpoint>> HttpEndpoint::Start(
    const Endpoint& endpoint, std::shared_ptr<const PortSecurity> security, Metrics* metrics,
    PageData* page) {
  auto http = std::unique_ptr<HttpEndpoint>(new HttpEndpoint());
  http->impl_ = std::make_unique<Impl>();
  const char* scheme = security->has_tls() ? "https://" : "http://";
  http->impl_->server =
      std::make_unique<HttpServer>(security, IsLoopback(endpoint.host),
                                   [metrics] { metrics->CountRefused(Refusal::kUnauthenticated); });
  HttpServer& server = *http->impl_->server;
  server.set_socket_options(SetSocketOptions);

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

  if (absl::Status status = CheckAddressesAreFree(scheme, endpoint); !status.ok()) return status;
  errno = 0;
  if (endpoint.port == 0) {
    http->port_ = server.bind_to_any_port(endpoint.host);
  } else {
    http->port_ = server.bind_to_port(endpoint.host, endpoint.port) ? endpoint.port : -1;
  }
  if (http->port_ <= 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", scheme, FormatEndpoint(endpoint), ": ",
                     errno ? std::strerror(errno) : "httplib cannot, though the system lets it"));
  }
  http->impl_->has_ended = http->impl_->ended.get_future();
  http->impl_->thread = std::thread([impl = http->impl_.get()] {
    impl->server->listen_after_bind();
    if (!impl->is_stopping) ReportPortFailure(absl::StrCat("HTTP: ", std::strerror(errno)));
    impl->ended.set_value();
  });
  // stop() does nothing before the loop runs, so the destructor may not come earlier.
  constexpr std::chrono::milliseconds kStep{1};
  while (!server.is_running() &&
         http->impl_->has_ended.wait_for(kStep) != std::future_status::ready) {
  }
  return http;
}

HttpEndpoint::~HttpEndpoint() {
  if (!impl_->thread.joinable()) return;
  impl_->is_stopping = true;
  impl_->server->stop();
  if (impl_->has_ended.wait_for(kPatience) != std::future_status::ready) {
    impl_->server->CutConnections();
  }
  impl_->thread.join();
}

}  // namespace ziggurat

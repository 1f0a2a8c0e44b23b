#include "server/http_endpoint.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <future>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
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
// At the end, for a page that is being read.
constexpr std::chrono::milliseconds kPatience{500};
constexpr char kMetricsType[] = "text/plain; version=0.0.4; charset=utf-8";

// httplib's default sets SO_REUSEPORT, with which two daemons could share a port unnoticed.
void SetSocketOptions(socket_t socket) {
  const int yes = 1;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
}

/// Of an address of IPv4 or IPv6; 0 of another.
int PortOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  }
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  }
  return 0;
}

/// Ends the connections to a port of this process. httplib waits for its clients one read at a
/// time, so one that sends a byte now and then would hold it for ever, and it does not hand its
/// sockets out: they are known by their own end.
void CutConnections(int port) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    int fd = -1;
    sockaddr_storage own = {};
    socklen_t size = sizeof(own);
    if (absl::SimpleAtoi(entry.path().filename().string(), &fd) &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0 && PortOf(own) == port) {
      shutdown(fd, SHUT_RDWR);
    }
  }
}

}  // namespace

class HttpEndpoint::Impl {
 public:
  std::unique_ptr<httplib::Server> server;
  std::thread thread;
  std::promise<void> ended;
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
  http->impl_->thread = std::thread([&server, &ended = http->impl_->ended] {
    server.listen_after_bind();
    ended.set_value();
  });
  // stop() does nothing before the loop runs, so the destructor may not come earlier.
  while (!server.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return http;
}

HttpEndpoint::~HttpEndpoint() {
  if (!impl_->thread.joinable()) return;
  impl_->server->stop();
  const std::future<void> ended = impl_->ended.get_future();
  while (ended.wait_for(kPatience) != std::future_status::ready) CutConnections(port_);
  impl_->thread.join();
}

}  // namespace ziggurat

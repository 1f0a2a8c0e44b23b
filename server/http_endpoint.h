// The HTTP port: metrics for Prometheus, two probes for Kubernetes, and the page.
#pragma once

#include <atomic>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/metrics.h"
#include "server/config.h"
#include "server/page/page_data.h"
#include "server/readiness.h"
#include "server/security/port_security.h"

namespace ziggurat {

/// Serves on threads of its own from Start until destruction:
///   GET /metrics   Prometheus text format
///   GET /healthz   200 "ok" while the process lives
///   GET /readyz    200 "ok" while serving; 503 "loading" or "draining"
///   GET /, /api/   the page and what it shows (docs/page.md), where there is `page`
///   anything else  404; other methods 405, and no body is read
class HttpEndpoint {
 public:
  /// Protected as `security` has it. `metrics`, and `page` unless it is null, must outlive the
  /// endpoint. UNAVAILABLE where the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<HttpEndpoint>> Start(
      const Endpoint& endpoint, std::shared_ptr<const PortSecurity> security, Metrics* metrics,
      PageData* page);
  /// Connections have half a second to end by themselves.
  ~HttpEndpoint();

  int port() const { return port_; }
  /// Any thread.
  void SetReadiness(Readiness readiness) { readiness_ = readiness; }

 private:
  class Impl;
  HttpEndpoint() = default;

  std::atomic<Readiness> readiness_ = Readiness::kLoading;
  int port_ = 0;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ziggurat

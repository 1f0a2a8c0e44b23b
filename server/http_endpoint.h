// The HTTP port: metrics for Prometheus and two probes for Kubernetes.
#pragma once

#include <atomic>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/metrics.h"
#include "server/config.h"

namespace ziggurat {

/// Where the daemon stands; what /readyz answers.
enum class Readiness : int { kLoading, kServing, kDraining };

/// Serves on threads of its own from Start until destruction:
///   GET /metrics   Prometheus text format
///   GET /healthz   200 "ok" while the process lives
///   GET /readyz    200 "ok" while serving; 503 "loading" or "draining"
///   anything else  404
class HttpEndpoint {
 public:
  /// `metrics` must outlive the endpoint. UNAVAILABLE where the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<HttpEndpoint>> Start(const Endpoint& endpoint,
                                                             Metrics* metrics);
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

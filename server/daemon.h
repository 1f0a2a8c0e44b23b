// The daemon: engine, delivery, gRPC and HTTP, from the first answer to the last.
#pragma once

#include <atomic>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/server.h"
#include "model/model_runner.h"
#include "scheduler/engine.h"
#include "scheduler/metrics.h"
#include "server/config.h"
#include "server/delivery.h"
#include "server/generate_request.h"
#include "server/http_endpoint.h"
#include "server/security/port_security.h"
#include "server/service.h"

namespace ziggurat {

/// Order of events: Create (the HTTP port answers, /readyz says loading), Serve (gRPC answers,
/// ready), Drain (no new requests, those that run are finished), destruction.
class Daemon {
 public:
  /// `config` must be valid. UNAVAILABLE where the HTTP address cannot be bound; errors about files
  /// of certificates and tokens name flag, file and reason.
  static absl::StatusOr<std::unique_ptr<Daemon>> Create(const ServeConfig& config);
  /// Drains without patience where Drain was not called.
  ~Daemon();

  /// Starts the engine on `runner` and answers gRPC calls. Once. INVALID_ARGUMENT where the limits
  /// of the configuration do not suit the model, UNAVAILABLE where the address cannot be bound.
  absl::Status Serve(std::unique_ptr<ModelRunner> runner, ServedModel model);

  /// Says NOT_SERVING, refuses new requests, lets those there finish until `timeout` has passed,
  /// ends what is left with UNAVAILABLE, and stops listening. Returns when no call is left.
  /// Any thread; once.
  void Drain(absl::Duration timeout);
  /// Lets a Drain that is under way end at once. Any thread.
  void HurryDrain();

  /// Of addresses given with port 0, the ports found. grpc_port after Serve.
  int grpc_port() const { return grpc_port_; }
  int http_port() const { return http_->port(); }
  /// After Serve.
  Engine& engine() { return *engine_; }

 private:
  explicit Daemon(const ServeConfig& config) : config_(config) {}
  absl::StatusOr<std::shared_ptr<const Policy>> DefaultPolicy() const;
  RequestRules MakeRules(const ModelShape& shape,
                         std::shared_ptr<const Policy> default_policy) const;
  absl::Status StartGrpc();
  /// Until the answers of Generate calls have been read, or `deadline`, and, without hurry, no more
  /// calls come; not forever.
  void WaitForStreams(absl::Time deadline);

  const ServeConfig config_;
  Metrics metrics_;
  std::unique_ptr<PageData> page_;  ///< null where the configuration wants none
  std::shared_ptr<const PortSecurity> security_;
  std::unique_ptr<HttpEndpoint> http_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Delivery> delivery_;
  std::unique_ptr<ZigguratService> service_;
  std::unique_ptr<grpc::Server> server_;
  int grpc_port_ = 0;
  bool has_drained_ = false;
  std::atomic<bool> is_hurried_ = false;
};

}  // namespace ziggurat

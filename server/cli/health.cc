// `ziggurat health`: the probe of containers and scripts.
#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "server/cli/call_status.h"
#include "server/cli/client.h"
#include "server/cli/command.h"
#include "server/cli/failure.h"
#include "server/cli/validators.h"

namespace ziggurat {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

constexpr char kExamples[] =
    R"(Exit code 0: it serves; 1: it does not, or cannot be asked in time; 2: asked wrongly.

Examples:
  ziggurat health
  ziggurat health --server 127.0.0.1:50051 --service ziggurat.v1.Ziggurat
  ziggurat health --server daemon:50051 --tls-ca ca.crt --tls-cert tls.crt --tls-key tls.key)";

struct HealthFlags {
  ServerFlags server;
  std::string service;
  double timeout_seconds = 1;
};

int Fail(const auto& what, int exit_code = kExitFailure) {
  return SayFailure("health", what, exit_code);
}

int Probe(const HealthFlags& flags) {
  const absl::StatusOr<ServerAccess> access = ReadServerAccess(flags.server);
  if (!access.ok()) return Fail(access.status());
  const std::unique_ptr<Health::Stub> stub = Health::NewStub(OpenChannel(flags.server, *access));
  grpc::ClientContext context;
  SetDeadline(context, absl::Seconds(flags.timeout_seconds));
  HealthCheckRequest request;
  request.set_service(flags.service);
  HealthCheckResponse response;
  const grpc::Status status = stub->Check(&context, request, &response);
  if (!status.ok()) return Fail(DescribeError(status, flags.server));
  std::printf("%s\n", HealthCheckResponse::ServingStatus_Name(response.status()).c_str());
  return response.status() == HealthCheckResponse::SERVING ? kExitOk : kExitFailure;
}

}  // namespace

Command AddHealth(CLI::App& app) {
  CLI::App* health = app.add_subcommand("health", "Ask whether a daemon serves: a gRPC probe");
  auto flags = std::make_shared<HealthFlags>();
  AddServerFlags(*health, flags->server);
  health
      ->add_option("--service", flags->service,
                   "Which gRPC service (default: the daemon as a whole)")
      ->check(Utf8Text())
      ->type_name("NAME");
  health->add_option("--timeout", flags->timeout_seconds, "Seconds that it has to answer")
      ->type_name("SECONDS")
      ->check(NumberBetween(0.01, 3600))
      ->capture_default_str();
  health->footer(kExamples);
  return {health, [flags] { return Probe(*flags); }};
}

}  // namespace ziggurat

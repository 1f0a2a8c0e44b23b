// `ziggurat health`: the probe of containers and scripts.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/create_channel.h"
#include "server/cli/client.h"
#include "server/cli/command.h"

namespace ziggurat {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

constexpr char kExamples[] =
    R"(Exit code 0: it serves; 1: it does not, or does not answer in time; 2: asked wrongly.

Examples:
  ziggurat health
  ziggurat health --address 127.0.0.1:50051 --service ziggurat.v1.Ziggurat
  ziggurat health --address daemon:50051 --tls-ca ca.crt --tls-cert tls.crt --tls-key tls.key)";

struct HealthFlags {
  std::string address = kDefaultServer;
  std::string service;
  double timeout_seconds = 1;
  std::string tls_ca;
  std::string tls_cert;
  std::string tls_key;
  std::string tls_server_name;
};

int Fail(const std::string& what, int exit_code = kExitFailure) {
  std::fprintf(stderr, "ziggurat health: %s\n", what.c_str());
  return exit_code;
}

absl::StatusOr<std::string> ReadPem(const char* flag, const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file || text.empty()) {
    return absl::NotFoundError(absl::StrCat(flag, ": cannot read ", path));
  }
  return text;
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> Credentials(const HealthFlags& flags) {
  if (flags.tls_ca.empty()) return grpc::InsecureChannelCredentials();
  absl::StatusOr<std::string> ca = ReadPem("--tls-ca", flags.tls_ca);
  absl::StatusOr<std::string> cert = ReadPem("--tls-cert", flags.tls_cert);
  absl::StatusOr<std::string> key = ReadPem("--tls-key", flags.tls_key);
  for (const auto* pem : {&ca, &cert, &key}) {
    if (!pem->ok()) return pem->status();
  }
  return grpc::SslCredentials({*ca, *key, *cert});
}

int Probe(const HealthFlags& flags) {
  const auto credentials = Credentials(flags);
  if (!credentials.ok()) return Fail(std::string(credentials.status().message()), kExitUsage);
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // what is probed is near
  if (!flags.tls_server_name.empty()) {
    arguments.SetSslTargetNameOverride(flags.tls_server_name);
  }
  const std::unique_ptr<Health::Stub> stub =
      Health::NewStub(grpc::CreateCustomChannel(flags.address, *credentials, arguments));
  grpc::ClientContext context;
  context.set_deadline(
      std::chrono::system_clock::now() +
      std::chrono::milliseconds(static_cast<int64_t>(1000 * flags.timeout_seconds)));
  HealthCheckRequest request;
  request.set_service(flags.service);
  HealthCheckResponse response;
  const grpc::Status status = stub->Check(&context, request, &response);
  if (!status.ok()) return Fail(DescribeError(status, flags.address));
  std::printf("%s\n", HealthCheckResponse::ServingStatus_Name(response.status()).c_str());
  return response.status() == HealthCheckResponse::SERVING ? kExitOk : kExitFailure;
}

}  // namespace

Command AddHealth(CLI::App& app) {
  CLI::App* health = app.add_subcommand("health", "Ask whether a daemon serves: a gRPC probe");
  auto flags = std::make_shared<HealthFlags>();
  health->add_option("--address", flags->address, "The daemon")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  health
      ->add_option("--service", flags->service, "Which gRPC service; empty: the daemon as a whole")
      ->type_name("NAME");
  health->add_option("--timeout", flags->timeout_seconds, "Seconds that it has to answer")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.01, 3600.0))
      ->capture_default_str();
  CLI::Option* ca =
      health
          ->add_option("--tls-ca", flags->tls_ca,
                       "Speak TLS, with a server whose certificate one of this file has signed")
          ->type_name("FILE");
  CLI::Option* cert =
      health->add_option("--tls-cert", flags->tls_cert, "Certificate to show, where one is asked")
          ->type_name("FILE")
          ->needs(ca);
  CLI::Option* key = health->add_option("--tls-key", flags->tls_key, "Key of that certificate")
                         ->type_name("FILE")
                         ->needs(cert);
  cert->needs(key);
  health
      ->add_option("--tls-server-name", flags->tls_server_name,
                   "Name that the server's certificate must bear (default: the host)")
      ->type_name("NAME")
      ->needs(ca);
  health->footer(kExamples);
  return {health, [flags] { return Probe(*flags); }};
}

}  // namespace ziggurat

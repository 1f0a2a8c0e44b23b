// `ziggurat health`, the probe of containers, against real servers.
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <signal.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/e2e/testing.h"

namespace ziggurat::e2e {
namespace {

using testing::HasSubstr;

constexpr int kUnhealthy = 1;
constexpr int kUsage = 2;

CommandResult Probe(const std::string& address, const std::vector<std::string>& flags = {}) {
  std::vector<std::string> arguments = {"health", "--address", address, "--timeout", "5"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return RunZiggurat(arguments);
}

TEST(Health, SaysWhetherTheDaemonServes) {
  START_DAEMON(daemon, {});
  EXPECT_EQ(Probe(daemon.grpc_address()).exit_code, 0);
  const CommandResult named = Probe(daemon.grpc_address(), {"--service", "ziggurat.v1.Ziggurat"});
  EXPECT_EQ(named.exit_code, 0);
  EXPECT_EQ(named.out, "SERVING\n");
  const CommandResult unknown = Probe(daemon.grpc_address(), {"--service", "no.such.Service"});
  EXPECT_EQ(unknown.exit_code, kUnhealthy);
  EXPECT_THAT(unknown.err, HasSubstr("NOT_FOUND"));
}

TEST(Health, IsOneWhileTheDaemonDrainsAndWhenItIsGone) {
  START_DAEMON(daemon, {.flags = {"--drain-timeout", "60"}});
  std::atomic<bool> has_begun = false;
  std::atomic<bool> is_over = false;
  std::thread request([&] {
    Generate(daemon, TextRequest(" The old house", 4000), {.on_message = [&](const Generation&) {
               has_begun = true;
               return !is_over;
             }});
  });
  ASSERT_TRUE(PollUntil(absl::Seconds(30), [&] { return has_begun.load(); }));
  daemon.process().Signal(SIGTERM);
  CommandResult draining;
  EXPECT_TRUE(PollUntil(absl::Seconds(20), [&] {
    draining = Probe(daemon.grpc_address());
    return draining.exit_code == kUnhealthy;
  }));
  EXPECT_EQ(draining.out, "NOT_SERVING\n");
  is_over = true;
  request.join();
  ASSERT_EQ(daemon.process().Wait(absl::Seconds(60)), 0);
  const CommandResult gone = Probe(daemon.grpc_address());
  EXPECT_EQ(gone.exit_code, kUnhealthy);
  EXPECT_THAT(gone.err, HasSubstr("UNAVAILABLE"));
}

TEST(Health, RefusesFlagsThatMakeNoSense) {
  EXPECT_EQ(Probe("127.0.0.1:1", {"--tls-cert", "cert.pem"}).exit_code, kUsage);
  const CommandResult no_file = Probe("127.0.0.1:1", {"--tls-ca", "/no/such/file"});
  EXPECT_EQ(no_file.exit_code, kUsage);
  EXPECT_THAT(no_file.err, HasSubstr("--tls-ca: cannot read /no/such/file"));
}

/// A gRPC server with TLS that asks clients for a certificate, and the files that belong to it:
/// ca.crt, server.crt and .key for the name `daemon.test`, client.crt and .key.
class TlsServer {
 public:
  TlsServer() {
    const std::string dir = folder_.path().string();
    // Curves, since RSA keys take seconds to make.
    const std::string script = absl::StrCat(
        "cd ", dir, " && key() { openssl ecparam -genkey -name prime256v1 -noout -out $1.key; } &&",
        " key ca && openssl req -x509 -new -key ca.key -subj /CN=ca -days 1 -out ca.crt &&",
        " for name in server client; do key $name &&",
        " openssl req -new -key $name.key -subj /CN=$name -out $name.csr &&",
        " echo subjectAltName=DNS:daemon.test > $name.ext &&",
        " openssl x509 -req -in $name.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 1",
        " -extfile $name.ext -out $name.crt || exit 1; done");
    auto openssl = ChildProcess::Start({"/bin/sh", "-c", script});
    if (!openssl.ok() || (*openssl)->Wait(absl::Seconds(60)) != 0) return;
    grpc::SslServerCredentialsOptions options(
        GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    options.pem_root_certs = ReadFile(folder_ / "ca.crt");
    options.pem_key_cert_pairs = {
        {ReadFile(folder_ / "server.key"), ReadFile(folder_ / "server.crt")}};
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(options), &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
  }

  int port() const { return port_; }
  std::string file(const std::string& name) const { return (folder_ / name).string(); }

 private:
  TemporaryFolder folder_;
  v1::Ziggurat::Service service_;  ///< every call is unimplemented
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

TEST(Health, SpeaksTlsAndShowsACertificate) {
  const TlsServer server;
  ASSERT_GT(server.port(), 0) << "openssl or the server failed";
  const std::string address = absl::StrCat("127.0.0.1:", server.port());
  const std::vector<std::string> trust = {"--tls-ca", server.file("ca.crt")};
  const std::vector<std::string> name = {"--tls-server-name", "daemon.test"};
  const std::vector<std::string> shown = {"--tls-cert", server.file("client.crt"), "--tls-key",
                                          server.file("client.key")};
  const auto probe = [&](const std::vector<std::vector<std::string>>& parts) {
    std::vector<std::string> flags;
    for (const auto& part : parts) flags.insert(flags.end(), part.begin(), part.end());
    return Probe(address, flags);
  };
  const CommandResult good = probe({trust, name, shown});
  EXPECT_EQ(good.exit_code, 0) << good.err;
  EXPECT_EQ(probe({trust, name}).exit_code, kUnhealthy) << "without a certificate";
  EXPECT_EQ(probe({trust, shown}).exit_code, kUnhealthy) << "another name than the certificate's";
  EXPECT_EQ(probe({}).exit_code, kUnhealthy) << "in plain text";
}

}  // namespace
}  // namespace ziggurat::e2e

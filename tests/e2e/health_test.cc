// `ziggurat health`, the probe of containers, against real servers.
#include <signal.h>

#include <thread>

#include "tests/e2e/secure_client.h"
#include "tests/e2e/testing.h"

namespace ziggurat::e2e {
namespace {

using testing::HasSubstr;

constexpr int kUnhealthy = 1;
constexpr int kUsage = 2;

CommandResult Probe(const std::string& address, const std::vector<std::string>& flags = {}) {
  std::vector<std::string> arguments = {"health", "--server", address, "--timeout", "5"};
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
    Generate(daemon, TextRequest(" The old house", 4000, AtEos::kGoOn),
             {.on_message = [&](const Generation&) {
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
  EXPECT_EQ(no_file.exit_code, kUnhealthy) << "as every command says of a file";
  EXPECT_THAT(no_file.err, HasSubstr("--tls-ca: cannot read /no/such/file"));
}

TEST(Health, SpeaksTlsShowsACertificateAndNeedsNoToken) {
  const CertificateAuthority ours("ours");
  const CertificateAndKey client = ours.Issue("client");
  SecretFolder::Files files =
      SecretFolder::Tls(ours.Issue("server", {.alternative_names = "DNS:daemon.test"}), ours);
  files.insert({{"client.crt", client.certificate},
                {"client.key", client.key},
                {"tokens", "nobody-tells-the-probe"}});
  const SecretFolder secret(files);
  std::vector<std::string> flags = secret.Flags(true);
  flags.insert(flags.end(), {"--auth-token-file", secret.file("tokens")});
  START_DAEMON(daemon, {.flags = flags});
  const std::vector<std::string> trust = {"--tls-ca", secret.file("ca.crt")};
  const std::vector<std::string> name = {"--tls-server-name", "daemon.test"};
  const std::vector<std::string> shown = {"--tls-cert", secret.file("client.crt"), "--tls-key",
                                          secret.file("client.key")};
  const auto probe = [&](const std::vector<std::vector<std::string>>& parts) {
    std::vector<std::string> all;
    for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
    return Probe(daemon.grpc_address(), all);
  };
  const CommandResult good = probe({trust, name, shown});
  EXPECT_EQ(good.exit_code, 0) << good.err;
  EXPECT_EQ(probe({trust, name}).exit_code, kUnhealthy) << "without a certificate";
  EXPECT_EQ(probe({trust, shown}).exit_code, kUnhealthy) << "another name than the certificate's";
  EXPECT_EQ(probe({}).exit_code, kUnhealthy) << "in plain text";
}

}  // namespace
}  // namespace ziggurat::e2e

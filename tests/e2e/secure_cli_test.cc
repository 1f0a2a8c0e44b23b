// The commands that talk to a daemon, where it wants TLS, a certificate and a token.
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "tests/e2e/secure_client.h"
#include "tests/e2e/testing.h"

namespace ziggurat::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr char kToken[] = "a-token-0123456789";
using Words = std::vector<std::string>;

Words Joined(const std::vector<Words>& parts) {
  Words all;
  for (const Words& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

/// A daemon that asks for everything, and the flags that give it.
class SecureCli : public testing::Test {
 protected:
  void SetUp() override {
    const Words more = {"--auth-token-file", files_.file("tokens")};
    auto daemon = Daemon::Start({.flags = Joined({files_.Flags(true), more})});
    ASSERT_TRUE(daemon.ok()) << daemon.status().ToString();
    daemon_ = *std::move(daemon);
  }

  std::string file(const std::string& name) const { return files_.file(name); }
  Words trust() const { return {"--tls-ca", file("ca.crt")}; }
  Words shown(const std::string& name = "client") const {
    return {"--tls-cert", file(name + ".crt"), "--tls-key", file(name + ".key")};
  }
  Words token() const { return {"--token-file", file("tokens")}; }
  CommandResult Generate(const std::vector<Words>& flags) const {
    return RunZiggurat(
        Joined({{"generate", "x", "--max-tokens", "2", "--server", daemon_->grpc_address()},
                Joined(flags)}));
  }
  void ExpectFailure(const std::vector<Words>& flags, const std::string& says) const {
    const CommandResult result = Generate(flags);
    EXPECT_EQ(result.exit_code, 1) << says;
    EXPECT_THAT(result.err, HasSubstr(says));
    EXPECT_THAT(result.err, Not(HasSubstr(kToken)));
  }

  static SecretFolder::Files MakeFiles() {
    const CertificateAuthority ours("ours");
    const CertificateAuthority strangers("strangers");
    SecretFolder::Files files = SecretFolder::Tls(
        ours.Issue("daemon", {.alternative_names = "IP:127.0.0.1,DNS:daemon.test"}), ours);
    for (const auto& [name, pair] :
         {std::pair{"client", ours.Issue("client")},
          std::pair{"stranger", strangers.Issue("stranger")},
          std::pair{"late", ours.Issue("late", {.ends = -absl::Seconds(10)})}}) {
      files[absl::StrCat(name, ".crt")] = pair.certificate;
      files[absl::StrCat(name, ".key")] = pair.key;
    }
    files["strangers.crt"] = strangers.certificate();
    files["tokens"] = absl::StrCat("# mine\n", kToken, "\n");
    files["wrong"] = "another-token-0123456789\n";
    files["task.jsonl"] = R"({"task": "t", "length": 1, "prompt": "x", "answer": "y"})";
    return files;
  }

  const SecretFolder files_ = SecretFolder(MakeFiles());
  std::unique_ptr<Daemon> daemon_;
};

TEST_F(SecureCli, EveryCommandTakesTheSameFlags) {
  const Words flags = Joined({trust(), shown(), token()});
  const TemporaryFolder out;
  const std::pair<const char*, Words> commands[] = {
      {"--server", {"generate", "x", "--max-tokens", "2"}},
      {"--server", {"cache"}},
      {"--server", {"eval", "--tasks", file("task.jsonl"), "--out", out.path().string()}},
      {"--server", {"bench", "serve", "--clients", "1", "--requests", "2"}},
      {"--address", {"health"}}};
  for (const auto& [address, command] : commands) {
    const Words with_address = Joined({command, {address, daemon_->grpc_address()}});
    const CommandResult good = RunZiggurat(Joined({with_address, flags}));
    EXPECT_EQ(good.exit_code, 0) << command[0] << ": " << good.err;
    const CommandResult plain = RunZiggurat(with_address);
    EXPECT_EQ(plain.exit_code, 1) << command[0];
    EXPECT_THAT(plain.err, HasSubstr("--tls-ca")) << command[0];
  }
  EXPECT_THAT(ReadFile(out / "report.md"),
              AllOf(HasSubstr("--token-file " + file("tokens")), Not(HasSubstr(kToken))));
}

TEST_F(SecureCli, SaysWhatIsMissingOrWrong) {
  ExpectFailure({}, "If it speaks TLS, --tls-ca FILE does too");
  ExpectFailure({trust()}, "It may ask for a client certificate: --tls-cert");
  ExpectFailure({trust(), shown()}, "UNAUTHENTICATED: a valid token is needed");
  ExpectFailure({trust(), shown(), {"--token-file", file("wrong")}},
                "UNAUTHENTICATED: a valid token is needed");
  ExpectFailure({{"--tls-ca", file("strangers.crt")}, shown(), token()},
                "no authority in " + file("strangers.crt") + " (--tls-ca) has signed it");
  ExpectFailure({trust(), shown("stranger"), token()}, "may not accept the client certificate");
  ExpectFailure({trust(), shown("late"), token()}, "--tls-cert " + file("late.crt"));
  ExpectFailure({trust(), shown("late"), token()}, "CN=late has expired");
  ExpectFailure({trust(), shown(), token(), {"--tls-server-name", "else.test"}},
                "certificate is for another name: --tls-server-name");
  ExpectFailure({{"--tls-ca", "/no/such/ca"}}, "--tls-ca: cannot read /no/such/ca: No such file");
  ExpectFailure({{"--tls-ca", file("tokens")}}, "holds no certificate in PEM");
  ExpectFailure({trust(), {"--token-file", "/no/such"}}, "--token-file: cannot read /no/such");
  EXPECT_EQ(Generate({{"--tls-cert", "x"}}).exit_code, 2);
  EXPECT_EQ(Generate({trust(), shown(), token(), {"--tls-server-name", "daemon.test"}}).exit_code,
            0);
}

TEST_F(SecureCli, TakesATokenFromTheEnvironment) {
  setenv("ZIGGURAT_TOKEN", kToken, 1);
  EXPECT_EQ(Generate({trust(), shown()}).exit_code, 0);
  ExpectFailure({trust(), shown(), {"--token-file", file("wrong")}}, "UNAUTHENTICATED");
  setenv("ZIGGURAT_TOKEN", "no token", 1);
  ExpectFailure({trust(), shown()}, "the token in $ZIGGURAT_TOKEN has characters other than");
  unsetenv("ZIGGURAT_TOKEN");
  ExpectFailure({trust(), shown()}, "UNAUTHENTICATED");
}

TEST_F(SecureCli, TlsToAPlainDaemonIsNoSilence) {
  START_DAEMON(plain, {});
  const CommandResult result =
      RunZiggurat(Joined({{"generate", "x", "--server", plain.grpc_address()}, trust()}));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("The daemon speaks plain text there"));
}

TEST_F(SecureCli, DoesNotSendATokenToAnotherMachineInPlainText) {
  const Words command = {"generate", "x", "--server", "192.0.2.1:50051", "--deadline", "0.2"};
  const CommandResult refused = RunZiggurat(Joined({command, token()}));
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("in plain text"));
  // Told to, it tries.
  const CommandResult tried = RunZiggurat(Joined({command, token(), {"--allow-plain-text"}}));
  EXPECT_THAT(tried.err, Not(HasSubstr("in plain text, to be read")));
}

}  // namespace
}  // namespace ziggurat::e2e

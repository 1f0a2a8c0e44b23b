// gRPC over TLS: who is let in, and certificates that change while the daemon serves.
#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/e2e/secure_client.h"
#include "tests/e2e/testing.h"

namespace ziggurat::e2e {
namespace {

using grpc::StatusCode;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// Changes are seen within a second or two; the rest is for a busy machine.
constexpr absl::Duration kReloadTimeout = absl::Seconds(30);

const CertificateAuthority& Ours() {
  static const CertificateAuthority authority("ours");
  return authority;
}

const CertificateAuthority& Strangers() {
  static const CertificateAuthority authority("strangers");
  return authority;
}

Daemon::Options With(const SecretFolder& secret, bool mutual = false) {
  return {.flags = secret.Flags(mutual)};
}

/// Name in the certificate that a new connection is shown; empty where there is no answer.
std::string ShownTo(const Daemon& daemon, const std::optional<CertificateAndKey>& client = {}) {
  const Answer answer = Ask(TlsChannel(daemon, Ours(), client));
  return answer.status.ok() ? answer.server : "";
}

bool WaitForLog(const Daemon& daemon, const std::string& text) {
  return PollUntil(kReloadTimeout, [&] { return daemon.log().find(text) != std::string::npos; });
}

TEST(Tls, ServesWhoTrustsItsAuthorityAndNobodyElse) {
  const SecretFolder secret(SecretFolder::Tls(Ours().Issue("first"), Ours()));
  START_DAEMON(daemon, With(secret));
  const Answer good = Ask(TlsChannel(daemon, Ours()));
  EXPECT_TRUE(good.status.ok()) << good.status.error_message();
  EXPECT_EQ(good.server, "first");
  const auto channel = TlsChannel(daemon, Ours());
  EXPECT_TRUE(
      Generate(*v1::Ziggurat::NewStub(channel), TextRequest(" The old house", 5, AtEos::kGoOn))
          .ok());
  const Answer other = Ask(TlsChannel(daemon, Strangers()));
  EXPECT_EQ(other.status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_THAT(other.status.error_message(), HasSubstr("certificate verify failed"));
  EXPECT_EQ(Ask(daemon.NewChannel()).status.error_code(), StatusCode::UNAVAILABLE) << "plain text";
  EXPECT_THAT(daemon.log(), HasSubstr("grpc: Handshake failed"));
  EXPECT_THAT(daemon.LoggedErrors(), testing::IsEmpty()) << "a client's mistake is none of ours";
}

TEST(Tls, AClientNoticesACertificateThatHasExpired) {
  const absl::Duration life = absl::Seconds(12);
  const SecretFolder secret(SecretFolder::Tls(Ours().Issue("brief", {.ends = life}), Ours()));
  const absl::Time end = absl::Now() + life;
  START_DAEMON(daemon, With(secret));
  ASSERT_LT(absl::Now(), end) << "the machine is too slow for this test";
  EXPECT_EQ(ShownTo(daemon), "brief");
  absl::SleepFor(end - absl::Now() + absl::Seconds(1));
  const Answer late = Ask(TlsChannel(daemon, Ours()));
  EXPECT_EQ(late.status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_THAT(late.status.error_message(), HasSubstr("certificate verify failed"));
}

TEST(Tls, MutualMeansACertificateOfTheRightAuthorityInItsTime) {
  const SecretFolder secret(SecretFolder::Tls(Ours().Issue("daemon"), Ours()));
  START_DAEMON(daemon, With(secret, true));
  const auto status = [&](const std::optional<CertificateAndKey>& shown) {
    return Ask(TlsChannel(daemon, Ours(), shown)).status.error_code();
  };
  EXPECT_EQ(status(Ours().Issue("client")), StatusCode::OK);
  EXPECT_EQ(status({}), StatusCode::UNAVAILABLE) << "no certificate";
  EXPECT_EQ(status(Strangers().Issue("client")), StatusCode::UNAVAILABLE) << "of another authority";
  EXPECT_EQ(status(Ours().Issue("late", {.ends = -absl::Seconds(10)})), StatusCode::UNAVAILABLE);
  EXPECT_EQ(status(Ours().Issue("client")), StatusCode::OK);
}

TEST(Tls, WithoutAClientAuthorityAnyClientMayCome) {
  const SecretFolder secret(SecretFolder::Tls(Ours().Issue("daemon"), Ours()));
  START_DAEMON(daemon, With(secret));
  EXPECT_TRUE(Ask(TlsChannel(daemon, Ours())).status.ok());
  EXPECT_TRUE(Ask(TlsChannel(daemon, Ours(), Strangers().Issue("client"))).status.ok());
}

/// Requests on connections of their own, until told to end; counts what came of them.
class Load {
 public:
  Load(const Daemon& daemon, int threads) {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this, &daemon] {
        while (!is_over_) {
          const auto stub = v1::Ziggurat::NewStub(TlsChannel(daemon, Ours()));
          const Generation one = Generate(*stub, TextRequest(" The old house", 3, AtEos::kGoOn));
          ++(one.ok() ? done_ : failed_);
          if (!one.ok()) std::fprintf(stderr, "failed: %s\n", one.Describe().c_str());
        }
      });
    }
  }
  ~Load() { End(); }

  void End() {
    is_over_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  int done() const { return done_; }
  int failed() const { return failed_; }

 private:
  std::atomic<bool> is_over_ = false;
  std::atomic<int> done_ = 0;
  std::atomic<int> failed_ = 0;
  std::vector<std::thread> threads_;
};

TEST(Tls, CertificatesChangeUnderLoadWithoutAFailedRequest) {
  SecretFolder secret(SecretFolder::Tls(Ours().Issue("round 0"), Ours()));
  START_DAEMON(daemon, With(secret));
  // Open before the first change and still open after the last.
  const auto steady = TlsChannel(daemon, Ours());
  ASSERT_TRUE(Ask(steady).status.ok());
  Load load(daemon, 3);
  int done_before = 0;
  for (int round = 1; round <= 4; ++round) {
    const std::string name = absl::StrCat("round ", round);
    secret.Put(SecretFolder::Tls(Ours().Issue(name), Ours()));
    EXPECT_TRUE(PollUntil(kReloadTimeout, [&] { return ShownTo(daemon) == name; })) << name;
    EXPECT_TRUE(Ask(steady).status.ok()) << name;
    EXPECT_GT(load.done(), done_before) << name;
    done_before = load.done();
  }
  load.End();
  EXPECT_EQ(load.failed(), 0) << "of " << load.done();
  EXPECT_EQ(Ask(steady).server, "round 0") << "the connection was not one connection";
}

TEST(Tls, ABrokenNewPairLeavesTheOldOneInForce) {
  const CertificateAndKey second = Ours().Issue("second");
  SecretFolder secret(SecretFolder::Tls(Ours().Issue("first"), Ours()));
  START_DAEMON(daemon, With(secret));
  struct Case {
    CertificateAndKey pair;
    std::string logged;
  };
  const std::string half = second.certificate.substr(0, second.certificate.size() / 2);
  const Case cases[] = {
      {{second.certificate, Ours().Issue("other").key}, "is not the key of the certificate in"},
      {{half, second.key}, "--tls-cert " + secret.file("tls.crt") + ": holds"},
      {{second.certificate, ""}, "--tls-key " + secret.file("tls.key") + ": is empty"},
      {Ours().Issue("late", {.ends = -absl::Seconds(10)}), "CN=late has expired"}};
  for (const Case& broken : cases) {
    secret.Put(SecretFolder::Tls(broken.pair, Ours()));
    EXPECT_TRUE(WaitForLog(daemon, broken.logged)) << broken.logged << "\n" << daemon.log();
    EXPECT_EQ(ShownTo(daemon), "first") << broken.logged;
  }
  EXPECT_THAT(daemon.log(), HasSubstr("what was read before stays in force"));
  std::filesystem::remove(secret.file("tls.key"));
  EXPECT_TRUE(WaitForLog(daemon, "--tls-key: cannot read")) << daemon.log();
  EXPECT_EQ(ShownTo(daemon), "first");
  secret.Put(SecretFolder::Tls(second, Ours()));
  EXPECT_TRUE(PollUntil(kReloadTimeout, [&] { return ShownTo(daemon) == "second"; }))
      << daemon.log();
}

TEST(Tls, AuthoritiesOfClientsChangeToo) {
  const CertificateAndKey ours = Ours().Issue("client");
  const CertificateAndKey theirs = Strangers().Issue("client");
  const CertificateAndKey pair = Ours().Issue("daemon");
  SecretFolder secret(SecretFolder::Tls(pair, Ours()));
  START_DAEMON(daemon, With(secret, true));
  EXPECT_EQ(ShownTo(daemon, ours), "daemon");
  EXPECT_EQ(ShownTo(daemon, theirs), "");
  secret.Put(SecretFolder::Tls(pair, Strangers()));
  EXPECT_TRUE(PollUntil(kReloadTimeout, [&] { return ShownTo(daemon, theirs) == "daemon"; }))
      << daemon.log();
  EXPECT_EQ(ShownTo(daemon, ours), "");
}

TEST(Tls, AStartWithAFileThatIsNoGoodSaysWhichAndWhy) {
  const CertificateAndKey pair = Ours().Issue("daemon");
  const CertificateAndKey late = Ours().Issue("late", {.ends = -absl::Seconds(10)});
  const SecretFolder secret(SecretFolder::Files{{"tls.crt", pair.certificate},
                                                {"tls.key", pair.key},
                                                {"other.key", late.key},
                                                {"late.crt", late.certificate}});
  struct Case {
    std::string certificate;
    std::string key;
    std::vector<std::string> said;
  };
  const Case cases[] = {
      {"none.crt", "tls.key", {"--tls-cert: cannot read", "none.crt: No such file"}},
      {"tls.crt", "none.key", {"--tls-key: cannot read", "none.key: No such file"}},
      {"tls.crt", "other.key", {"--tls-key", "is not the key of the certificate in"}},
      {"late.crt", "other.key", {"--tls-cert", "CN=late has expired"}},
      {"tls.key", "tls.key", {"--tls-cert", "holds no certificate"}}};
  for (const Case& wrong : cases) {
    const CommandResult result = RunZiggurat(
        {"serve", "--model", NeedleLlama(), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
         "--tls-cert", secret.file(wrong.certificate), "--tls-key", secret.file(wrong.key)});
    EXPECT_EQ(result.exit_code, 1) << result.err;
    for (const std::string& text : wrong.said) EXPECT_THAT(result.err, HasSubstr(text));
    EXPECT_THAT(result.err, Not(HasSubstr("PRIVATE KEY")));
  }
}

TEST(PlainText, IsRefusedOnAddressesThatOthersReach) {
  for (const auto& [listen, http, flag] :
       {std::tuple{"0.0.0.0:0", "127.0.0.1:0", "--listen: 0.0.0.0"},
        std::tuple{"127.0.0.1:0", "[::]:0", "--http: ::"}}) {
    const CommandResult result =
        RunZiggurat({"serve", "--model", NeedleLlama(), "--listen", listen, "--http", http});
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, AllOf(HasSubstr(flag), HasSubstr("--allow-plain-text")));
  }
}

TEST(PlainText, IsThereOnLoopbackAndWhereAFlagAllowsIt) {
  START_DAEMON(local, {.listen = "localhost:0", .http = "localhost:0"});
  EXPECT_TRUE(Ask(local.NewChannel()).status.ok());
  START_DAEMON(everywhere,
               {.listen = "0.0.0.0:0", .http = "0.0.0.0:0", .flags = {"--allow-plain-text"}});
  EXPECT_TRUE(Ask(everywhere.NewChannel()).status.ok());
  EXPECT_EQ(everywhere.HttpGet("/healthz").first, 200);
  EXPECT_THAT(everywhere.log(), HasSubstr("as --allow-plain-text says"));
  EXPECT_THAT(local.log(), Not(HasSubstr("--allow-plain-text")));
}

TEST(PlainText, NeedsNoPermissionWhereThereIsTls) {
  const SecretFolder secret(SecretFolder::Tls(Ours().Issue("daemon"), Ours()));
  START_DAEMON(daemon, {.listen = "0.0.0.0:0", .http = "0.0.0.0:0", .flags = secret.Flags()});
  EXPECT_EQ(ShownTo(daemon), "daemon");
}

}  // namespace
}  // namespace ziggurat::e2e

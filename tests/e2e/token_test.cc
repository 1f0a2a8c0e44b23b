// Bearer tokens on the gRPC port.
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "httplib.h"
#include "tests/e2e/secure_client.h"
#include "tests/e2e/testing.h"
#include "tests/support/raw_calls.h"

namespace ziggurat::e2e {
namespace {

using grpc::StatusCode;
using testing::HasSubstr;
using testing::Not;

constexpr char kOld[] = "old-token-0123456789";
constexpr char kNew[] = "new-token-0123456789";
constexpr char kWrong[] = "wrong-token-0123456789";
constexpr absl::Duration kReloadTimeout = absl::Seconds(30);

std::string Bearer(const std::string& token) { return "Bearer " + token; }

Daemon::Options With(const SecretFolder& secret) {
  return {.flags = {"--auth-token-file", secret.file("tokens"), "--log-level", "trace"}};
}

TEST(Tokens, LetInWhoHasOneAndNobodyElse) {
  const SecretFolder secret(
      {{"tokens", absl::StrCat("# the gateway's\n", kOld, "\n", kNew, "\n")}});
  START_DAEMON(daemon, With(secret));
  const auto ask = [&](const std::string& authorization) {
    return Ask(daemon.channel(), authorization).status;
  };
  EXPECT_TRUE(ask(Bearer(kOld)).ok());
  EXPECT_TRUE(ask(Bearer(kNew)).ok());
  EXPECT_TRUE(ask(absl::StrCat("bearer ", kNew)).ok()) << "the scheme's case does not matter";
  const std::string refusal = ask("").error_message();
  for (const std::string& wrong :
       {std::string(), Bearer(kWrong), Bearer(std::string(kOld).substr(1)), Bearer(""),
        std::string(kOld), absl::StrCat("Basic ", kOld), Bearer("# the gateway's")}) {
    const grpc::Status status = ask(wrong);
    EXPECT_EQ(status.error_code(), StatusCode::UNAUTHENTICATED) << wrong;
    EXPECT_EQ(status.error_message(), refusal) << "tells one mistake from another: " << wrong;
  }
}

TEST(Tokens, OfWhichOneIsRightAmongSeveralHeadersAreNotEnough) {
  const SecretFolder secret(SecretFolder::Files{{"tokens", kOld}});
  START_DAEMON(daemon, With(secret));
  grpc::ClientContext context;
  context.AddMetadata("authorization", Bearer(kWrong));
  context.AddMetadata("authorization", Bearer(kOld));
  v1::GetModelResponse model;
  EXPECT_EQ(daemon.stub().GetModel(&context, {}, &model).error_code(), StatusCode::UNAUTHENTICATED);
}

TEST(Tokens, AreAskedForByEveryMethodButHealth) {
  const SecretFolder secret(SecretFolder::Files{{"tokens", kOld}});
  START_DAEMON(daemon, With(secret));
  int methods = 0;
  const auto* service =
      google::protobuf::DescriptorPool::generated_pool()->FindServiceByName("ziggurat.v1.Ziggurat");
  ASSERT_NE(service, nullptr);
  std::vector<std::string> all = {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                                  "/no.such.Service/Method", "/grpc.health.v1.Healthy/Check"};
  for (int i = 0; i < service->method_count(); ++i) {
    all.push_back(absl::StrCat("/", service->full_name(), "/", service->method(i)->name()));
  }
  for (const std::string& method : all) {
    const RawAnswer answer = CallFromBytes(daemon.channel(), method, "");
    EXPECT_EQ(answer.status.error_code(), StatusCode::UNAUTHENTICATED) << method;
    EXPECT_EQ(answer.bytes, "") << method;
    ++methods;
  }
  EXPECT_GE(methods, 8);
  EXPECT_EQ(CheckHealth(daemon.channel(), ""), "SERVING");
  EXPECT_EQ(CheckHealth(daemon.channel(), "ziggurat.v1.Ziggurat"), "SERVING");
  EXPECT_EQ(Ask(daemon.channel(), Bearer(kOld)).status.error_code(), StatusCode::OK);
}

TEST(Tokens, AreNeverLoggedAndRefusalsAreCounted) {
  const SecretFolder secret(SecretFolder::Files{{"tokens", kOld}});
  START_DAEMON(daemon, With(secret));
  EXPECT_TRUE(Ask(daemon.channel(), Bearer(kOld)).status.ok());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Ask(daemon.channel(), Bearer(kWrong)).status.error_code(),
              StatusCode::UNAUTHENTICATED);
  }
  EXPECT_THAT(daemon.log(), Not(HasSubstr(kOld)));
  EXPECT_THAT(daemon.log(), Not(HasSubstr(kWrong)));
  httplib::Client http("127.0.0.1", daemon.http_port());
  EXPECT_EQ(http.Get("/metrics")->status, 401);
  EXPECT_EQ(http.Get("/", {{"Authorization", Bearer(kWrong)}})->status, 401);
  EXPECT_EQ(http.Get("/readyz")->status, 200) << "asks for none";
  const auto page = http.Get("/metrics", {{"Authorization", Bearer(kOld)}});
  ASSERT_TRUE(page);
  const MetricSamples samples = ParseMetrics(page->body);
  EXPECT_EQ(samples.at("ziggurat_admissions_refused_total{reason=\"unauthenticated\"}"), 5)
      << "of both ports";
}

TEST(Tokens, ChangeWithTheFile) {
  SecretFolder secret(SecretFolder::Files{{"tokens", kOld}});
  START_DAEMON(daemon, With(secret));
  const auto may = [&](const char* token) {
    return Ask(daemon.channel(), Bearer(token)).status.ok();
  };
  EXPECT_TRUE(may(kOld));
  EXPECT_FALSE(may(kNew));
  secret.Put({{"tokens", absl::StrCat(kOld, "\n", kNew, "\n")}});
  EXPECT_TRUE(PollUntil(kReloadTimeout, [&] { return may(kNew); }));
  EXPECT_TRUE(may(kOld)) << "both, while clients change over";
  secret.Put({{"tokens", kNew}});
  EXPECT_TRUE(PollUntil(kReloadTimeout, [&] { return !may(kOld); }));
  EXPECT_TRUE(may(kNew));
  // Nothing good in the file is no reason to let everybody in, or nobody.
  for (const char* broken : {"# all gone\n", "short\n", ""}) {
    secret.Put({{"tokens", broken}});
    const std::string line = absl::StrCat("--auth-token-file ", secret.file("tokens"), ": ");
    EXPECT_TRUE(
        PollUntil(kReloadTimeout, [&] { return daemon.log().find(line) != std::string::npos; }));
    EXPECT_TRUE(may(kNew));
    EXPECT_FALSE(may(kWrong));
    EXPECT_FALSE(may(kOld));
  }
}

TEST(Tokens, ThatAreNoGoodAreSaidOnceEachTimeTheyComeIntoTheFile) {
  SecretFolder secret(SecretFolder::Files{{"tokens", kOld}});
  START_DAEMON(daemon, With(secret));
  const auto times = [&] {
    const std::vector<std::string> parts = absl::StrSplit(daemon.log(), "holds no token");
    return parts.size() - 1;
  };
  for (size_t round = 1; round <= 2; ++round) {
    secret.Put({{"tokens", "# none\n"}});
    EXPECT_TRUE(PollUntil(kReloadTimeout, [&] { return times() == round; })) << daemon.log();
    absl::SleepFor(absl::Seconds(3));  // it looks every second
    EXPECT_EQ(times(), round);
    if (round == 2) break;
    secret.Put({{"tokens", kOld}});
    absl::SleepFor(absl::Seconds(4));
  }
}

TEST(Tokens, OfAFileWithoutGoodOnesAreRefusedAtTheStart) {
  const SecretFolder secret(
      SecretFolder::Files{{"empty", ""}, {"comments", "# none\n"}, {"weak", "secret\n"}});
  for (const auto& [name, why] :
       {std::pair{"empty", "is empty"}, std::pair{"comments", "holds no token"},
        std::pair{"weak", "line 1 has 6 characters"}, std::pair{"none", "No such file"}}) {
    const CommandResult result =
        RunZiggurat({"serve", "--model", NeedleLlama(), "--listen", "127.0.0.1:0", "--http",
                     "127.0.0.1:0", "--auth-token-file", secret.file(name)});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, testing::AllOf(HasSubstr("--auth-token-file"), HasSubstr(why)));
    EXPECT_THAT(result.err, Not(HasSubstr("secret\n")));
  }
}

}  // namespace
}  // namespace ziggurat::e2e

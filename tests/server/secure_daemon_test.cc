// A daemon with TLS and tokens whose files change while calls run: in this process, so that the
// sanitizers see both sides.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "gtest/gtest.h"
#include "tests/server/stub_daemon.h"
#include "tests/support/certificates.h"

namespace ziggurat {
namespace {

constexpr char kOld[] = "old-token-0123456789";
constexpr char kNew[] = "new-token-0123456789";

class Folder {
 public:
  Folder() : path_(testing::TempDir() + absl::StrCat("secure-daemon-", getpid())) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string Write(const std::string& name, const std::string& content) const {
    std::ofstream(path_ / name) << content;
    return (path_ / name).string();
  }

 private:
  std::filesystem::path path_;
};

struct Called {
  grpc::StatusCode code = grpc::StatusCode::UNKNOWN;
  std::string server;  ///< common name that it has shown
};

/// On a connection of its own.
Called Call(int port, const CertificateAuthority& authority, const std::string& token) {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = authority.certificate();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto stub = v1::Ziggurat::NewStub(grpc::CreateCustomChannel(
      absl::StrCat("127.0.0.1:", port), grpc::SslCredentials(options), arguments));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  context.AddMetadata("authorization", "Bearer " + token);
  v1::GetModelResponse model;
  Called called;
  called.code = stub->GetModel(&context, {}, &model).error_code();
  const auto names = context.auth_context()->FindPropertyValues("x509_common_name");
  if (!names.empty()) called.server.assign(names[0].data(), names[0].size());
  return called;
}

TEST(SecureDaemonTest, FilesChangeWhileCallsRun) {
  const Folder folder;
  const CertificateAuthority authority("authority");
  const CertificateAndKey first = authority.Issue("first");
  const CertificateAndKey second = authority.Issue("second");
  ServeConfig config = StubDaemon::DefaultConfig();
  config.security.tls_cert = folder.Write("tls.crt", first.certificate);
  config.security.tls_key = folder.Write("tls.key", first.key);
  config.security.auth_token_file = folder.Write("tokens", kOld);
  StubDaemon daemon(config);
  const int port = daemon.daemon().grpc_port();

  std::atomic<bool> is_over = false;
  std::atomic<int> answered = 0;
  std::atomic<int> unexpected = 0;
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i) {
    callers.emplace_back([&] {
      while (!is_over) {
        const grpc::StatusCode code = Call(port, authority, kOld).code;
        const bool is_expected =
            code == grpc::StatusCode::OK || code == grpc::StatusCode::UNAUTHENTICATED;
        ++(is_expected ? answered : unexpected);
      }
    });
  }
  // One file after the other: in between, the pair does not match.
  folder.Write("tls.key", second.key);
  folder.Write("tls.crt", second.certificate);
  folder.Write("tokens", kNew);
  Called called;
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  do {
    called = Call(port, authority, kNew);
  } while ((called.code != grpc::StatusCode::OK || called.server != "second") &&
           absl::Now() < deadline);
  EXPECT_EQ(called.code, grpc::StatusCode::OK);
  EXPECT_EQ(called.server, "second");
  EXPECT_EQ(Call(port, authority, kOld).code, grpc::StatusCode::UNAUTHENTICATED);
  is_over = true;
  for (std::thread& caller : callers) caller.join();
  EXPECT_GT(answered, 0);
  EXPECT_EQ(unexpected, 0);
}

}  // namespace
}  // namespace ziggurat

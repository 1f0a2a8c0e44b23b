// A daemon with TLS and tokens whose files change while calls run: in this process, so that the
// sanitizers see both sides.
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "gtest/gtest.h"
#include "httplib.h"
#include "tests/server/stub_daemon.h"
#include "tests/support/certificates.h"
#include "tests/support/files.h"

namespace ziggurat {
namespace {

constexpr char kOld[] = "old-token-0123456789";
constexpr char kNew[] = "new-token-0123456789";

class Folder {
 public:
  std::string Write(const std::string& name, const std::string& content) const {
    WriteFile(folder_ / name, content);
    return (folder_ / name).string();
  }

 private:
  TemporaryFolder folder_;
};

/// On a connection of its own, by a client that trusts the authorities in `roots` only. The answer
/// says whose certificate the daemon has shown: asking gRPC for its name would read what a thread
/// of gRPC wrote, and the sanitizers do not see how gRPC hands that over.
grpc::Status Call(int port, const std::string& roots, const std::string& token) {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = roots;
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto stub = v1::Ziggurat::NewStub(grpc::CreateCustomChannel(
      absl::StrCat("127.0.0.1:", port), grpc::SslCredentials(options), arguments));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  context.AddMetadata("authorization", "Bearer " + token);
  v1::GetModelResponse model;
  return stub->GetModel(&context, {}, &model);
}

TEST(SecureDaemonTest, FilesChangeWhileCallsRun) {
  const Folder folder;
  const CertificateAuthority old_authority("old");
  const CertificateAuthority new_authority("new");
  const std::string either = old_authority.certificate() + new_authority.certificate();
  const CertificateAndKey first = old_authority.Issue("first");
  const CertificateAndKey second = new_authority.Issue("second");
  ServeConfig config = StubDaemon::DefaultConfig();
  config.security.tls_cert = folder.Write("tls.crt", first.certificate);
  config.security.tls_key = folder.Write("tls.key", first.key);
  config.security.auth_token_file = folder.Write("tokens", kOld);
  StubDaemon daemon(config);
  const int port = daemon.daemon().grpc_port();
  EXPECT_EQ(Call(port, old_authority.certificate(), kOld).error_code(), grpc::StatusCode::OK);
  EXPECT_EQ(Call(port, new_authority.certificate(), kOld).error_code(),
            grpc::StatusCode::UNAVAILABLE);

  std::atomic<bool> is_over = false;
  std::atomic<int> answered = 0;
  std::mutex mutex;
  std::vector<std::string> unexpected;  // guarded by mutex
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i) {
    callers.emplace_back([&] {
      while (!is_over) {
        const grpc::Status status = Call(port, either, kOld);
        if (status.ok() || status.error_code() == grpc::StatusCode::UNAUTHENTICATED) {
          ++answered;
          continue;
        }
        const std::lock_guard lock(mutex);
        unexpected.push_back(absl::StrCat(status.error_code(), ": ", status.error_message()));
      }
    });
  }
  // One file after the other: in between, the pair does not match.
  folder.Write("tls.key", second.key);
  folder.Write("tls.crt", second.certificate);
  folder.Write("tokens", kNew);
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  grpc::StatusCode renewed = grpc::StatusCode::UNKNOWN;
  do {
    renewed = Call(port, new_authority.certificate(), kNew).error_code();
  } while (renewed != grpc::StatusCode::OK && absl::Now() < deadline);
  EXPECT_EQ(renewed, grpc::StatusCode::OK);
  EXPECT_EQ(Call(port, old_authority.certificate(), kNew).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Call(port, either, kOld).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  is_over = true;
  for (std::thread& caller : callers) caller.join();
  EXPECT_GT(answered, 0);
  EXPECT_TRUE(unexpected.empty()) << absl::StrJoin(unexpected, "\n");
}

// Who shows one has been told where the daemon is, by whatever name: no web site that a browser was
// led to by its name.
TEST(SecureDaemonTest, WhoHasATokenMayCallItByAnyName) {
  const Folder folder;
  ServeConfig config = StubDaemon::DefaultConfig();
  config.security.auth_token_file = folder.Write("tokens", kOld);
  StubDaemon daemon(config);
  httplib::Client client("127.0.0.1", daemon.daemon().http_port());
  const httplib::Headers host = {{"Host", "ziggurat.example"}};
  EXPECT_EQ(client.Get("/metrics", host)->status, 401);
  httplib::Headers with_token = host;
  with_token.emplace("Authorization", absl::StrCat("Bearer ", kOld));
  EXPECT_EQ(client.Get("/metrics", with_token)->status, 200);
  EXPECT_EQ(client.Get("/api/state", host)->status, 401);
  with_token.emplace("Authorization", "Bearer wrong-token-0123456789");
  EXPECT_EQ(client.Get("/metrics", with_token)->status, 401) << "two, of which one is right";
  client.Post("/metrics", with_token, "body", "text/plain");
  EXPECT_NE(client.Get("/metrics", {{"Authorization", absl::StrCat("Bearer ", kOld)}})
                ->body.find("refused_total{reason=\"unauthenticated\"} 3\n"),
            std::string::npos);
}

// Else who was let in by an authority that has gone since would be let in by a ticket.
TEST(SecureDaemonTest, GivesNoTicketsThatOutliveACertificate) {
  const Folder folder;
  const CertificateAuthority authority("authority");
  const CertificateAndKey pair = authority.Issue("daemon");
  ServeConfig config = StubDaemon::DefaultConfig();
  config.security.tls_cert = folder.Write("tls.crt", pair.certificate);
  config.security.tls_key = folder.Write("tls.key", pair.key);
  StubDaemon daemon(config);
  httplib::SSLClient client("127.0.0.1", daemon.daemon().http_port());
  client.set_ca_cert_path(folder.Write("ca.crt", authority.certificate()).c_str());
  static std::atomic<int> tickets = 0;
  // Later ones give some at any rate, and take none.
  SSL_CTX_set_max_proto_version(client.ssl_context(), TLS1_2_VERSION);
  SSL_CTX_set_session_cache_mode(client.ssl_context(), SSL_SESS_CACHE_CLIENT);
  SSL_CTX_sess_set_new_cb(client.ssl_context(), [](SSL*, SSL_SESSION* session) {
    if (SSL_SESSION_has_ticket(session) != 0) ++tickets;
    return 0;
  });
  for (int i = 0; i < 2; ++i) EXPECT_EQ(client.Get("/metrics")->status, 200);
  EXPECT_EQ(tickets, 0);
}

TEST(SecureDaemonTest, APipeInPlaceOfAFileKeepsNobodyWaiting) {
  const Folder folder;
  ServeConfig config = StubDaemon::DefaultConfig();
  config.security.auth_token_file = folder.Write("tokens", kOld);
  {
    StubDaemon daemon(config);
    std::filesystem::remove(config.security.auth_token_file);
    ASSERT_EQ(mkfifo(config.security.auth_token_file.c_str(), 0600), 0);
    std::this_thread::sleep_for(std::chrono::seconds(3));  // it looks every second, and then ends
  }
  EXPECT_FALSE(Daemon::Create(config).ok());
}

}  // namespace
}  // namespace ziggurat

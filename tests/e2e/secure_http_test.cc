// The HTTP port where it is protected: TLS, client certificates and tokens, and probes for all.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "httplib.h"
#include "tests/e2e/secure_client.h"
#include "tests/e2e/testing.h"

namespace ziggurat::e2e {
namespace {

using testing::HasSubstr;

constexpr char kToken[] = "a-token-0123456789";

const CertificateAuthority& Ours() {
  static const CertificateAuthority authority("ours");
  return authority;
}

struct HttpAnswer {
  int status = 0;  ///< 0: no answer
  std::string body;
  std::string server;  ///< common name in the certificate that it has shown
};

/// A client that trusts `Ours()`, and shows a certificate where there is one.
HttpAnswer Get(const Daemon& daemon, const std::string& path,
               const std::optional<CertificateAndKey>& shown = {},
               const httplib::Headers& headers = {}) {
  std::signal(SIGPIPE, SIG_IGN);  // of a server that hangs up in the middle of the handshake
  const SecretFolder files(SecretFolder::Files{{"ca.crt", Ours().certificate()},
                                               {"tls.crt", shown ? shown->certificate : ""},
                                               {"tls.key", shown ? shown->key : ""}});
  httplib::SSLClient client("127.0.0.1", daemon.http_port(), shown ? files.file("tls.crt") : "",
                            shown ? files.file("tls.key") : "");
  client.set_ca_cert_path(files.file("ca.crt").c_str());
  client.enable_server_certificate_verification(true);
  client.set_connection_timeout(10);
  client.set_read_timeout(10);
  HttpAnswer answer;
  SSL_CTX_set_app_data(client.ssl_context(), &answer);
  SSL_CTX_set_info_callback(client.ssl_context(), [](const SSL* ssl, int where, int) {
    const X509* certificate = SSL_get0_peer_certificate(ssl);
    if ((where & SSL_CB_HANDSHAKE_DONE) == 0 || certificate == nullptr) return;
    char name[100] = "";
    X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, name,
                              sizeof(name));
    static_cast<HttpAnswer*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)))->server = name;
  });
  if (const httplib::Result result = client.Get(path.c_str(), headers)) {
    answer.status = result->status;
    answer.body = result->body;
  }
  return answer;
}

httplib::Headers Authorization(const std::string& value) { return {{"Authorization", value}}; }

TEST(SecureHttp, SpeaksTlsWithTheCertificateOfNow) {
  SecretFolder secret(SecretFolder::Tls(Ours().Issue("first"), Ours()));
  START_DAEMON(daemon, {.flags = secret.Flags()});
  const HttpAnswer answer = Get(daemon, "/metrics");
  EXPECT_EQ(answer.status, 200);
  EXPECT_THAT(answer.body, HasSubstr("ziggurat_pool_blocks"));
  EXPECT_EQ(answer.server, "first");
  const MetricSamples samples = ParseMetrics(answer.body);
  const absl::Time expiry =
      absl::FromUnixSeconds(0) +
      absl::Seconds(samples.at("ziggurat_tls_certificate_expiry_timestamp_seconds"));
  EXPECT_GT(expiry, absl::Now() + absl::Hours(23));
  EXPECT_LE(expiry, absl::Now() + absl::Hours(24));
  EXPECT_EQ(daemon.HttpGet("/metrics").first, 0) << "in plain text";
  secret.Put(SecretFolder::Tls(Ours().Issue("second"), Ours()));
  EXPECT_TRUE(
      PollUntil(absl::Seconds(30), [&] { return Get(daemon, "/healthz").server == "second"; }));
}

TEST(SecureHttp, ACertificateOfTomorrowIsTakenWhenItsTimeComes) {
  SecretFolder secret(SecretFolder::Tls(Ours().Issue("now"), Ours()));
  START_DAEMON(daemon, {.flags = secret.Flags()});
  const absl::Time begins = absl::Now() + absl::Seconds(6);
  secret.Put(SecretFolder::Tls(Ours().Issue("later", {.begins = absl::Seconds(6)}), Ours()));
  EXPECT_TRUE(
      PollUntil(absl::Seconds(40), [&] { return Get(daemon, "/healthz").server == "later"; }));
  EXPECT_GE(absl::Now(), begins - absl::Seconds(1));
}

TEST(PlainHttp, IdleConnectionsDoNotKeepAProbeWaiting) {
  START_DAEMON(daemon, {});
  std::vector<int> idle;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(daemon.http_port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (int i = 0; i < 64; ++i) {
    idle.push_back(socket(AF_INET, SOCK_STREAM, 0));
    ASSERT_EQ(connect(idle.back(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    // More than five at once that httplib has not taken yet come a second later.
    absl::SleepFor(absl::Milliseconds(2));
  }
  const absl::Time start = absl::Now();
  EXPECT_EQ(daemon.HttpGet("/readyz").first, 200);
  EXPECT_LT(absl::Now() - start, absl::Seconds(4)) << "each is given a second";
  for (const int one : idle) close(one);
}

TEST(SecureHttp, AsksForAClientCertificateWhereGrpcDoes) {
  const CertificateAuthority strangers("strangers");
  const CertificateAndKey client = Ours().Issue("client");
  const CertificateAndKey late = Ours().Issue("late", {.ends = -absl::Seconds(10)});
  SecretFolder secret(SecretFolder::Tls(Ours().Issue("daemon"), Ours()));
  START_DAEMON(daemon, {.flags = secret.Flags(true)});
  EXPECT_EQ(Get(daemon, "/metrics", client).status, 200);
  EXPECT_EQ(Get(daemon, "/metrics", client, {{"Host", "ziggurat.example"}}).status, 200);
  EXPECT_EQ(Get(daemon, "/metrics").status, 403);
  EXPECT_EQ(Get(daemon, "/metrics", strangers.Issue("client")).status, 0);
  EXPECT_EQ(Get(daemon, "/metrics", late).status, 0);
  EXPECT_EQ(Get(daemon, "/").status, 403) << "whatever there is";
  EXPECT_EQ(Get(daemon, "/healthz").status, 200) << "probes have no certificate";
  EXPECT_EQ(Get(daemon, "/readyz").status, 200);
  // The authority goes, and whom it let in is let in no more.
  secret.Put(SecretFolder::Tls(Ours().Issue("daemon"), strangers));
  EXPECT_TRUE(
      PollUntil(absl::Seconds(30), [&] { return Get(daemon, "/metrics", client).status == 0; }));
}

TEST(SecureHttp, AsksForATokenOverTls) {
  const SecretFolder secret(SecretFolder::Tls(Ours().Issue("daemon"), Ours()));
  const SecretFolder tokens(SecretFolder::Files{{"tokens", kToken}});
  std::vector<std::string> flags = secret.Flags();
  flags.insert(flags.end(), {"--auth-token-file", tokens.file("tokens")});
  START_DAEMON(daemon, {.flags = flags});
  const auto status = [&](const char* path, const httplib::Headers& headers) {
    return Get(daemon, path, {}, headers).status;
  };
  EXPECT_EQ(status("/metrics", Authorization(absl::StrCat("Bearer ", kToken))), 200);
  const std::string password = absl::Base64Escape(absl::StrCat("any:", kToken));
  EXPECT_EQ(status("/metrics", Authorization("Basic " + password)), 200) << "as browsers ask";
  EXPECT_EQ(status("/metrics", {}), 401);
  EXPECT_EQ(status("/metrics", Authorization("Bearer another-token-0123")), 401);
  EXPECT_EQ(status("/metrics", Authorization("Basic " + absl::Base64Escape("any:x"))), 401);
  EXPECT_EQ(status("/", {}), 401);
  EXPECT_EQ(status("/healthz", {}), 200);
  EXPECT_EQ(status("/readyz", {}), 200);
  EXPECT_EQ(status("/healthz/../metrics", {}), 401);
}

TEST(SecureHttp, AsksForATokenInPlainTextToo) {
  const SecretFolder tokens(SecretFolder::Files{{"tokens", kToken}});
  START_DAEMON(daemon, {.flags = {"--auth-token-file", tokens.file("tokens")}});
  httplib::Client client("127.0.0.1", daemon.http_port());
  EXPECT_EQ(daemon.HttpGet("/metrics").first, 401);
  EXPECT_EQ(daemon.HttpGet("/healthz").first, 200);
  const auto refused = client.Get("/metrics");
  ASSERT_TRUE(refused);
  EXPECT_THAT(refused->get_header_value("WWW-Authenticate"), HasSubstr("Basic realm="));
  const auto good = client.Get("/metrics", Authorization(absl::StrCat("Bearer ", kToken)));
  ASSERT_TRUE(good);
  EXPECT_EQ(good->status, 200);
}

}  // namespace
}  // namespace ziggurat::e2e

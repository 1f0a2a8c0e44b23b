// The HTTP port and what clients may do to it.

#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "httplib.h"
#include "server/security/http_server.h"
#include "tests/server/stub_daemon.h"
#include "tests/support/poll.h"

namespace ziggurat {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Optional;
using ::testing::StartsWith;

/// A connection to a port of this machine.
class RawConnection {
 public:
  explicit RawConnection(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~RawConnection() { close(socket_); }

  /// False once the other side has gone.
  bool Send(const std::string& text) {
    return send(socket_, text.data(), text.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(text.size());
  }

  /// All that comes until the other side ends the connection; nothing if that takes more than 10
  /// seconds.
  std::optional<std::string> Receive() {
    const timeval patience = {10, 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    std::string text;
    char buffer[4096];
    for (;;) {
      const ssize_t got = recv(socket_, buffer, sizeof(buffer), 0);
      if (got < 0 && errno == EAGAIN) return std::nullopt;
      if (got <= 0) return text;
      text.append(buffer, static_cast<size_t>(got));
    }
  }

 private:
  const int socket_;
};

TEST(HttpPortTest, ReadsNoBodiesAndServesNoRanges) {
  StubDaemon daemon;
  httplib::Client client("127.0.0.1", daemon.daemon().http_port());
  for (const char* path : {"/healthz", "/metrics", "/nothing"}) {
    const auto refused = client.Post(path, "body", "text/plain");
    ASSERT_TRUE(refused) << path;
    EXPECT_EQ(refused->status, 405) << path;
    EXPECT_EQ(refused->get_header_value("Allow"), "GET, HEAD");
  }
  const auto whole =
      client.Get("/healthz", {httplib::make_range_header({{0, -1}, {0, -1}, {1, -1}})});
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->status, 200);
  EXPECT_EQ(whole->body, "ok\n");
}

TEST(HttpPortTest, CutsRequestsThatAreTooLargeOrTakeTooLong) {
  StubDaemon daemon;
  const int port = daemon.daemon().http_port();
  const std::string header = absl::StrCat("X: ", std::string(1000, 'x'), "\r\n");
  for (const std::string& more : {header, std::string(1000, 'x')}) {
    RawConnection large(port);
    EXPECT_TRUE(large.Send("GET /healthz HTTP/1.1\r\nX: "));
    int sent = 0;  // a kilobyte each; what the system holds on its way is some megabytes
    while (sent < 50'000 && large.Send(more)) ++sent;
    EXPECT_LT(sent, 50'000);
  }
  RawConnection slow(port);
  EXPECT_TRUE(slow.Send("GET /healthz HTTP/1.1\r\nX: "));
  int bytes = 0;
  for (; bytes < 300 && slow.Send("x"); ++bytes) absl::SleepFor(absl::Milliseconds(100));
  EXPECT_LT(bytes, 300) << "cut after 5 seconds, not 30";
  EXPECT_EQ(HttpGet(daemon, "/healthz").status, 200);
}

TEST(HttpPortTest, EndsWhateverAnHttpClientDoes) {
  auto daemon = std::make_unique<StubDaemon>();
  RawConnection slow(daemon->daemon().http_port());
  EXPECT_TRUE(slow.Send("GET /healthz HTTP/1.1\r\nX: "));
  absl::SleepFor(absl::Milliseconds(200));
  auto end = std::async(std::launch::async, [&] { daemon.reset(); });
  int bytes = 0;
  while (end.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready && bytes < 400) {
    ++bytes;
    slow.Send("x");
  }
  EXPECT_LT(bytes, 80) << "it is cut, and not only when its request has taken too long";
}

/// The whole answer to a GET. `request` is what stands between that and the empty line.
std::string Answer(int port, const std::string& request) {
  RawConnection connection(port);
  EXPECT_TRUE(connection.Send(absl::StrCat("GET ", request, "\r\n\r\n")));
  return connection.Receive().value_or("no end");
}

// The system keeps the port of who ends a connection for a minute.
TEST(HttpPortTest, MayBeTakenAgainAtOnce) {
  ServeConfig config = StubDaemon::DefaultConfig();
  absl::Status status;
  for (int tries = 0; tries < 5; ++tries) {  // somebody else may be given the port meanwhile
    {
      StubDaemon daemon;
      config.http.port = daemon.daemon().http_port();
      EXPECT_THAT(Answer(config.http.port, "/healthz HTTP/1.1"), StartsWith("HTTP/1.1 200"));
    }
    status = Daemon::Create(config).status();
    if (status.ok()) break;
  }
  EXPECT_TRUE(status.ok()) << status;
}

/// While it lives, threads are started with a stack of a mebibyte.
class SmallStacks {
 public:
  SmallStacks() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t small;
    pthread_getattr_default_np(&small);
    pthread_attr_setstacksize(&small, 1 << 20);
    EXPECT_EQ(pthread_setattr_default_np(&small), 0);
    pthread_attr_destroy(&small);
  }
  ~SmallStacks() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_;
};

TEST(HttpPortTest, NoRequestNeedsADeepStack) {
  const SmallStacks stacks;
  StubDaemon daemon;
  const int port = daemon.daemon().http_port();
  const std::string digits(8000, '1');
  for (const char* name : {"Range: ", "RANGE:", "range:\t "}) {
    const std::string request = absl::StrCat("/healthz HTTP/1.1\r\n", name, "bytes=", digits, "-");
    EXPECT_THAT(Answer(port, request), StartsWith("HTTP/1.1 200 OK")) << name;
  }
  EXPECT_THAT(Answer(port, absl::StrCat("/api/requests/", digits, " HTTP/1.1")),
              StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Answer(port, absl::StrCat("/", digits, " HTTP/1.1")), StartsWith("HTTP/1.1 404"));
}

TEST(HttpPortTest, OtherHeadersAreReadAsTheyAre) {
  StubDaemon daemon;
  const int port = daemon.daemon().http_port();
  // Without the name of another host, this is refused.
  for (const char* before :
       {"Range: bytes=0-0\r\n", "Ranges: x\r\n", "Rang: x\r\n", "X: range:\r\n"}) {
    EXPECT_THAT(Answer(port, absl::StrCat("/metrics HTTP/1.1\r\n", before, "Host: evil.example")),
                StartsWith("HTTP/1.1 403"))
        << before;
  }
}

TEST(HttpPortTest, AnswersAnExpectationOnce) {
  StubDaemon daemon;
  const std::string answer =
      Answer(daemon.daemon().http_port(), "/healthz HTTP/1.1\r\nExpect: 100-continue");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\nok\n"));
}

TEST(HttpPortTest, CompressesByGzipAlone) {
  StubDaemon daemon;
  const auto metrics_in = [&](const std::string& encodings) {
    return Answer(daemon.daemon().http_port(),
                  absl::StrCat("/metrics HTTP/1.1\r\nAccept-Encoding: ", encodings));
  };
  EXPECT_THAT(metrics_in("br"), Not(HasSubstr("Content-Encoding")));
  EXPECT_THAT(metrics_in("br, gzip"), HasSubstr("Content-Encoding: gzip"));
  EXPECT_THAT(metrics_in("br;q=1, GZIP; q=0.5"), HasSubstr("Content-Encoding: gzip"));
  EXPECT_THAT(metrics_in("gzip;q=0, br"), Not(HasSubstr("Content-Encoding")));
}

TEST(HttpPortTest, ConnectionsThatMayNotWaitAreClosed) {
  constexpr int kServed = 64, kWaiting = 256;
  const auto security = PortSecurity::Start({});
  ASSERT_TRUE(security.ok()) << security.status();
  HttpServer server(*security, /*is_local=*/true, [] {});
  absl::Notification release;
  std::atomic<int> held = 0;
  server.Get("/hold", [&](const httplib::Request&, httplib::Response&) {
    ++held;
    release.WaitForNotification();
  });
  const int port = server.bind_to_any_port("127.0.0.1");
  ASSERT_GT(port, 0);
  std::thread listening([&] { server.listen_after_bind(); });
  std::vector<std::unique_ptr<RawConnection>> connections;
  for (int i = 0; i < kServed; ++i) {
    connections.push_back(std::make_unique<RawConnection>(port));
    EXPECT_TRUE(connections.back()->Send("GET /hold HTTP/1.1\r\n\r\n"));
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_TRUE(PollUntil(kPatience, [&] { return held >= kServed; }))
      << "waited for " << kServed << " requests to be held, and " << held << " are";
  for (int i = 0; i < kWaiting; ++i) {
    connections.push_back(std::make_unique<RawConnection>(port));
    // More than five at once that httplib has not taken yet come a second later.
    absl::SleepFor(absl::Milliseconds(1));
  }
  RawConnection turned_away(port);
  EXPECT_EQ(turned_away.Receive(), "") << "ended while the others are still held";
  EXPECT_TRUE(connections.back()->Send("GET /nothing HTTP/1.1\r\n\r\n"));
  connections.erase(connections.begin() + 1, connections.end() - 1);  // they need not be waited for
  release.Notify();
  EXPECT_THAT(connections.front()->Receive(), Optional(StartsWith("HTTP/1.1 200")));
  EXPECT_THAT(connections.back()->Receive(), Optional(StartsWith("HTTP/1.1 404")));
  server.stop();
  listening.join();
}

}  // namespace
}  // namespace ziggurat

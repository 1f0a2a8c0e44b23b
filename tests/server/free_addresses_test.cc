#include "server/free_addresses.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ziggurat {
namespace {

using ::testing::HasSubstr;

/// Listens on 127.0.0.1 alone.
class Listener {
 public:
  Listener() : descriptor_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(descriptor_, any, length), 0);
    EXPECT_EQ(listen(descriptor_, 1), 0);
    EXPECT_EQ(getsockname(descriptor_, any, &length), 0);
    port_ = ntohs(address.sin_port);
  }
  ~Listener() { close(descriptor_); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  int port() const { return port_; }

 private:
  int descriptor_;
  int port_ = 0;
};

TEST(FreeAddresses, OfAHostAreAllOfThem) {
  const Listener other;
  for (const char* host : {"127.0.0.1", "localhost", "0.0.0.0"}) {
    const absl::Status status = CheckAddressesAreFree("http://", {host, other.port()});
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << host;
    EXPECT_THAT(std::string(status.message()), HasSubstr("Address already in use")) << host;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string("http://") + host)) << host;
  }
  EXPECT_EQ(CheckAddressesAreFree("", {"127.0.0.2", other.port()}), absl::OkStatus());
  EXPECT_EQ(CheckAddressesAreFree("", {"localhost", 0}), absl::OkStatus());
}

TEST(FreeAddresses, OfNoHostAreNone) {
  EXPECT_FALSE(CheckAddressesAreFree("", {"no-such-host.invalid", 0}).ok());
  EXPECT_THAT(std::string(CheckAddressesAreFree("", {"203.0.113.1", 0}).message()),
              HasSubstr("203.0.113.1:0: Cannot assign requested address"));
}

}  // namespace
}  // namespace ziggurat

#include "server/security/security_config.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"

namespace ziggurat {
namespace {

bool IsLoopbackAddress(const sockaddr& address) {
  constexpr uint32_t kLoopbackNet = 127;  // 127.0.0.0/8
  if (address.sa_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &address, sizeof(v4));
    return ntohl(v4.sin_addr.s_addr) >> 24 == kLoopbackNet;
  }
  if (address.sa_family != AF_INET6) return false;
  sockaddr_in6 v6{};
  std::memcpy(&v6, &address, sizeof(v6));
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) return v6.sin6_addr.s6_addr[12] == kLoopbackNet;
  return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

}  // namespace

bool IsLoopback(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return false;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, &freeaddrinfo);
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if (!IsLoopbackAddress(*one->ai_addr)) return false;
  }
  return true;
}

absl::Status Validate(const SecurityConfig& config) {
  const auto wrong = [](const char* why) { return absl::InvalidArgumentError(why); };
  if (config.tls_cert.empty() && !config.tls_key.empty()) {
    return wrong("--tls-key is given without --tls-cert, the certificate that it is the key of");
  }
  if (!config.tls_cert.empty() && config.tls_key.empty()) {
    return wrong("--tls-cert is given without --tls-key, the key of that certificate");
  }
  if (!config.tls_client_ca.empty() && !config.has_tls()) {
    return wrong("--tls-client-ca is given without --tls-cert: clients show certificates over TLS");
  }
  return absl::OkStatus();
}

absl::Status CheckExposure(const SecurityConfig& config, const std::string& flag,
                           const std::string& host) {
  if (config.has_tls() || config.allow_plain_text || IsLoopback(host)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      flag, ": ", host,
      " is not this machine's own loopback address, and in plain text whoever is on the way reads "
      "and changes prompts, answers and tokens. Give --tls-cert and --tls-key, or listen on "
      "127.0.0.1, or say --allow-plain-text where something else protects this port"));
}

}  // namespace ziggurat

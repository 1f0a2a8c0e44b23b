#include "server/free_addresses.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "model/absl_view.h"

namespace ziggurat {
namespace {

/// 0, or the number of the error that binding it ends with.
int ErrorOfBinding(const addrinfo& address) {
  const int descriptor = socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return errno;
  const int yes = 1;
  const bool is_bound = setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
                        bind(descriptor, address.ai_addr, address.ai_addrlen) == 0;
  const int error = is_bound ? 0 : errno;
  close(descriptor);
  return error;
}

std::string NumbersOf(const addrinfo& address) {
  char text[NI_MAXHOST] = "";
  getnameinfo(address.ai_addr, address.ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

}  // namespace

absl::Status CheckAddressesAreFree(std::string_view scheme, const Endpoint& endpoint) {
  const auto taken = [&](const std::string& why) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", AbslView(scheme), FormatEndpoint(endpoint), ": ", why));
  };
  addrinfo hints = {};
  hints.ai_flags = AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = absl::StrCat(endpoint.port);
  if (const int error = getaddrinfo(endpoint.host.c_str(), port.c_str(), &hints, &found);
      error != 0) {
    return taken(gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  const bool has_several = found->ai_next != nullptr;
  bool is_any_bound = false;
  int last_error = 0;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    const int error = ErrorOfBinding(*one);
    if (error == EADDRINUSE) {
      return taken(absl::StrCat(std::strerror(error),
                                has_several ? absl::StrCat(" (", NumbersOf(*one), ")") : ""));
    }
    // A host may have addresses of a kind that this machine lacks.
    is_any_bound = is_any_bound || error == 0;
    if (error != 0) last_error = error;
  }
  return is_any_bound ? absl::OkStatus() : taken(std::strerror(last_error));
}

}  // namespace ziggurat

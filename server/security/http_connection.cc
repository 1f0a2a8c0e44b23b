#include "server/security/http_connection.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "absl/strings/ascii.h"

namespace ziggurat {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr size_t kRequestBytes = 64 << 10;
constexpr milliseconds kRequestTime{5000};
constexpr milliseconds kAnswerTime{30000};
// Of silence: a connection that says nothing holds one of the few threads.
constexpr milliseconds kReadPatience{1000};
constexpr milliseconds kWritePatience{5000};
constexpr milliseconds kClosePatience{100};
constexpr size_t kBufferBytes = 4096;

SSL* NewSsl(SSL_CTX* context, int socket) {
  if (context == nullptr) return nullptr;
  SSL* ssl = SSL_new(context);
  if (ssl != nullptr) SSL_set_fd(ssl, socket);
  return ssl;
}

}  // namespace

HttpConnection::HttpConnection(int socket, SSL_CTX* context)
    : socket_(socket),
      is_plain_(context == nullptr),
      ssl_(NewSsl(context, socket)),
      read_deadline_(steady_clock::now() + kRequestTime),
      bytes_left_(kRequestBytes) {
  fcntl(socket_, F_SETFL, fcntl(socket_, F_GETFL) | O_NONBLOCK);
}

bool HttpConnection::WaitAfter(ssize_t result, short events, milliseconds patience, Time deadline) {
  if (ssl_ != nullptr) {
    const int wants = SSL_get_error(ssl_.get(), static_cast<int>(result));
    if (wants != SSL_ERROR_WANT_READ && wants != SSL_ERROR_WANT_WRITE) return false;
    events = wants == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
  } else if (errno == EINTR) {
    return true;
  } else if (errno != EAGAIN && errno != EWOULDBLOCK) {
    return false;
  }
  const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
  if (left <= milliseconds::zero()) return false;
  pollfd waits_for = {socket_, events, 0};
  return poll(&waits_for, 1, static_cast<int>(std::min(patience, left).count())) != 0;
}

bool HttpConnection::Accept() {
  if (is_plain_) return true;
  if (ssl_ == nullptr) return false;
  for (;;) {
    ERR_clear_error();
    const int result = SSL_accept(ssl_.get());
    if (result == 1) return true;
    if (!WaitAfter(result, POLLIN, kReadPatience, read_deadline_)) return false;
  }
}

ssize_t HttpConnection::Fill() {
  if (taken_ < buffer_.size()) return 1;
  buffer_.resize(std::min(kBufferBytes, bytes_left_));
  taken_ = 0;
  for (;;) {
    if (buffer_.empty()) return -1;
    ERR_clear_error();
    const ssize_t got = ssl_ != nullptr
                            ? SSL_read(ssl_.get(), buffer_.data(), static_cast<int>(buffer_.size()))
                            : recv(socket_, buffer_.data(), buffer_.size(), 0);
    const bool is_end =
        got == 0 && (ssl_ == nullptr || SSL_get_error(ssl_.get(), 0) == SSL_ERROR_ZERO_RETURN);
    if (got > 0 || is_end) {
      buffer_.resize(got);
      bytes_left_ -= got;
      return is_end ? 0 : 1;
    }
    if (!WaitAfter(got, POLLIN, kReadPatience, read_deadline_)) {
      buffer_.clear();
      return -1;
    }
  }
}

bool HttpConnection::Take(char* byte) {
  constexpr std::string_view kRange = "range:";
  constexpr int kWhole = kRange.size();
  *byte = buffer_[taken_++];
  if (*byte == '\n') {
    range_matched_ = 0;
  } else if (range_matched_ == kWhole) {
    return *byte == '\r';
  } else if (range_matched_ >= 0) {
    const bool goes_on = absl::ascii_tolower(*byte) == kRange[range_matched_];
    range_matched_ = goes_on ? range_matched_ + 1 : -1;
  }
  return true;
}

ssize_t HttpConnection::read(char* to, size_t size) {
  for (;;) {
    if (const ssize_t filled = Fill(); filled <= 0) return filled;
    size_t given = 0;
    while (given < size && taken_ < buffer_.size()) given += Take(to + given) ? 1 : 0;
    if (given > 0 || size == 0) return static_cast<ssize_t>(given);
  }
}

ssize_t HttpConnection::write(const char* from, size_t size) {
  if (write_deadline_ == Time()) write_deadline_ = steady_clock::now() + kAnswerTime;
  const size_t piece = std::min(size, size_t{1} << 30);
  for (;;) {
    ERR_clear_error();
    const ssize_t sent = ssl_ != nullptr ? SSL_write(ssl_.get(), from, static_cast<int>(piece))
                                         : send(socket_, from, piece, MSG_NOSIGNAL);
    if (sent > 0) return sent;
    if (!WaitAfter(sent, POLLOUT, kWritePatience, write_deadline_)) return -1;
  }
}

void HttpConnection::Close() {
  if (ssl_ != nullptr) SSL_shutdown(ssl_.get());
  shutdown(socket_, SHUT_WR);
  // Were it closed with something unread, the client might never see the answer: what is on its way
  // is thrown away, as far as a request goes.
  char nothing[kBufferBytes];
  for (int round = 0; round < 16; ++round) {
    pollfd waits_for = {socket_, POLLIN, 0};
    if (poll(&waits_for, 1, static_cast<int>(kClosePatience.count())) <= 0) return;
    if (recv(socket_, nothing, sizeof(nothing), 0) <= 0) return;
  }
}

}  // namespace ziggurat

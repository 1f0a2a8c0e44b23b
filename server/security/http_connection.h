// One connection to the HTTP port, in plain text or TLS, from which only so much is read and for so
// long.
#pragma once

#include <openssl/ssl.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "httplib.h"

namespace ziggurat {

/// httplib limits neither the lines of a request nor the time that it takes, and reads all of them
/// before it asks anybody. Here a request has 64 KiB and 5 seconds, and an answer 30. And httplib
/// reads a Range header by a regular expression that recurses for each character, deeper than a
/// stack may be; here such headers come without a value, which httplib leaves out (but for a lone
/// CR in it). Of one thread.
class HttpConnection final : public httplib::Stream {
 public:
  /// `context` null: plain text. `socket` stays the caller's.
  HttpConnection(int socket, SSL_CTX* context);

  /// What comes before a request. False where the client speaks no TLS, or is too slow, or memory
  /// is short.
  bool Accept();
  /// The end of it: what is on its way to the client gets there.
  void Close();
  SSL* ssl() const { return ssl_.get(); }  ///< null: plain text

  // httplib::Stream. Both give -1 once bytes or time are used up; read gives 0 at the end.
  ssize_t read(char* to, size_t size) override;
  ssize_t write(const char* from, size_t size) override;
  bool is_readable() const override { return true; }
  bool is_writable() const override { return true; }
  int socket() const override { return socket_; }
  // Nobody asks who it is.
  void get_remote_ip_and_port(std::string& /*ip*/, int& /*port*/) const override {}
  void get_local_ip_and_port(std::string& /*ip*/, int& /*port*/) const override {}

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct FreeSsl {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };

  /// Reads what the client has sent, once there is none left of what it sent before. 1, or what
  /// read() is to give.
  ssize_t Fill();
  /// Takes the next of the bytes read. False where it is to be left out.
  bool Take(char* byte);
  /// Waits for what the last operation, which gave `result`, wants. False where it has failed, or
  /// the client is silent for `patience`, or the deadline has passed.
  bool WaitAfter(ssize_t result, short events, std::chrono::milliseconds patience, Time deadline);

  const int socket_;
  const bool is_plain_;
  const std::unique_ptr<SSL, FreeSsl> ssl_;
  Time read_deadline_;
  Time write_deadline_ = {};  ///< from the first write on
  size_t bytes_left_;
  std::string buffer_;  ///< read, but not asked for yet
  size_t taken_ = 0;    ///< of it
  /// Characters at the beginning of this line that are those of "Range:"; -1: others came first.
  int range_matched_ = 0;
};

}  // namespace ziggurat

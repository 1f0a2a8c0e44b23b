// A running `ziggurat serve`, and what can be seen of it from outside.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/security/credentials.h>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/e2e/child_process.h"
#include "tests/support/poll.h"
#include "ziggurat/v1/ziggurat.grpc.pb.h"

namespace ziggurat::e2e {

/// The samples of a /metrics page: `name{label="value",...}` as written there -> value.
using MetricSamples = std::map<std::string, double, std::less<>>;
MetricSamples ParseMetrics(std::string_view page);

class Daemon {
 public:
  struct Options {
    std::filesystem::path model = NeedleLlama();
    std::string dtype = "f32";  ///< empty: the daemon's choice
    std::string kv_cache_memory = "64MiB";
    std::string listen = "127.0.0.1:0";
    std::string http = "127.0.0.1:0";
    std::vector<std::string> flags = {};  ///< more of them
    absl::Duration ready_timeout = absl::Seconds(120);
  };

  /// Starts a daemon on free ports and waits for its `ready` line. The error says how it ended and
  /// what it wrote.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const Options& options);
  ~Daemon() = default;  // kills what still runs

  pid_t pid() const { return process_->pid(); }
  int grpc_port() const { return grpc_port_; }
  int http_port() const { return http_port_; }
  std::string grpc_address() const;
  std::string http_address() const;
  v1::Ziggurat::StubInterface& stub() { return *stub_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  /// A connection that shares nothing with the others.
  std::shared_ptr<grpc::Channel> NewChannel(
      const std::shared_ptr<grpc::ChannelCredentials>& credentials =
          grpc::InsecureChannelCredentials()) const;

  v1::GetCacheResponse GetCache();
  v1::GetModelResponse GetModel();
  std::vector<int32_t> Tokenize(const std::string& text, bool add_special_tokens = false);
  /// Status code and body of a GET; 0 where nothing answers.
  std::pair<int, std::string> HttpGet(const std::string& path) const;
  MetricSamples Metrics() const;

  /// What it has logged, and the lines of level error or critical.
  std::string log() const { return process_->stderr_text(); }
  std::vector<std::string> LoggedErrors() const;
  bool is_running() { return !process_->Wait(absl::ZeroDuration()).has_value(); }
  /// Whether the binary was built with a sanitizer, which changes what memory means.
  bool is_sanitized() const;

  ChildProcess& process() { return *process_; }
  /// SIGTERM, then its exit code; nullopt where it does not end in time.
  std::optional<int> Stop(absl::Duration timeout = absl::Seconds(60));

 private:
  Daemon() = default;

  std::unique_ptr<ChildProcess> process_;
  int grpc_port_ = 0;
  int http_port_ = 0;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Ziggurat::StubInterface> stub_;
};

/// Polls until nothing is used, reserved, running or waiting. The last look at the cache.
v1::GetCacheResponse WaitUntilEmpty(Daemon& daemon, absl::Duration timeout = absl::Seconds(10));

}  // namespace ziggurat::e2e

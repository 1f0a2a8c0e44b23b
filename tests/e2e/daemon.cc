#include "tests/e2e/daemon.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <csignal>
#include <regex>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "httplib.h"

namespace ziggurat::e2e {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(30);

void SetTimeout(grpc::ClientContext& context) {
  context.set_deadline(absl::ToChronoTime(absl::Now() + kCallTimeout));
}

/// Both ports of the line that starts with "ready"; false while it is not there as a whole.
bool ParseReadyLine(const std::string& text, int* grpc_port, int* http_port) {
  static const std::regex kReady(
      R"((^|\n)ready[^\n]*grpc[^\n]*?:(\d+)[^\n]*http[^\n]*?:(\d+)[^\n]*\n)");
  std::smatch match;
  if (!std::regex_search(text, match, kReady)) return false;
  return absl::SimpleAtoi(match[2].str(), grpc_port) && absl::SimpleAtoi(match[3].str(), http_port);
}

template <typename Request, typename Response, typename Method>
Response CallOrComplain(v1::Ziggurat::StubInterface& stub, const Request& request, Method method,
                        const char* name) {
  grpc::ClientContext context;
  SetTimeout(context);
  Response response;
  const grpc::Status status = (stub.*method)(&context, request, &response);
  if (!status.ok()) {
    // The caller's assertions fail on the empty response; this line says why.
    std::fprintf(stderr, "%s: code %d, %s\n", name, status.error_code(),
                 status.error_message().c_str());
  }
  return response;
}

}  // namespace

MetricSamples ParseMetrics(std::string_view page) {
  MetricSamples samples;
  const std::string text(page);
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (line.front() == '#') continue;
    const size_t space = line.rfind(' ');
    double value = 0;
    if (space == absl::string_view::npos || !absl::SimpleAtod(line.substr(space + 1), &value)) {
      continue;
    }
    samples.emplace(line.substr(0, space), value);
  }
  return samples;
}

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const Options& options) {
  std::vector<std::string> argv = {Binary(),   "serve",        "--model", options.model,
                                   "--listen", options.listen, "--http",  options.http};
  if (!options.kv_cache_memory.empty()) {
    argv.insert(argv.end(), {"--kv-cache-memory", options.kv_cache_memory});
  }
  if (!options.dtype.empty()) argv.insert(argv.end(), {"--dtype", options.dtype});
  if (const std::string device = Device(); !device.empty()) {
    argv.insert(argv.end(), {"--device", device});
  }
  argv.insert(argv.end(), options.flags.begin(), options.flags.end());

  auto process = ChildProcess::Start(std::move(argv));
  if (!process.ok()) return process.status();
  auto daemon = std::unique_ptr<Daemon>(new Daemon());
  daemon->process_ = *std::move(process);
  const absl::Time deadline = absl::Now() + options.ready_timeout;
  while (
      !ParseReadyLine(daemon->process_->stdout_text(), &daemon->grpc_port_, &daemon->http_port_)) {
    const std::optional<int> exit_code = daemon->process_->Wait(absl::Milliseconds(5));
    if (!exit_code.has_value() && absl::Now() < deadline) continue;
    return absl::UnavailableError(absl::StrCat(
        exit_code.has_value() ? absl::StrCat("exited with ", *exit_code) : "no ready line in time",
        "\nstdout: ", daemon->process_->stdout_text(),
        "\nstderr: ", daemon->process_->stderr_text()));
  }
  daemon->channel_ = daemon->NewChannel();
  daemon->stub_ = v1::Ziggurat::NewStub(daemon->channel_);
  return daemon;
}

std::string Daemon::grpc_address() const { return absl::StrCat("127.0.0.1:", grpc_port_); }
std::string Daemon::http_address() const { return absl::StrCat("127.0.0.1:", http_port_); }

std::shared_ptr<grpc::Channel> Daemon::NewChannel(
    const std::shared_ptr<grpc::ChannelCredentials>& credentials) const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(grpc_address(), credentials, arguments);
}

v1::GetCacheResponse Daemon::GetCache() {
  return CallOrComplain<v1::GetCacheRequest, v1::GetCacheResponse>(
      *stub_, {}, &v1::Ziggurat::StubInterface::GetCache, "GetCache");
}

v1::GetModelResponse Daemon::GetModel() {
  return CallOrComplain<v1::GetModelRequest, v1::GetModelResponse>(
      *stub_, {}, &v1::Ziggurat::StubInterface::GetModel, "GetModel");
}

std::vector<int32_t> Daemon::Tokenize(const std::string& text, bool add_special_tokens) {
  v1::TokenizeRequest request;
  request.set_text(text);
  request.set_add_special_tokens(add_special_tokens);
  const auto response = CallOrComplain<v1::TokenizeRequest, v1::TokenizeResponse>(
      *stub_, request, &v1::Ziggurat::StubInterface::Tokenize, "Tokenize");
  return {response.token_ids().begin(), response.token_ids().end()};
}

std::pair<int, std::string> Daemon::HttpGet(const std::string& path) const {
  httplib::Client client("127.0.0.1", http_port_);
  client.set_connection_timeout(5);
  client.set_read_timeout(10);
  const httplib::Result result = client.Get(path.c_str());
  if (!result) return {0, httplib::to_string(result.error())};
  return {result->status, result->body};
}

MetricSamples Daemon::Metrics() const { return ParseMetrics(HttpGet("/metrics").second); }

std::vector<std::string> Daemon::LoggedErrors() const {
  // "2025-11-20T13:55:01.123Z error request-7: ..."
  static const std::regex kLevel(R"(^\S+ \[?(error|critical)\]? )");
  std::vector<std::string> errors;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(log(), '\n'))) {
    if (std::regex_search(line, kLevel)) errors.push_back(line);
  }
  return errors;
}

bool Daemon::is_sanitized() const {
  const std::string maps = ReadFile(absl::StrCat("/proc/", pid(), "/maps"));
  return absl::StrContains(maps, "libasan") || absl::StrContains(maps, "libtsan");
}

std::optional<int> Daemon::Stop(absl::Duration timeout) {
  process_->Signal(SIGTERM);
  return process_->Wait(timeout);
}

v1::GetCacheResponse WaitUntilEmpty(Daemon& daemon, absl::Duration timeout) {
  v1::GetCacheResponse cache;
  PollUntil(timeout, [&] {
    cache = daemon.GetCache();
    return cache.total_blocks() > 0 && cache.used_blocks() == 0 && cache.reserved_blocks() == 0 &&
           cache.running() == 0 && cache.waiting() == 0;
  });
  return cache;
}

}  // namespace ziggurat::e2e

#include "server/log.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/stubs/logging.h"
#include "grpc/support/log.h"
#include "server/port_failure.h"
#include "server/printable.h"
#include "spdlog/pattern_formatter.h"
#include "spdlog/sinks/base_sink.h"
#include "spdlog/spdlog.h"

namespace ziggurat {
namespace {

// gRPC writes to stderr in a form of its own. What it calls an error is often a client's, or is
// reported by us as well.
void LogForGrpc(gpr_log_func_args* line) {
  const bool is_error = line->severity == GPR_LOG_SEVERITY_ERROR;
  spdlog::log(is_error ? spdlog::level::warn : spdlog::level::debug, "grpc: {}", line->message);
  // gRPC stops taking connections then, and tells so by its log alone.
  if (is_error && absl::StartsWith(line->message, "Failed accept4")) {
    ReportPortFailure(absl::StrCat("gRPC: ", line->message));
  }
}

// So does protobuf, of messages that are none; their senders are told.
void LogForProtobuf(google::protobuf::LogLevel level, const char* /*file*/, int /*line*/,
                    const std::string& message) {
  const bool is_fatal = level == google::protobuf::LOGLEVEL_FATAL;
  spdlog::log(is_fatal ? spdlog::level::err : spdlog::level::debug, "protobuf: {}", message);
}

// A message is one line, whatever file or client gave its words.
class OneLineFormatter : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& line) override {
    const std::string text = Printable({message.payload.data(), message.payload.size()});
    spdlog::details::log_msg printable = message;
    printable.payload = text;
    pattern_.format(printable, line);
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<OneLineFormatter>();
  }

 private:
  spdlog::pattern_formatter pattern_{"%Y-%m-%dT%H:%M:%S.%eZ %l %v", spdlog::pattern_time_type::utc};
};

class DescriptorSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit DescriptorSink(int descriptor) : descriptor_(descriptor) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (lines_lost_ > 0) {
      const std::string text = absl::StrCat("lines left out here, for want of room: ", lines_lost_);
      spdlog::details::log_msg notice = message;
      notice.level = spdlog::level::warn;
      notice.payload = text;
      if (Write(notice)) lines_lost_ = 0;
    }
    if (lines_lost_ > 0 || !Write(message)) ++lines_lost_;
  }
  void flush_() override {}

  /// False: there is no room for it now, in the pipe or on the disk.
  bool Write(const spdlog::details::log_msg& message) {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    if (line.size() > PIPE_BUF) {
      line.resize(PIPE_BUF);
      line[PIPE_BUF - 1] = '\n';
    }
    pollfd file = {descriptor_, POLLOUT, 0};
    if (poll(&file, 1, 0) <= 0) return false;
    ssize_t written = 0;
    do {
      written = write(descriptor_, line.data(), line.size());
    } while (written < 0 && errno == EINTR);
    return written == static_cast<ssize_t>(line.size());
  }

  const int descriptor_;
  int64_t lines_lost_ = 0;
};

}  // namespace

std::shared_ptr<spdlog::sinks::sink> MakeLogSink(int descriptor) {
  auto sink = std::make_shared<DescriptorSink>(descriptor);
  sink->set_formatter(std::make_unique<OneLineFormatter>());
  return sink;
}

absl::StatusOr<spdlog::level::level_enum> ParseLogLevel(std::string_view text) {
  constexpr std::pair<std::string_view, spdlog::level::level_enum> kLevels[] = {
      {"trace", spdlog::level::trace}, {"debug", spdlog::level::debug},
      {"info", spdlog::level::info},   {"warn", spdlog::level::warn},
      {"error", spdlog::level::err},   {"off", spdlog::level::off},
  };
  for (const auto& [name, level] : kLevels) {
    if (text == name) return level;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--log-level is '", std::string(text), "': must be trace, debug, info, warn, error or off"));
}

void SetUpLogging(spdlog::level::level_enum level) {
  auto logger = std::make_shared<spdlog::logger>("ziggurat", MakeLogSink(STDERR_FILENO));
  logger->set_level(level);
  spdlog::set_default_logger(std::move(logger));
  gpr_set_log_function(LogForGrpc);
  google::protobuf::SetLogHandler(LogForProtobuf);
}

}  // namespace ziggurat

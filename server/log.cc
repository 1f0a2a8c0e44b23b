#include "server/log.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "grpc/support/log.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace ziggurat {
namespace {

// gRPC writes to stderr in a form of its own. What it calls an error is often a client's, or is
// reported by us as well.
void LogForGrpc(gpr_log_func_args* line) {
  const bool is_error = line->severity == GPR_LOG_SEVERITY_ERROR;
  spdlog::log(is_error ? spdlog::level::warn : spdlog::level::debug, "grpc: {}", line->message);
}

}  // namespace

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
  auto logger = std::make_shared<spdlog::logger>("ziggurat",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %l %v", spdlog::pattern_time_type::utc);
  logger->set_level(level);
  spdlog::set_default_logger(std::move(logger));
  gpr_set_log_function(LogForGrpc);
}

}  // namespace ziggurat

// Logging: one logger, to stderr, so that stdout stays for what a program reads.
#pragma once

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "spdlog/common.h"
#include "spdlog/formatter.h"

namespace ziggurat {

/// "trace", "debug", "info", "warn", "error", "off". INVALID_ARGUMENT otherwise.
absl::StatusOr<spdlog::level::level_enum> ParseLogLevel(std::string_view text);

/// Writes the time in UTC, the level, and the message on one line, see Printable.
std::unique_ptr<spdlog::formatter> MakeLogFormatter();

/// Makes spdlog's default logger write to stderr, with the time in UTC, and gRPC's
/// lines go through it. Once, at start.
void SetUpLogging(spdlog::level::level_enum level);

/// Whether gRPC has stopped taking connections at a port, as it does for good once none can be
/// taken, for want of file descriptors say. It tells so by its log alone. From then on the process
/// has a SIGTERM pending, too: see TerminationSignals.
bool HasPortFailed();

}  // namespace ziggurat

// Logging: one logger, to stderr, so that stdout stays for what a program reads. No thread waits
// for its reader.
#pragma once

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "spdlog/common.h"
#include "spdlog/sinks/sink.h"

namespace ziggurat {

/// "trace", "debug", "info", "warn", "error", "off". INVALID_ARGUMENT otherwise.
absl::StatusOr<spdlog::level::level_enum> ParseLogLevel(std::string_view text);

/// Writes lines to an open file or pipe, which stays its owner's: the time in UTC, the level, and
/// the message on one line, see Printable. Nobody waits for a pipe that its reader leaves full,
/// since who logs has answers to send: such lines are left out, and the next one that finds room
/// says how many. A line is cut at 4 KiB (PIPE_BUF), for which a pipe has room or has not.
std::shared_ptr<spdlog::sinks::sink> MakeLogSink(int descriptor);

/// Makes spdlog's default logger write to stderr, with the time in UTC, and gRPC's
/// lines go through it. Once, at start.
void SetUpLogging(spdlog::level::level_enum level);

}  // namespace ziggurat

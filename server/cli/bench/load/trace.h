// Recorded arrivals: when requests came to somebody's service, and how long they were.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/cli/bench/load/lengths.h"

namespace ziggurat::bench {

/// From the first arrival to the last, scaled or not: three years.
constexpr double kLongestTraceSeconds = 1e8;

struct TraceEntry {
  double arrival_seconds = 0;  ///< after the first one
  Lengths lengths;
};

/// Reads either form, in the order of arrival:
///   Azure's CSV         TIMESTAMP,ContextTokens,GeneratedTokens
///   Mooncake's JSONL    {"timestamp": milliseconds, "input_length": n, "output_length": n, ...}
/// Blank lines are skipped. INVALID_ARGUMENT and NOT_FOUND name the file and, where one is to
/// blame, its line.
absl::StatusOr<std::vector<TraceEntry>> ReadTrace(const std::string& path);

/// The same of a text that came from `path`.
absl::StatusOr<std::vector<TraceEntry>> ParseTrace(const std::string& path,
                                                   std::string_view content);

}  // namespace ziggurat::bench

// What became of one request.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/cli/bench/load/workload.h"

namespace ziggurat::bench {

enum class Outcome {
  kDone,
  kRefused,    ///< the daemon would not take it
  kFailed,     ///< it was taken and did not end well, its timeout included
  kCancelled,  ///< the run was broken off
};

/// A message that brought tokens. Nearly always one: the daemon merges what a client, or the
/// machine under it, is too slow to take.
struct TokenArrival {
  double seconds = 0;
  int32_t tokens = 0;
};

/// Times are seconds after the start of the run.
struct RequestRecord {
  PlannedRequest plan;
  Outcome outcome = Outcome::kCancelled;
  std::string error_code;  ///< "RESOURCE_EXHAUSTED", ...; empty: none
  std::string error;
  /// When it was due: its arrival, or in a closed loop when it was sent.
  double due_seconds = 0;
  double sent_seconds = 0;
  double end_seconds = 0;
  std::vector<TokenArrival> arrivals;
  // Of those that are done, as the daemon counted them.
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  double queue_seconds = 0;  ///< from arrival to admission
  uint64_t cache_bytes = 0;  ///< held at the end
  double compression_ratio = 0;
  std::string compression;

  /// From when it was due to its first token; only where one came.
  double ttft() const { return arrivals.front().seconds - due_seconds; }
  double end_to_end() const { return end_seconds - due_seconds; }
  int64_t arrived_tokens() const;
  /// The time between each token and the one before. Tokens that came in one message came
  /// together: the first of them waited, the others did not.
  std::vector<double> InterTokenGaps() const;
  double MeanGap() const;  ///< 0 for fewer than two tokens
};

}  // namespace ziggurat::bench

// Which requests are made, one after another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "server/cli/bench/load/lengths.h"
#include "server/cli/bench/load/random.h"
#include "server/cli/bench/load/trace.h"

namespace ziggurat::bench {

/// A request that is to be made.
struct PlannedRequest {
  size_t index = 0;
  double arrival_seconds = 0;  ///< after the start; 0 in a closed loop
  Lengths lengths;
  bool cut = false;  ///< it was longer than the context
};

struct WorkloadOptions {
  LengthDistribution input = LengthDistribution::Fixed(1);
  LengthDistribution output = LengthDistribution::Fixed(1);
  /// Arrivals per second, the time between two of which is exponential; 0: a closed loop, in which
  /// requests do not arrive but are taken.
  double rate = 0;
  uint64_t seed = 0;
  /// Unless empty: arrivals and lengths, in the place of all of the above.
  std::vector<TraceEntry> trace = {};
  double time_scale = 1;                ///< a factor to the arrivals of the trace
  double length_scale = 1;              ///< a factor to its lengths
  std::optional<size_t> requests = {};  ///< most of them; a trace ends by itself
  ContextLimits limits;
};

/// The requests in their order. The same options bring the same requests, whatever the daemon does
/// with them. Not thread-safe.
class Workload {
 public:
  explicit Workload(WorkloadOptions options);

  /// nullopt where there are no more.
  std::optional<PlannedRequest> Next();
  /// How many there are; nullopt: no end.
  std::optional<size_t> size() const;

 private:
  Lengths NextLengths();
  double NextArrival();

  WorkloadOptions options_;
  Random random_;
  size_t next_ = 0;
  double clock_ = 0;
};

/// Ids of random tokens: what is measured depends on lengths, and no prompt has a prefix of
/// another. Tokens that end a text are left out.
class PromptMaker {
 public:
  PromptMaker(int64_t vocab_size, const std::vector<int32_t>& left_out, uint64_t seed);

  /// The prompt of one request: the same for the same seed and index. Thread-safe.
  std::vector<int32_t> Make(size_t index, int64_t tokens) const;

 private:
  std::vector<int32_t> ids_;
  uint64_t seed_;
};

}  // namespace ziggurat::bench

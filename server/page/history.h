// Throughput, latency and queue of the last minutes, second by second: what the page's lines show.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "nlohmann/json_fwd.hpp"
#include "scheduler/metrics.h"
#include "scheduler/request.h"

namespace ziggurat {

/// The `quantile` (0 to 1) of observations counted in buckets, linear within a bucket as
/// Prometheus' histogram_quantile has it. Absent where nothing was observed.
///   counts  [bounds and one more]: observations between a bound and the one before
std::optional<double> QuantileOfCounts(absl::Span<const double> bounds,
                                       absl::Span<const double> counts, double quantile);

/// A ring of points, one for each call of Add. Any thread.
class History {
 public:
  static constexpr size_t kPoints = 300;
  /// Latencies are those of so many points together: single seconds have few observations.
  static constexpr size_t kLatencyPoints = 10;

  /// `totals` of the same Metrics each time, `now` later each time: rates are by it. `wall` is what
  /// the point is shown under, since a clock on the wall may be set back or forth.
  void Add(const MetricTotals& totals, absl::Time wall, SteadyTime now);
  /// Number of the newest point, counted from 1; 0 where there is none.
  uint64_t newest() const;
  /// The last `count` points, a list for each quantity, oldest first. docs/page.md names them.
  nlohmann::ordered_json ToJson(size_t count) const;

 private:
  struct Point {
    absl::Time wall;
    double running, waiting, used_blocks, reserved_blocks;
    double prompt_rate, generated_rate, finished_rate, refused_rate;  ///< per second
    std::optional<double> first_token_p50, first_token_p95;           ///< seconds
    std::optional<double> inter_token_p50, inter_token_p95;
  };

  mutable std::mutex mutex_;
  uint64_t newest_ = 0;
  SteadyTime newest_at_;
  std::deque<Point> points_;
  std::deque<MetricTotals> totals_;  ///< of the last kLatencyPoints points
};

}  // namespace ziggurat

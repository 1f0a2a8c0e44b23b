#include "server/page/history.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "nlohmann/json.hpp"

namespace ziggurat {
namespace {

using Json = nlohmann::ordered_json;

double FinishedOf(const MetricTotals& totals) {
  double sum = 0;
  for (const auto& [reason, count] : totals.finished) sum += count;
  return sum;
}

std::vector<double> Difference(absl::Span<const double> now, absl::Span<const double> before) {
  std::vector<double> counts(now.begin(), now.end());
  for (size_t i = 0; i < std::min(now.size(), before.size()); ++i) counts[i] -= before[i];
  return counts;
}

double Round(double value, double steps) { return std::round(value * steps) / steps; }

Json Seconds(const std::optional<double>& seconds) {
  return seconds.has_value() ? Json(Round(*seconds, 1e6)) : Json();
}

}  // namespace

std::optional<double> QuantileOfCounts(absl::Span<const double> bounds,
                                       absl::Span<const double> counts, double quantile) {
  double total = 0;
  for (const double count : counts) total += count;
  if (total <= 0) return std::nullopt;
  const double rank = quantile * total;
  double before = 0;
  for (size_t i = 0; i < bounds.size() && i < counts.size(); ++i) {
    if (counts[i] > 0 && before + counts[i] >= rank) {
      const double low = i == 0 ? 0 : bounds[i - 1];
      return low + (bounds[i] - low) * (rank - before) / counts[i];
    }
    before += counts[i];
  }
  return bounds.empty() ? 0 : bounds.back();  // beyond the last bound nothing more is known
}

void History::Add(const MetricTotals& totals, absl::Time wall, SteadyTime now) {
  std::lock_guard lock(mutex_);
  const MetricTotals& last = totals_.empty() ? totals : totals_.back();
  const MetricTotals& first = totals_.empty() ? totals : totals_.front();
  const double seconds =
      points_.empty() ? 1 : std::max(1e-3, std::chrono::duration<double>(now - newest_at_).count());
  const auto rate = [&](double value, double before) { return (value - before) / seconds; };
  const auto quantile = [&](std::vector<double> MetricTotals::*counts, double q) {
    return QuantileOfCounts(Metrics::LatencyBounds(), Difference(totals.*counts, first.*counts), q);
  };
  points_.push_back({.wall = wall,
                     .running = totals.running,
                     .waiting = totals.waiting,
                     .used_blocks = totals.used_blocks,
                     .reserved_blocks = totals.reserved_blocks,
                     .prompt_rate = rate(totals.prompt_tokens, last.prompt_tokens),
                     .generated_rate = rate(totals.generated_tokens, last.generated_tokens),
                     .finished_rate = rate(FinishedOf(totals), FinishedOf(last)),
                     .refused_rate = rate(totals.refused, last.refused),
                     .first_token_p50 = quantile(&MetricTotals::first_token_counts, 0.5),
                     .first_token_p95 = quantile(&MetricTotals::first_token_counts, 0.95),
                     .inter_token_p50 = quantile(&MetricTotals::inter_token_counts, 0.5),
                     .inter_token_p95 = quantile(&MetricTotals::inter_token_counts, 0.95)});
  totals_.push_back(totals);
  if (points_.size() > kPoints) points_.pop_front();
  if (totals_.size() > kLatencyPoints) totals_.pop_front();
  newest_at_ = now;
  ++newest_;
}

uint64_t History::newest() const {
  std::lock_guard lock(mutex_);
  return newest_;
}

Json History::ToJson(size_t count) const {
  std::lock_guard lock(mutex_);
  const size_t first = points_.size() - std::min(count, points_.size());
  const auto list = [&](const auto& value_of) {
    Json values = Json::array();
    for (size_t i = first; i < points_.size(); ++i) values.push_back(value_of(points_[i]));
    return values;
  };
  const auto numbers = [&](double Point::*member, double steps) {
    return list([&](const Point& point) { return Round(point.*member, steps); });
  };
  const auto seconds = [&](std::optional<double> Point::*member) {
    return list([&](const Point& point) { return Seconds(point.*member); });
  };
  return {{"newest", newest_},
          {"time_ms", list([](const Point& point) { return absl::ToUnixMillis(point.wall); })},
          {"running", numbers(&Point::running, 1)},
          {"waiting", numbers(&Point::waiting, 1)},
          {"used_blocks", numbers(&Point::used_blocks, 1)},
          {"reserved_blocks", numbers(&Point::reserved_blocks, 1)},
          {"prompt_tokens_per_second", numbers(&Point::prompt_rate, 10)},
          {"generated_tokens_per_second", numbers(&Point::generated_rate, 10)},
          {"finished_per_second", numbers(&Point::finished_rate, 100)},
          {"refused_per_second", numbers(&Point::refused_rate, 100)},
          {"first_token_p50_seconds", seconds(&Point::first_token_p50)},
          {"first_token_p95_seconds", seconds(&Point::first_token_p95)},
          {"inter_token_p50_seconds", seconds(&Point::inter_token_p50)},
          {"inter_token_p95_seconds", seconds(&Point::inter_token_p95)}};
}

}  // namespace ziggurat

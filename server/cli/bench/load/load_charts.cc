#include "server/cli/bench/load/load_charts.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "server/cli/bench/plot.h"

namespace ziggurat::bench {
namespace {

constexpr size_t kMostPoints = 400;  // of a line; more are not seen

// Of which share of the values is no more than x.
PlotSeries Cumulative(std::string name, size_t color, std::vector<double> values) {
  PlotSeries series{.name = std::move(name), .color = color};
  if (values.empty()) return series;
  std::sort(values.begin(), values.end());
  series.points.push_back({values.front(), 0});
  const size_t points = std::min(kMostPoints, values.size());
  for (size_t i = 1; i <= points; ++i) {
    const size_t rank = i * values.size() / points;
    series.points.push_back(
        {values[rank - 1], static_cast<double>(rank) / static_cast<double>(values.size())});
  }
  return series;
}

// A panel of cumulative distributions, from what all but one in a hundred take to the longest and
// the goal.
PlotPanel LatencyPanel(std::string title, std::vector<PlotSeries> series, double goal,
                       const std::string& goal_name) {
  double low = goal;
  double high = goal;
  for (const PlotSeries& one : series) {
    for (const PlotPoint& point : one.points) {
      high = std::max(high, point.x);
      if (point.x > 0 && point.y >= 0.01) low = std::min(low, point.x);
    }
  }
  low = std::max({low, high / 2e4, 1e-6});
  const double floor = 1 / RoundUp(1 / low);
  return {.title = std::move(title),
          .x = {.title = "",
                .low = std::min(floor, low),
                .high = RoundUp(high * 1.05),
                .logarithmic = true,
                .unit = PlotUnit::kSeconds},
          .y = {.title = "", .low = 0, .high = 1, .unit = PlotUnit::kPercent},
          .series = std::move(series),
          .marks = {{goal, absl::StrFormat("%s %g s", goal_name, goal)}}};
}

// The count that falls into each bin, per second, in the middle of the bin.
class Rates {
 public:
  Rates(double duration, double bin)
      : bin_(bin), counts_(static_cast<size_t>(std::max(1.0, std::round(duration / bin)))) {}

  void Add(double seconds, double count) {
    const auto bin = static_cast<size_t>(std::max(0.0, seconds / bin_));
    counts_[std::min(bin, counts_.size() - 1)] += count;
  }
  PlotSeries Series(std::string name, size_t color, bool dashed, double duration) const {
    PlotSeries series{.name = std::move(name), .color = color, .dashed = dashed};
    for (size_t i = 0; i < counts_.size(); ++i) {
      const double begin = static_cast<double>(i) * bin_;
      // The last one lasts to the end: half a bin to one and a half.
      const double width = i + 1 < counts_.size() ? bin_ : std::max(duration - begin, bin_ / 2);
      series.points.push_back({begin + width / 2, counts_[i] / width});
    }
    return series;
  }

 private:
  double bin_;
  std::vector<double> counts_;
};

PlotPanel OverTime(std::string title, std::vector<PlotSeries> series, double duration) {
  double high = 0;
  for (const PlotSeries& one : series) {
    for (const PlotPoint& point : one.points) high = std::max(high, point.y);
  }
  // A round number of the steps that the axis will have.
  const double step = RoundUp((high > 0 ? high : 1) / 8);
  high = step * std::max(1.0, std::ceil(high / step * 1.02));
  return {.title = std::move(title),
          .x = {.title = "seconds", .low = 0, .high = std::max(duration, 1e-3)},
          .y = {.title = "", .low = 0, .high = high},
          .series = std::move(series)};
}

/// How many seconds a point of DrawThroughput stands for: a round number, so that there are 20 to
/// 50 of them; fewer in runs of less than 5 s.
double ThroughputBin(double duration_seconds) {
  return std::max(0.25, RoundUp(duration_seconds / 50));
}

}  // namespace

std::string DrawLatency(const std::vector<RequestRecord>& records, const Goals& goals,
                        const std::string& subtitle) {
  std::vector<double> ttft, end_to_end, itl, mean_itl, worst_itl;
  for (const RequestRecord& record : records) {
    if (record.outcome != Outcome::kDone || record.arrivals.empty()) continue;
    ttft.push_back(record.ttft());
    end_to_end.push_back(record.end_to_end());
    const std::vector<double> gaps = record.InterTokenGaps();
    if (gaps.empty()) continue;
    itl.insert(itl.end(), gaps.begin(), gaps.end());
    mean_itl.push_back(record.MeanGap());
    worst_itl.push_back(*std::max_element(gaps.begin(), gaps.end()));
  }
  return DrawPlot("Share of requests and tokens that took no longer", subtitle,
                  {LatencyPanel("From arrival",
                                {Cumulative("first token (TTFT)", 0, std::move(ttft)),
                                 Cumulative("end to end", 1, std::move(end_to_end))},
                                goals.ttft_seconds, "TTFT goal"),
                   LatencyPanel("Between tokens",
                                {Cumulative("each token (ITL)", 0, std::move(itl)),
                                 Cumulative("mean of a request", 2, std::move(mean_itl)),
                                 Cumulative("worst of a request", 1, std::move(worst_itl))},
                                goals.itl_seconds, "ITL goal")});
}

std::string DrawThroughput(const std::vector<RequestRecord>& records, const LoadSummary& summary,
                           const std::string& subtitle) {
  const double duration = summary.duration_seconds;
  const double bin = ThroughputBin(duration);
  Rates output(duration, bin), input(duration, bin), arrived(duration, bin), ended(duration, bin);
  for (const RequestRecord& record : records) {
    arrived.Add(record.due_seconds, 1);
    for (const TokenArrival& arrival : record.arrivals) output.Add(arrival.seconds, arrival.tokens);
    if (!record.arrivals.empty()) {
      input.Add(record.arrivals.front().seconds, static_cast<double>(record.plan.lengths.input));
    }
    if (record.outcome == Outcome::kDone) ended.Add(record.end_seconds, 1);
  }
  return DrawPlot(
      absl::StrFormat("Throughput over time, in steps of %g s", bin), subtitle,
      {OverTime("Output tokens/s", {output.Series("as they come", 0, false, duration)}, duration),
       OverTime("Input tokens/s", {input.Series("when the first token comes", 2, false, duration)},
                duration),
       OverTime(
           "Requests/s",
           {arrived.Series("due", 1, true, duration), ended.Series("done", 0, false, duration)},
           duration)});
}

std::string DrawCacheOverTime(const CacheSamples& cache, const LoadSummary& summary,
                              const std::string& subtitle) {
  PlotSeries used{.name = "used", .color = 0};
  PlotSeries committed{.name = "used and reserved", .color = 1, .dashed = true};
  PlotSeries running{.name = "running", .color = 0};
  PlotSeries waiting{.name = "waiting", .color = 3, .dashed = true};
  const double total = static_cast<double>(std::max<uint64_t>(cache.total_blocks, 1));
  const size_t stride = cache.samples.size() / (4 * kMostPoints) + 1;
  for (size_t i = 0; i < cache.samples.size(); i += stride) {
    const CacheSample& sample = cache.samples[i];
    const double used_blocks = static_cast<double>(sample.used_blocks);
    const double reserved_blocks = static_cast<double>(sample.reserved_blocks);
    used.points.push_back({sample.seconds, used_blocks / total});
    committed.points.push_back({sample.seconds, (used_blocks + reserved_blocks) / total});
    running.points.push_back({sample.seconds, static_cast<double>(sample.running)});
    waiting.points.push_back({sample.seconds, static_cast<double>(sample.waiting)});
  }
  PlotPanel pool = OverTime(absl::StrFormat("Of the pool's %d blocks", cache.total_blocks),
                            {std::move(used), std::move(committed)}, summary.duration_seconds);
  pool.y.unit = PlotUnit::kPercent;
  pool.y.high = std::min(1.0, RoundUp(pool.y.high));
  return DrawPlot("KV cache over time", subtitle,
                  {std::move(pool), OverTime("Requests", {std::move(running), std::move(waiting)},
                                             summary.duration_seconds)});
}

}  // namespace ziggurat::bench

#include "server/cli/plan/capacity.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <queue>

#include "server/cli/bench/load/distribution.h"

namespace ziggurat::plan {
namespace {

constexpr int kDraws = 20;
/// Requests whose lengths are looked at.
constexpr size_t kDescribed = 20000;
/// Requests by which what runs is weighed.
constexpr int kSamples = 3000;
/// Requests that are forecast for one figure, so that many long ones do not take minutes.
constexpr int kForecasts = 6000;
/// So many requests in a row that can never fit: nothing of the traffic fits.
constexpr int kHopeless = 200;

/// Another draw of the same traffic. A trace is what it is, and begins again at its end.
bench::Workload Draw(const Traffic& traffic, uint64_t draw) {
  bench::WorkloadOptions options = traffic.workload;
  options.seed += draw;
  options.rate = 0;
  if (!options.trace.empty()) {
    const size_t first = draw * options.trace.size() / kDraws % options.trace.size();
    std::rotate(options.trace.begin(), options.trace.begin() + static_cast<ptrdiff_t>(first),
                options.trace.end());
  }
  return bench::Workload(std::move(options));
}

/// The next request; those of a trace again and again.
class Stream {
 public:
  Stream(const Traffic& traffic, uint64_t draw)
      : traffic_(traffic), draw_(draw), workload_(Draw(traffic, draw)) {}

  bench::PlannedRequest Next() {
    std::optional<bench::PlannedRequest> request = workload_.Next();
    if (!request) {
      workload_ = Draw(traffic_, draw_);
      request = workload_.Next();
    }
    // A limit ends an answer that would be longer.
    int64_t& output = request->lengths.output;
    output = std::min<int64_t>(output, traffic_.max_tokens.value_or(output));
    return *request;
  }

 private:
  const Traffic& traffic_;
  uint64_t draw_;
  bench::Workload workload_;
};

/// What a request reserves for its answer.
int ReservedTokens(const Traffic& traffic, const bench::Lengths& lengths) {
  const int64_t room = traffic.workload.limits.context_tokens - lengths.input;
  const int64_t wanted = traffic.max_tokens.value_or(static_cast<int>(lengths.output));
  return static_cast<int>(std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, room)));
}

size_t RequestsToDescribe(const Traffic& traffic) {
  return traffic.workload.trace.empty() ? kDescribed : traffic.workload.trace.size();
}

TrafficFigures::Side SideOf(const std::vector<double>& lengths) {
  const bench::Distribution figures = bench::Describe(lengths);
  return {figures.mean, figures.p50, figures.p95, figures.p99, figures.max};
}

}  // namespace

TrafficFigures DescribeTraffic(const Traffic& traffic) {
  const size_t count = RequestsToDescribe(traffic);
  Stream stream(traffic, 0);
  std::vector<double> prompts, answers;
  TrafficFigures figures;
  for (size_t i = 0; i < count; ++i) {
    const bench::PlannedRequest request = stream.Next();
    prompts.push_back(static_cast<double>(request.lengths.input));
    answers.push_back(static_cast<double>(request.lengths.output));
    figures.reserved += ReservedTokens(traffic, request.lengths) / static_cast<double>(count);
    figures.cut_share += request.cut ? 1 / static_cast<double>(count) : 0;
  }
  figures.prompt = SideOf(prompts);
  figures.answer = SideOf(answers);
  return figures;
}

absl::StatusOr<RequestForecast> Capacity::Usual(int prompt_tokens, int answer_tokens,
                                                int reserved_tokens) {
  return ForecastRequest(*policy_, shape_, geometry_,
                         {.prompt_tokens = prompt_tokens,
                          .max_new_tokens = std::max(answer_tokens, reserved_tokens),
                          .generated_tokens = answer_tokens,
                          .lazy_share = lazy_share_});
}

absl::StatusOr<RequestForecast> Capacity::Forecast(const Traffic& traffic,
                                                   const bench::Lengths& lengths) {
  const std::pair key(static_cast<int>(lengths.input), ReservedTokens(traffic, lengths));
  if (const auto it = forecasts_.find(key); it != forecasts_.end()) return it->second;
  absl::StatusOr<RequestForecast> forecast = ForecastRequest(*policy_, shape_, geometry_,
                                                             {.prompt_tokens = key.first,
                                                              .max_new_tokens = key.second,
                                                              .generated_tokens = 0,
                                                              .lazy_share = lazy_share_});
  if (forecast.ok()) forecasts_.emplace(key, *forecast);
  return forecast;
}

absl::StatusOr<int> Capacity::FillOnce(const Traffic& traffic, uint64_t draw, size_t pool_blocks,
                                       int max_running, double* refused_share) {
  Stream stream(traffic, draw);
  size_t taken = 0;
  int running = 0, refused = 0, in_a_row = 0;
  while (running < max_running && in_a_row < kHopeless) {
    const auto forecast = Forecast(traffic, stream.Next().lengths);
    if (!forecast.ok()) return forecast.status();
    if (forecast->admitted_blocks > pool_blocks) {
      ++refused;
      ++in_a_row;
      continue;
    }
    in_a_row = 0;
    if (taken + forecast->admitted_blocks > pool_blocks) break;
    taken += forecast->settled_blocks;
    ++running;
    if (running + refused < kForecasts) continue;
    // So many say how many more would fit.
    running = static_cast<int>(std::min<double>(max_running, static_cast<double>(running) *
                                                                 static_cast<double>(pool_blocks) /
                                                                 static_cast<double>(taken)));
    break;
  }
  *refused_share = refused == 0 ? 0 : refused / static_cast<double>(refused + running);
  return running;
}

absl::StatusOr<AtOnce> Capacity::Fill(const Traffic& traffic, size_t pool_blocks, int max_running) {
  AtOnce at_once;
  int draws = kDraws;
  for (int i = 0; i < draws; ++i) {
    double refused = 0;
    const auto running = FillOnce(traffic, i, pool_blocks, max_running, &refused);
    if (!running.ok()) return running.status();
    if (i == 0) draws = std::clamp(kForecasts / std::max(1, *running), 1, kDraws);
    at_once.mean += *running;
    at_once.refused_share += refused;
    at_once.least = i == 0 ? *running : std::min(at_once.least, *running);
    at_once.most = std::max(at_once.most, *running);
  }
  at_once.mean /= draws;
  at_once.refused_share /= draws;
  const auto sustained =
      Sustain(traffic, pool_blocks, max_running, std::max(1, static_cast<int>(at_once.mean)));
  if (!sustained.ok()) return sustained.status();
  at_once.sustained = *sustained;
  return at_once;
}

absl::StatusOr<double> Capacity::Sustain(const Traffic& traffic, size_t pool_blocks,
                                         int max_running, int expected) {
  if (7 * expected > kForecasts) {  // so many take what they take in the mean
    const absl::StatusOr<Running> weighed = Weigh(traffic, pool_blocks);
    if (!weighed.ok()) return weighed.status();
    const auto blocks = static_cast<double>(pool_blocks - std::min(pool_blocks, weighed->beyond));
    return std::min<double>(max_running, blocks / std::max(1.0, weighed->mean));
  }
  struct InFlight {
    int64_t end;  // step
    size_t blocks;
    bool operator>(const InFlight& other) const { return end > other.end; }
  };
  std::priority_queue<InFlight, std::vector<InFlight>, std::greater<>> running;
  Stream stream(traffic, 0);
  size_t taken = 0;
  int64_t now = 0, counted = 0;  // steps
  double sum = 0;                // of the running, over the counted steps
  // The first requests begin together, which they never do again.
  const int warm_up = 3 * expected;
  const int requests = std::min(40 * expected, kForecasts);
  bench::Lengths next = stream.Next().lengths;
  for (int seen = 0; seen < requests;) {
    const auto forecast = Forecast(traffic, next);
    if (!forecast.ok()) return forecast.status();
    const bool never_fits = forecast->admitted_blocks > pool_blocks;
    const bool fits = taken + forecast->admitted_blocks <= pool_blocks &&
                      static_cast<int>(running.size()) < max_running;
    if (never_fits || fits) {
      if (fits) {
        running.push({now + next.output, forecast->settled_blocks});
        taken += forecast->settled_blocks;
      }
      ++seen;
      next = stream.Next().lengths;
      continue;
    }
    const InFlight first = running.top();
    if (seen > warm_up) {
      sum += static_cast<double>(running.size()) * static_cast<double>(first.end - now);
      counted += first.end - now;
    }
    now = first.end;
    taken -= first.blocks;
    running.pop();
  }
  return counted == 0 ? 0 : sum / static_cast<double>(counted);
}

absl::StatusOr<Capacity::Running> Capacity::Weigh(const Traffic& traffic, size_t most_blocks) {
  // Of those that run, as many have answers of a length as such answers are long.
  Running weighed;
  double steps = 0, square = 0;
  Stream stream(traffic, 0);
  for (int i = 0; i < kSamples; ++i) {
    const bench::Lengths lengths = stream.Next().lengths;
    const auto forecast = Forecast(traffic, lengths);
    if (!forecast.ok()) return forecast.status();
    if (forecast->admitted_blocks > most_blocks) continue;
    const auto weight = static_cast<double>(lengths.output);
    const auto blocks = static_cast<double>(forecast->settled_blocks);
    steps += weight;
    weighed.mean += weight * blocks;
    square += weight * blocks * blocks;
    weighed.beyond = std::max(weighed.beyond, forecast->admitted_blocks - forecast->settled_blocks);
  }
  if (steps == 0) return weighed;
  weighed.mean /= steps;
  weighed.deviation = std::sqrt(std::max(0.0, square / steps - weighed.mean * weighed.mean));
  return weighed;
}

absl::StatusOr<size_t> Capacity::LargestAdmitted(const Traffic& traffic) {
  std::map<int64_t, bench::Lengths, std::greater<>> by_prompt;  // of each, the longest answer
  Stream stream(traffic, 0);
  const size_t count = RequestsToDescribe(traffic);
  for (size_t i = 0; i < count; ++i) {
    const bench::Lengths lengths = stream.Next().lengths;
    const auto [it, is_new] = by_prompt.try_emplace(lengths.input, lengths);
    if (ReservedTokens(traffic, it->second) < ReservedTokens(traffic, lengths)) {
      it->second = lengths;
    }
  }
  // Those alone that no other one exceeds in both: from the longest prompt down, answers grow.
  size_t largest = 0;
  int most_reserved = 0;
  for (const auto& [prompt, lengths] : by_prompt) {
    if (ReservedTokens(traffic, lengths) <= most_reserved) continue;
    most_reserved = ReservedTokens(traffic, lengths);
    const auto forecast = Forecast(traffic, lengths);
    if (!forecast.ok()) return forecast.status();
    largest = std::max(largest, forecast->admitted_blocks);
  }
  return largest;
}

absl::StatusOr<size_t> Capacity::PoolFor(const Traffic& traffic, int requests) {
  const absl::StatusOr<Running> running =
      Weigh(traffic, /*most_blocks=*/std::numeric_limits<size_t>::max());
  if (!running.ok()) return running.status();
  const absl::StatusOr<size_t> largest = LargestAdmitted(traffic);
  if (!largest.ok()) return largest.status();
  const double spread = 2 * running->deviation * std::sqrt(requests);
  const double kept = std::ceil(requests * running->mean + spread - 1e-6);
  return std::max(*largest, running->beyond + static_cast<size_t>(kept));
}

}  // namespace ziggurat::plan

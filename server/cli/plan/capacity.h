// How many requests of some traffic run at once in a pool, by policy.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "block_manager/cache_format.h"
#include "compression/policy.h"
#include "model/model_runner.h"
#include "scheduler/forecast.h"
#include "server/cli/bench/load/workload.h"

namespace ziggurat::plan {

/// Who asks for what.
struct Traffic {
  bench::WorkloadOptions workload;  ///< lengths; arrivals do not matter here
  /// The limit that requests set, and so what they reserve; absent: exactly what they generate.
  std::optional<int> max_tokens;
};

/// Lengths of the traffic, of many requests.
struct TrafficFigures {
  struct Side {
    double mean = 0, p50 = 0, p95 = 0, p99 = 0, max = 0;
  };
  Side prompt;
  Side answer;
  double reserved = 0;   ///< mean of the tokens that requests reserve for their answers
  double cut_share = 0;  ///< of the requests, those cut to what the context holds
};
TrafficFigures DescribeTraffic(const Traffic& traffic);

/// Requests that run at once when more are waiting than fit, the next one being admitted as soon as
/// its whole plan is free.
struct AtOnce {
  /// That an idle daemon lets in when they come all at once: mean and range of several draws.
  double mean = 0;
  int least = 0;
  int most = 0;
  /// That run while it goes on like that, one step a token: fewer where lengths differ, for those
  /// with long answers stay longer.
  double sustained = 0;
  double refused_share = 0;  ///< of the requests, those that are larger than the whole pool
};

/// Forecasts of one policy, each length's once. Not thread-safe.
class Capacity {
 public:
  /// All outlive this.
  Capacity(std::shared_ptr<const Policy> policy, const ModelShape& shape,
           const CacheGeometry& geometry, double lazy_share)
      : policy_(std::move(policy)), shape_(shape), geometry_(geometry), lazy_share_(lazy_share) {}

  /// A request of that size, up to its last token. INVALID_ARGUMENT where the policy does not suit
  /// the model.
  absl::StatusOr<RequestForecast> Usual(int prompt_tokens, int answer_tokens, int reserved_tokens);

  /// In a pool of so many blocks, of at most `max_running` requests. Several draws of the traffic.
  absl::StatusOr<AtOnce> Fill(const Traffic& traffic, size_t pool_blocks, int max_running);

  /// Blocks of a pool in which `requests` run at once while it goes on, with two standard
  /// deviations of what they happen to take, and none is too large for it.
  absl::StatusOr<size_t> PoolFor(const Traffic& traffic, int requests);

 private:
  absl::StatusOr<RequestForecast> Forecast(const Traffic& traffic, const bench::Lengths& lengths);
  absl::StatusOr<int> FillOnce(const Traffic& traffic, uint64_t draw, size_t pool_blocks,
                               int max_running, double* refused_share);

  /// Of what runs while it goes on, in blocks.
  struct Running {
    double mean = 0;  ///< of a request
    double deviation = 0;
    size_t beyond = 0;  ///< the most of a plan behind what is kept of it
  };
  /// Without requests whose plans take more than `most_blocks`: those never run.
  absl::StatusOr<Running> Weigh(const Traffic& traffic, size_t most_blocks);
  /// The most blocks that a request of the traffic must find free.
  absl::StatusOr<size_t> LargestAdmitted(const Traffic& traffic);
  absl::StatusOr<double> Sustain(const Traffic& traffic, size_t pool_blocks, int max_running,
                                 int expected);

  std::shared_ptr<const Policy> policy_;
  const ModelShape& shape_;
  const CacheGeometry& geometry_;
  double lazy_share_;
  std::map<std::pair<int, int>, RequestForecast> forecasts_;  // by prompt and reserved tokens
};

}  // namespace ziggurat::plan

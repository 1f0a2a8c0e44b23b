// A plan out of what was asked for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/cli/plan/report.h"
#include "server/config.h"

namespace ziggurat::plan {

/// The largest --max-running.
constexpr int kMostRunning = 65536;

/// The flags of `ziggurat plan`, as they were given; empty: not given.
struct PlanOptions {
  ServeConfig config;  ///< model and limits
  std::string memory, kv_cache_memory, trace;
  std::string dtype = "bf16", prefill_tokens = "auto";
  std::string input_tokens = "sharegpt", output_tokens = "sharegpt";
  std::vector<std::string> policies, pod_groups;
  std::optional<int> max_tokens, clients;
  std::optional<double> rate, request_seconds;
  double length_scale = 1, lazy_share = 0, spare_percent = 5;
  uint64_t seed = 0;
};

/// INVALID_ARGUMENT: flags that make no sense. RESOURCE_EXHAUSTED: it does not fit, with every part
/// and its size.
absl::StatusOr<Plan> MakePlan(PlanOptions options);

}  // namespace ziggurat::plan

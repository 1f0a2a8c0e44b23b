// What `ziggurat plan` found, as text and as JSON.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "server/cli/plan/capacity.h"
#include "server/cli/plan/memory.h"

namespace ziggurat::plan {

/// One policy. Where it tests layers for laziness, the first figure is for none lazy and the second
/// for all of those; else the second is absent.
struct PolicyRow {
  std::string policy;   ///< as it was asked for
  std::string refusal;  ///< not empty: why it does not suit the model; nothing else is set
  RequestForecast usual;
  std::optional<RequestForecast> usual_lazy;
  AtOnce at_once;
  std::optional<AtOnce> at_once_lazy;
  size_t pool_for_clients = 0;       ///< blocks; 0: no number of clients was given
  size_t pool_for_clients_lazy = 0;  ///< 0: none was given, or no layer is tested
};

struct Plan {
  std::string model;  ///< folder
  std::string shape;  ///< in words
  std::string dtype;
  size_t memory_bytes = 0;            ///< of the machine or container; 0: not given
  bool is_pool_what_is_left = false;  ///< of memory_bytes; else its size was given
  MemoryParts memory;
  CacheGeometry geometry;
  size_t blocks = 0;
  int block_tokens = 0;  ///< that a block holds of one layer, as they are computed
  int max_running = 0;
  int max_queue = 0;
  TrafficFigures traffic;
  bench::Lengths usual;    ///< mean prompt and answer
  size_t full_blocks = 0;  ///< that `full` holds of them
  int usual_reserved = 0;
  std::optional<int> max_tokens;
  int clients = 0;  ///< requests that are to run at once; 0: not given
  std::vector<PolicyRow> policies;
  std::vector<std::string> suggestions;
};

/// Lines for a terminal, UTF-8.
std::string PlanText(const Plan& plan);
nlohmann::ordered_json PlanJson(const Plan& plan);

/// What follows from the figures, in whole sentences; PlanText shows Plan::suggestions.
std::vector<std::string> Suggest(const Plan& plan);

}  // namespace ziggurat::plan

// The pictures of a run.
#pragma once

#include <string>
#include <vector>

#include "server/cli/bench/load/cache_sampler.h"
#include "server/cli/bench/load/load_summary.h"
#include "server/cli/bench/load/request_record.h"

namespace ziggurat::bench {

/// Cumulative distributions of the latencies, with the goals. `subtitle` says which run it was.
std::string DrawLatency(const std::vector<RequestRecord>& records, const Goals& goals,
                        const std::string& subtitle);

/// Tokens per second over time, and requests that arrive and end.
std::string DrawThroughput(const std::vector<RequestRecord>& records, const LoadSummary& summary,
                           const std::string& subtitle);

/// Blocks of the pool, and requests that run and wait, over time.
std::string DrawCacheOverTime(const CacheSamples& cache, const LoadSummary& summary,
                              const std::string& subtitle);

}  // namespace ziggurat::bench

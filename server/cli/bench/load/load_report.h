// A run, written down.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/cli/bench/load/cache_sampler.h"
#include "server/cli/bench/load/load_summary.h"
#include "server/cli/bench/load/request_record.h"
#include "ziggurat/v1/ziggurat.pb.h"

namespace ziggurat::bench {

/// What was asked for, in the words of the command line.
struct LoadSetting {
  std::string command;  ///< that repeats it
  std::string server;
  absl::Time time;
  v1::GetModelResponse model;
  std::string kind;  ///< "closed", "poisson", "trace"
  int clients = 0;
  double rate = 0;
  std::string trace;
  double time_scale = 1;
  double length_scale = 1;
  std::string input_tokens;
  std::string output_tokens;
  uint64_t seed = 0;
  int warmup = 0;
  Goals goals;
  bool broken_off = false;
};

struct LoadResult {
  LoadSetting setting;
  LoadSummary summary;
  std::vector<RequestRecord> records;
  CacheSamples cache;
};

/// "closed loop of 8 clients", "1.5 requests/s, Poisson", ...
std::string DescribeLoad(const LoadSetting& setting);

/// For the terminal.
std::string LoadText(const LoadResult& result);
/// result.json: all of it, but for single requests.
std::string LoadJson(const LoadResult& result);
/// requests.jsonl: a line for each request.
std::string RequestLines(const std::vector<RequestRecord>& records);

/// Whether WriteLoadReport will be able to write into `folder`, which is there: as
/// CheckReplaceable.
absl::Status CheckLoadReport(const std::string& folder);
/// Writes both and the pictures latency.svg, throughput.svg, cache.svg into `folder`.
/// FAILED_PRECONDITION names the file that cannot be written.
absl::Status WriteLoadReport(const std::string& folder, const LoadResult& result);

}  // namespace ziggurat::bench

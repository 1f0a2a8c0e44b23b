// A run in figures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "server/cli/bench/load/cache_sampler.h"
#include "server/cli/bench/load/distribution.h"
#include "server/cli/bench/load/request_record.h"

namespace ziggurat::bench {

/// What makes a request good. Both are seconds.
struct Goals {
  double ttft_seconds = 5;
  double itl_seconds = 0.2;
};

/// Requests that met both goals.
struct Goodput {
  int64_t requests = 0;
  int64_t output_tokens = 0;
  double share = 0;  ///< of all that were made and not broken off
  double requests_per_second = 0;
  double output_tokens_per_second = 0;
};

constexpr size_t kMostReasons = 8;

struct LoadSummary {
  int64_t made = 0;  ///< the sum of the next four
  int64_t done = 0;
  int64_t refused = 0;
  int64_t failed = 0;
  int64_t cancelled = 0;
  /// Why they were refused or failed, and how often; the most frequent first, up to kMostReasons.
  /// A number in a reason is an N.
  std::vector<std::pair<std::string, int64_t>> reasons;
  int64_t other_reasons = 0;  ///< how often it was for another reason
  int64_t cut = 0;            ///< those whose lengths did not fit the context
  int64_t short_answers = 0;  ///< done, but with another number of tokens than asked for
  std::string compression;    ///< with every parameter; of the first that is done

  double duration_seconds = 0;  ///< from the start to the end of the last request
  // Of requests that are done.
  int64_t input_tokens = 0;
  int64_t output_tokens = 0;
  double requests_per_second = 0;
  double input_tokens_per_second = 0;
  double output_tokens_per_second = 0;
  int64_t lost_output_tokens = 0;  ///< that came to requests which are not done
  int64_t merged_tokens = 0;       ///< that came in one message with the token before

  // Seconds, of requests that are done.
  Distribution ttft;
  Distribution itl;        ///< of all tokens but the first of each request
  Distribution mean_itl;   ///< of each request of two tokens or more
  Distribution p99_itl;    ///< of the same
  Distribution worst_itl;  ///< of the same
  Distribution end_to_end;
  Distribution queue;       ///< from arrival to admission, as the daemon says
  Distribution send_delay;  ///< from when a request was due to when it was sent

  // A request is good if its TTFT and this are within the goals; one of a single token has no ITL.
  Goodput good_by_mean;
  Goodput good_by_p99;
  Goodput good_by_worst;

  // Over the samples that were taken during the run.
  Distribution used_blocks;
  Distribution committed_blocks;  ///< used and reserved
  Distribution running;
  Distribution waiting;
  Distribution compression_ratio;  ///< of requests that are done
};

LoadSummary Summarize(const std::vector<RequestRecord>& records, const CacheSamples& cache,
                      const Goals& goals);

}  // namespace ziggurat::bench

// How long prompts and answers are to be.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/cli/bench/load/random.h"

namespace ziggurat::bench {

enum class LengthSide { kInput, kOutput };

/// Means of the ShareGPT conversations as the paper of vLLM counts them (arXiv:2309.06180, 6.1).
/// It gives no spread: the sigma of the logarithm is a choice of ours, which puts the median at
/// 61 % of the mean and one request in a hundred above 6.2 times the mean.
constexpr double kShareGptInputMean = 161;
constexpr double kShareGptOutputMean = 338;
constexpr double kShareGptSigma = 1.0;

constexpr int64_t kMostTokens = 1 << 30;

/// A number of tokens, drawn anew for each request; at least 1.
class LengthDistribution {
 public:
  static LengthDistribution Fixed(int64_t tokens) { return Uniform(tokens, tokens); }
  static LengthDistribution Uniform(int64_t low, int64_t high);
  /// Never more than `most`.
  static LengthDistribution LogNormal(double mean, double sigma, int64_t most = kMostTokens);
  /// Between two percentiles all lengths are equally likely, and so they are from 1 to the first;
  /// behind the last there are none. `percentiles` rises in both: {{50, 200}, {95, 1500}}.
  static LengthDistribution Percentiles(std::vector<std::pair<double, int64_t>> percentiles);

  /// "128", "uniform:64:512", "mean:200:4000" (log-normal as sharegpt is, and its largest),
  /// "p50:200,p95:1500,p100:4000" or "sharegpt", whose mean depends on the side. INVALID_ARGUMENT
  /// says what is allowed.
  static absl::StatusOr<LengthDistribution> Parse(std::string_view text, LengthSide side);

  int64_t Draw(Random& random) const;

 private:
  int64_t low_ = 1;
  int64_t high_ = 1;
  double log_mean_ = 0;  // of the normal distribution of the logarithm
  double sigma_ = 0;     // 0: uniform from low_ to high_
  int64_t most_ = kMostTokens;
  std::vector<std::pair<double, int64_t>> percentiles_;  // not empty: these, and none of the above
};

/// The largest lengths that a model takes.
struct ContextLimits {
  int64_t context_tokens = 0;  ///< prompt and answer together
  int64_t prompt_tokens = 0;
};

struct Lengths {
  int64_t input = 1;
  int64_t output = 1;
  bool operator==(const Lengths&) const = default;
};

/// Cuts what does not fit: prompt and answer may claim half of the context each, and what one
/// leaves the other may take.
Lengths FitIntoContext(const Lengths& wanted, const ContextLimits& limits);

}  // namespace ziggurat::bench

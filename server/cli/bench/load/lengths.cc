#include "server/cli/bench/load/lengths.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ziggurat::bench {
namespace {

constexpr int64_t kMostTokens = 1 << 30;

absl::Status NotALength(const std::string& text) {
  return absl::InvalidArgumentError(
      absl::StrCat("'", text,
                   "' is no length: it must be a number of tokens such as 128, uniform:LOW:HIGH "
                   "such as uniform:64:512, or sharegpt"));
}

bool ParseTokens(absl::string_view text, int64_t& tokens) {
  return absl::SimpleAtoi(text, &tokens) && tokens >= 1 && tokens <= kMostTokens;
}

}  // namespace

LengthDistribution LengthDistribution::Uniform(int64_t low, int64_t high) {
  LengthDistribution distribution;
  distribution.low_ = low;
  distribution.high_ = high;
  return distribution;
}

LengthDistribution LengthDistribution::LogNormal(double mean, double sigma) {
  LengthDistribution distribution;
  distribution.log_mean_ = std::log(mean) - sigma * sigma / 2;
  distribution.sigma_ = sigma;
  return distribution;
}

absl::StatusOr<LengthDistribution> LengthDistribution::Parse(std::string_view view,
                                                             LengthSide side) {
  const std::string text(view);
  if (text == "sharegpt") {
    return LogNormal(side == LengthSide::kInput ? kShareGptInputMean : kShareGptOutputMean,
                     kShareGptSigma);
  }
  int64_t low = 0;
  if (ParseTokens(text, low)) return Fixed(low);
  if (!absl::StartsWith(text, "uniform:")) return NotALength(text);
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  int64_t high = 0;
  if (parts.size() != 3 || !ParseTokens(parts[1], low) || !ParseTokens(parts[2], high)) {
    return NotALength(text);
  }
  if (low > high) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "': ", low, " is more than ", high, "; the lower bound is first"));
  }
  return Uniform(low, high);
}

int64_t LengthDistribution::Draw(Random& random) const {
  if (sigma_ == 0) return low_ == high_ ? low_ : random.UniformInt(low_, high_);
  const double tokens = std::exp(log_mean_ + sigma_ * random.Normal());
  return std::clamp<int64_t>(std::llround(tokens), 1, kMostTokens);
}

Lengths FitIntoContext(const Lengths& wanted, const ContextLimits& limits) {
  const int64_t context = std::max<int64_t>(limits.context_tokens, 2);
  const int64_t input = std::min({wanted.input, limits.prompt_tokens, context - 1});
  // Rounded down, so that a prompt keeps a token at least.
  const int64_t output = std::min(wanted.output, std::max(context / 2, context - input));
  return {.input = std::max<int64_t>(1, std::min(input, context - output)),
          .output = std::max<int64_t>(1, output)};
}

}  // namespace ziggurat::bench

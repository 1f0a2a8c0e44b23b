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

absl::Status NotALength(const std::string& text) {
  return absl::InvalidArgumentError(
      absl::StrCat("'", text,
                   "' is no length: it must be a number of tokens such as 128, uniform:LOW:HIGH "
                   "such as uniform:64:512, mean:MEAN:MOST such as mean:200:4000, percentiles such "
                   "as p50:200,p95:1500,p100:4000, or sharegpt"));
}

bool ParseTokens(absl::string_view text, int64_t& tokens) {
  return absl::SimpleAtoi(text, &tokens) && tokens >= 1 && tokens <= kMostTokens;
}

absl::StatusOr<LengthDistribution> ParseUniform(const std::string& text, int64_t low,
                                                int64_t high) {
  if (low > high) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "': ", low, " is more than ", high, "; the lower bound is first"));
  }
  return LengthDistribution::Uniform(low, high);
}

absl::StatusOr<LengthDistribution> ParseMean(const std::string& text, int64_t mean, int64_t most) {
  if (mean > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "': the mean, ", mean, ", is more than the largest, ", most));
  }
  return LengthDistribution::LogNormal(static_cast<double>(mean), kShareGptSigma, most);
}

// "p50:200,p95:1500"
absl::StatusOr<LengthDistribution> ParsePercentiles(const std::string& text) {
  std::vector<std::pair<double, int64_t>> percentiles;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<std::string> sides = absl::StrSplit(part, ':');
    double percent = 0;
    int64_t tokens = 0;
    if (sides.size() != 2 || sides[0].substr(0, 1) != "p" ||
        !absl::SimpleAtod(sides[0].substr(1), &percent) || !(percent > 0 && percent <= 100) ||
        !ParseTokens(sides[1], tokens)) {
      return NotALength(text);
    }
    if (!percentiles.empty() &&
        (percent <= percentiles.back().first || tokens < percentiles.back().second)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", text, "': percentiles must rise, and their lengths with them"));
    }
    percentiles.emplace_back(percent, tokens);
  }
  return LengthDistribution::Percentiles(std::move(percentiles));
}

}  // namespace

LengthDistribution LengthDistribution::Uniform(int64_t low, int64_t high) {
  LengthDistribution distribution;
  distribution.low_ = low;
  distribution.high_ = high;
  return distribution;
}

LengthDistribution LengthDistribution::LogNormal(double mean, double sigma, int64_t most) {
  LengthDistribution distribution;
  distribution.log_mean_ = std::log(mean) - sigma * sigma / 2;
  distribution.sigma_ = sigma;
  distribution.most_ = most;
  return distribution;
}

LengthDistribution LengthDistribution::Percentiles(
    std::vector<std::pair<double, int64_t>> percentiles) {
  LengthDistribution distribution;
  distribution.percentiles_ = std::move(percentiles);
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
  if (absl::StartsWith(text, "p")) return ParsePercentiles(text);
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  int64_t high = 0;
  if (parts.size() != 3 || !ParseTokens(parts[1], low) || !ParseTokens(parts[2], high)) {
    return NotALength(text);
  }
  if (parts[0] == "uniform") return ParseUniform(text, low, high);
  if (parts[0] == "mean") return ParseMean(text, low, high);
  return NotALength(text);
}

int64_t LengthDistribution::Draw(Random& random) const {
  if (!percentiles_.empty()) {
    const double percent = 100 * random.Uniform();
    std::pair<double, int64_t> below = {0, 1};
    for (const auto& above : percentiles_) {
      if (percent < above.first) {
        const double part = (percent - below.first) / (above.first - below.first);
        return below.second + std::llround(part * static_cast<double>(above.second - below.second));
      }
      below = above;
    }
    return below.second;
  }
  if (sigma_ == 0) return low_ == high_ ? low_ : random.UniformInt(low_, high_);
  const double tokens = std::exp(log_mean_ + sigma_ * random.Normal());
  return std::clamp<int64_t>(std::llround(tokens), 1, most_);
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

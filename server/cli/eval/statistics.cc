#include "server/cli/eval/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ziggurat::eval {
namespace {

constexpr double kZ95 = 1.959963984540054;

}  // namespace

Interval WilsonInterval(int64_t successes, int64_t trials) {
  if (trials <= 0) return {0, 1};
  const double n = static_cast<double>(trials);
  const double p = static_cast<double>(successes) / n;
  const double z2 = kZ95 * kZ95;
  const double center = (p + z2 / (2 * n)) / (1 + z2 / n);
  const double half = kZ95 / (1 + z2 / n) * std::sqrt(p * (1 - p) / n + z2 / (4 * n * n));
  // At the ends the formula gives 0 and 1 up to rounding.
  return {successes == 0 ? 0 : std::max(0.0, center - half),
          successes == trials ? 1 : std::min(1.0, center + half)};
}

double McNemarExactP(int64_t lost, int64_t won) {
  const int64_t n = lost + won;
  if (n == 0) return 1;
  // Twice the smaller tail of Binomial(n, 1/2), in logarithms since 2^-n leaves the doubles.
  double tail = 0;
  for (int64_t k = 0; k <= std::min(lost, won); ++k) {
    const double log_choose = std::lgamma(static_cast<double>(n) + 1) -
                              std::lgamma(static_cast<double>(k) + 1) -
                              std::lgamma(static_cast<double>(n - k) + 1);
    tail += std::exp(log_choose - static_cast<double>(n) * std::log(2.0));
  }
  return std::min(1.0, 2 * tail);
}

double Median(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace ziggurat::eval

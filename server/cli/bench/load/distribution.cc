#include "server/cli/bench/load/distribution.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace ziggurat::bench {

double Percentile(const std::vector<double>& ascending, double percent) {
  if (ascending.empty()) return std::numeric_limits<double>::quiet_NaN();
  const double rank = percent / 100 * static_cast<double>(ascending.size() - 1);
  const auto below = static_cast<size_t>(rank);
  const size_t above = std::min(below + 1, ascending.size() - 1);
  const double part = rank - static_cast<double>(below);
  return ascending[below] + part * (ascending[above] - ascending[below]);
}

Distribution Describe(std::vector<double> values) {
  Distribution figures;
  figures.count = values.size();
  if (values.empty()) return figures;
  std::sort(values.begin(), values.end());
  figures.mean =
      std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  figures.p50 = Percentile(values, 50);
  figures.p95 = Percentile(values, 95);
  figures.p99 = Percentile(values, 99);
  figures.max = values.back();
  return figures;
}

}  // namespace ziggurat::bench

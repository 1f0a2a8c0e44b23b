#include "compression/layer_clusters.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>

namespace ziggurat {
namespace {

/// The sum of squared distances from the mean.
double Spread(absl::Span<const double> values) {
  const double mean =
      std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  double sum = 0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return sum;
}

}  // namespace

std::optional<std::vector<int>> ClusterInThree(absl::Span<const double> values) {
  if (!std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); })) {
    return std::nullopt;
  }
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  // Groups of a line are stretches of it, so two cuts say everything. Equal values stay together.
  std::vector<size_t> cuts;
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i - 1] < sorted[i]) cuts.push_back(i);
  }
  if (cuts.size() < 2) return std::nullopt;

  const absl::Span<const double> all(sorted);
  double least = std::numeric_limits<double>::infinity();
  double middle = 0, high = 0;  // the lowest values of groups 1 and 2
  for (size_t first = 0; first + 1 < cuts.size(); ++first) {
    const double below = Spread(all.first(cuts[first]));
    for (size_t second = first + 1; second < cuts.size(); ++second) {
      const double spread = below + Spread(all.subspan(cuts[first], cuts[second] - cuts[first])) +
                            Spread(all.subspan(cuts[second]));
      if (spread >= least * (1 - 1e-12)) continue;  // rounding makes none of two equal ways better
      least = spread;
      middle = sorted[cuts[first]];
      high = sorted[cuts[second]];
    }
  }
  std::vector<int> groups;
  groups.reserve(values.size());
  for (const double value : values) groups.push_back((value >= middle ? 1 : 0) + (value >= high));
  return groups;
}

}  // namespace ziggurat

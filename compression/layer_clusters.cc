#include "compression/layer_clusters.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

namespace ziggurat {
namespace {

constexpr int kGroups = 3;
using Centres = std::array<double, kGroups>;

std::vector<int> AssignToNearest(absl::Span<const double> values, const Centres& centres) {
  std::vector<int> groups;
  groups.reserve(values.size());
  for (double value : values) {
    int nearest = 0;
    for (int g = 1; g < kGroups; ++g) {
      if (std::abs(value - centres[g]) < std::abs(value - centres[nearest])) nearest = g;
    }
    groups.push_back(nearest);
  }
  return groups;
}

/// The mean of every group; one that lost all its values keeps its centre.
Centres MoveToMeans(absl::Span<const double> values, const std::vector<int>& groups,
                    Centres centres) {
  Centres sums = {};
  std::array<int, kGroups> counts = {};
  for (size_t i = 0; i < values.size(); ++i) {
    sums[groups[i]] += values[i];
    ++counts[groups[i]];
  }
  for (int g = 0; g < kGroups; ++g) {
    if (counts[g] > 0) centres[g] = sums[g] / counts[g];
  }
  return centres;
}

}  // namespace

std::optional<std::vector<int>> ClusterInThree(absl::Span<const double> values) {
  if (!std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); })) {
    return std::nullopt;
  }
  std::vector<double> distinct(values.begin(), values.end());
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  if (distinct.size() < kGroups) return std::nullopt;
  Centres centres = {distinct.front(), distinct[distinct.size() / 2], distinct.back()};
  std::vector<int> groups = AssignToNearest(values, centres);
  // Each round lowers the sum of squares or ends; the bound is for rounding errors alone.
  for (int round = 0; round < 1000; ++round) {
    centres = MoveToMeans(values, groups, centres);
    std::vector<int> next = AssignToNearest(values, centres);
    if (next == groups) break;
    groups = std::move(next);
  }
  return groups;
}

}  // namespace ziggurat

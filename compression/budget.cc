#include "compression/budget.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace ziggurat {

std::vector<double> LinearPyramid(double mean_pairs, int num_layers, double beta) {
  if (num_layers == 1) return {mean_pairs};
  const double top = mean_pairs / beta;
  const double bottom = 2 * mean_pairs - top;
  std::vector<double> line(num_layers);
  for (int layer = 0; layer < num_layers; ++layer) {
    line[layer] = bottom - (bottom - top) * layer / (num_layers - 1);
  }
  return line;
}

std::vector<double> GeometricPyramid(double mean_pairs, int num_layers, double ratio) {
  std::vector<double> weights(num_layers);
  for (int layer = 0; layer < num_layers; ++layer) weights[layer] = std::pow(ratio, layer);
  return WeightedShares(mean_pairs, weights);
}

std::vector<double> ExponentialPyramid(double mean_pairs, int num_layers, double rate) {
  std::vector<double> weights(num_layers);
  for (int layer = 0; layer < num_layers; ++layer) {
    weights[layer] = std::exp(-rate * layer / std::max(1, num_layers - 1));
  }
  return WeightedShares(mean_pairs, weights);
}

std::vector<double> WeightedShares(double mean_pairs, absl::Span<const double> weights) {
  std::vector<double> shares(weights.begin(), weights.end());
  for (double& share : shares) {
    if (!std::isfinite(share) || share < 0) share = 0;
  }
  // Divided by the largest first, so that no sum can overflow.
  const double largest = shares.empty() ? 0 : *std::max_element(shares.begin(), shares.end());
  if (largest == 0) return std::vector<double>(weights.size(), mean_pairs);
  for (double& share : shares) share /= largest;
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  const double total = mean_pairs * static_cast<double>(weights.size());
  for (double& share : shares) share *= total / sum;
  return shares;
}

std::vector<int64_t> LargestRemainder(absl::Span<const double> shares, int64_t total) {
  // Remainders are compared on a grid, so that those that are equal as fractions stay equal after
  // the rounding errors of a line with values up to 2^25.
  constexpr double kGrid = 1 << 20;
  std::vector<int64_t> integers(shares.size());
  std::vector<int64_t> remainders(shares.size());
  for (size_t i = 0; i < shares.size(); ++i) {
    const double floor = std::floor(shares[i]);
    integers[i] = static_cast<int64_t>(floor);
    remainders[i] = std::llround((shares[i] - floor) * kGrid);
  }
  std::vector<size_t> order(shares.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return remainders[a] > remainders[b]; });
  const int64_t left = total - std::accumulate(integers.begin(), integers.end(), int64_t{0});
  for (int64_t i = 0; i < left; ++i) ++integers[order[i % order.size()]];
  return integers;
}

void SpillUpward(int64_t capacity, absl::Span<int64_t> pairs) {
  int64_t excess = 0;
  // The second round serves the layers below one that overflowed.
  for (int round = 0; round < 2; ++round) {
    for (int64_t& layer : pairs) {
      const int64_t wanted = layer + excess;
      layer = std::min(wanted, capacity);
      excess = wanted - layer;
    }
  }
}

}  // namespace ziggurat

// How many KV pairs each layer may keep: PyramidKV's shapes, their integers, and what a short
// prompt leaves over (PyramidKV, arXiv:2406.02069, section 3.2). All counts are KV pairs per layer
// and KV head without the observation window, which every layer keeps besides.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace ziggurat {

/// The pyramid's linear shape before rounding: the top layer gets mean_pairs / beta, the bottom one
/// 2 * mean_pairs minus that, linear in between; the mean over layers is mean_pairs. With T =
/// mean_pairs * num_layers these are the paper's k[L-1] = T / (beta * L) and k[0] = 2T / L -
/// k[L-1]. One layer gets everything. num_layers >= 1, mean_pairs >= 0, beta >= 1.
///   returns [num_layers], index 0 the bottom layer, falling
std::vector<double> LinearPyramid(double mean_pairs, int num_layers, double beta);

/// Other shapes of the paper's ablation (table 4), before rounding; the mean over layers is
/// `mean_pairs`. Layer l has the weight ratio^l, or exp(-rate * l / (num_layers - 1)).
///   ratio    above 0; 1 or less for a pyramid, which falls. A weight that overflows counts as 0
///   rate     0 or more
///   returns  [num_layers]
std::vector<double> GeometricPyramid(double mean_pairs, int num_layers, double ratio);
std::vector<double> ExponentialPyramid(double mean_pairs, int num_layers, double rate);

/// Shares in proportion to `weights`, with the mean `mean_pairs`. A weight that is negative or not
/// finite counts as 0; where all are 0 the shares are equal.
///   returns [weights.size()]
std::vector<double> WeightedShares(double mean_pairs, absl::Span<const double> weights);

/// Integers that sum to exactly `total`: each share rounded down, and what is left goes one by one
/// to the largest remainders, ties to the lower layer. Falling shares give falling integers.
/// `shares` are >= 0 and sum to `total` within rounding error.
std::vector<int64_t> LargestRemainder(absl::Span<const double> shares, int64_t total);

/// Caps every layer at `capacity` (what the prompt can fill); the excess of a layer goes to the
/// layers above it, in order, as far as they can take it, then around from layer 0. The sum
/// afterwards is min(sum before, capacity * layers). capacity >= 0.
void SpillUpward(int64_t capacity, absl::Span<int64_t> pairs);

}  // namespace ziggurat

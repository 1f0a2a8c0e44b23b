// Passes over a vocabulary of logits. Private to this folder.
//
// Everything here is plain IEEE arithmetic in a fixed order (compiled without contraction into
// fused operations), so that the same logits give the same bits on every machine, with or without
// vector units.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace ziggurat {

/// NaN is passed over; plus infinity counts as the largest float. -infinity if there is none.
float LargestLogit(absl::Span<const float> logits);

/// The lowest id whose logit is LargestLogit; -1 where that is -infinity.
int32_t BestToken(absl::Span<const float> logits);

/// The `count` best tokens in descending order of logit, ties in ascending order of id. Fewer where
/// fewer are above -infinity. O(logits) for small counts.
std::vector<int32_t> BestTokens(absl::Span<const float> logits, size_t count);

/// exp((logit - best) / temperature): 1 for the best token, 0 below e^-87 and for NaN. `best` must
/// be finite and at least every logit. Relative error under 1e-6.
float Weight(float logit, float best, float temperature);

/// The weights of all tokens, [logits.size()]; those below `least` become 0.
void FillWeights(absl::Span<const float> logits, float best, float temperature, float least,
                 std::vector<float>& weights);

/// Sums of every kWeightBlock weights in `block_sums`; returns the sum of all.
constexpr size_t kWeightBlock = 256;
double SumWeights(absl::Span<const float> weights, std::vector<double>& block_sums);

/// Sets to 0 the weights below `least`; the ids of the others that are not 0 come to `kept`,
/// ascending.
void KeepAtLeast(float least, absl::Span<float> weights, std::vector<int32_t>& kept);

/// Sets to 0 the weights of all but the fewest best tokens whose weights add up to `wanted` or
/// more (at least one), of `total` that all add up to. Best by logit, ties by lower id. Without
/// sorting the vocabulary: tokens are counted into narrow ranges of logits, and only the range in
/// which the sum is reached is sorted. What is left is in `candidates`, among others.
void KeepBestMass(absl::Span<const float> logits, float best, float temperature, double total,
                  double wanted, std::vector<float>& weights, std::vector<int32_t>& candidates);

}  // namespace ziggurat

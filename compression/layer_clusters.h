// Groups of layers that are alike in one number, for SqueezeAttention.
#pragma once

#include <optional>
#include <vector>

#include "absl/types/span.h"

namespace ziggurat {

/// The group, 0 (lowest values) to 2 (highest), of every value: the best of all ways to cut the
/// values in three, by the sum of squared distances from the groups' means. That is what k-means
/// looks for; in one dimension it can be found for certain, without centres to start from. Of
/// equally good ways the one with the lowest cuts. No group is empty, and equal values are in one.
/// nullopt where there are fewer than three distinct values, or one is not finite.
///   returns [values.size()]
std::optional<std::vector<int>> ClusterInThree(absl::Span<const double> values);

}  // namespace ziggurat

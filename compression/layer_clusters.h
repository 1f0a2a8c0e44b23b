// Groups of layers that are alike in one number, for SqueezeAttention.
#pragma once

#include <optional>
#include <vector>

#include "absl/types/span.h"

namespace ziggurat {

/// The group, 0 (lowest values) to 2 (highest), of every value: k-means in one dimension with three
/// centres that start at the least, the median and the greatest of the distinct values, so that the
/// outcome does not depend on chance. A value that is as near to two centres goes to the lower one.
/// Groups 0 and 2 are never empty. nullopt where there are fewer than three distinct values, or one
/// is not finite.
///   returns [values.size()]
std::optional<std::vector<int>> ClusterInThree(absl::Span<const double> values);

}  // namespace ziggurat

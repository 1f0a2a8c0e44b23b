// Which policies compose, and why the others do not.
#pragma once

#include "absl/status/status.h"
#include "compression/policy_descriptor.h"

namespace ziggurat {

/// Whether the two may be terms of one composition, in any order. INVALID_ARGUMENT with the reason
/// where not. Policies compose if every pair of them does.
absl::Status CheckComposable(const DescribedPolicy& first, const DescribedPolicy& second);

}  // namespace ziggurat

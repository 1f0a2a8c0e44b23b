// `a+b`: two policies at work on one cache.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "compression/policy_descriptor.h"

namespace ziggurat {

/// A policy, and the descriptor that made it or, of a composed one, that composed it.
struct ComposedTerm {
  const PolicyDescriptor* descriptor = nullptr;
  std::shared_ptr<const Policy> policy;
};

/// Composes what stands on the left (`first`, itself possibly composed) with one more term. The
/// later term's descriptor is asked first, then the first's; where neither composes the answer is
/// INVALID_ARGUMENT with the reason.
absl::StatusOr<ComposedTerm> ComposePolicies(const ComposedTerm& first, const ComposedTerm& second);

}  // namespace ziggurat

// What the engine asks of policies, which may be anybody's: a mistake in one ends the request, with
// a message that names the policy, the layer and the rule, and nothing else.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "compression/layer_plan.h"
#include "compression/policy.h"

namespace ziggurat {

/// Whether the plan keeps to what compression/cache_plan.h says of statistics, edits, merges,
/// decisions and needs, and counts no less than it keeps. INTERNAL otherwise. Formats are not
/// looked at: what suits a model, its geometry knows (CacheGeometry::CheckFormat).
absl::Status CheckPlan(std::string_view policy, const PolicyContext& context,
                       const SequenceLimits& limits, const CachePlan& plan);

/// What is wrong with the numbers of an edit alone, "has KeepRing.recent 0, which must be ..."; ""
/// where nothing is.
std::string WrongNumbers(const LayerEdit& edit);

/// Policy::Check and Policy::ForPrompt. INTERNAL where they throw.
absl::Status AskWhetherItSuits(const Policy& policy, const PolicyContext& context);
absl::StatusOr<std::shared_ptr<const Policy>> AskForPrompt(const Policy& policy,
                                                           std::string_view text);

/// Whether `layers` are what Policy::Decide may answer to `plan`, with its `limits`. INTERNAL
/// otherwise.
absl::Status CheckDecision(std::string_view policy, const CachePlan& plan,
                           const SequenceLimits& limits, absl::Span<const LayerPlan> layers);

/// Policy::Plan, checked, with what its layers need of prefill. INTERNAL where it throws, too.
absl::StatusOr<CachePlan> AskForPlan(const Policy& policy, const PolicyContext& context,
                                     const SequenceLimits& limits);

/// Policy::Decide, checked. INTERNAL where it throws, too.
///   plan    of the policy
///   limits  as of the decision
absl::StatusOr<std::vector<LayerPlan>> AskForDecision(const Policy& policy,
                                                      const PolicyContext& context,
                                                      const CachePlan& plan,
                                                      const SequenceLimits& limits,
                                                      absl::Span<const double> importance);

}  // namespace ziggurat

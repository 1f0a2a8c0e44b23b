// Policies that change what another one plans: which layers are lazy, how tokens are stored, which
// layers share. Alone they change the plan of `full`.
#pragma once

#include "compression/layer_plan.h"
#include "compression/policy_descriptor.h"

namespace ziggurat {

class PlanModifier : public DescribedPolicy {
 public:
  using DescribedPolicy::DescribedPolicy;

  /// Changes the plan of the policy that this one is composed with. Whoever calls it completes the
  /// plan (compression/layer_plan.h).
  virtual void Modify(const PolicyContext& context, const SequenceLimits& limits,
                      CachePlan* plan) const = 0;

  CachePlan Plan(const PolicyContext& context, int prompt_tokens, int max_new_tokens) const final;
  const PlanModifier* modifier() const final { return this; }
};

}  // namespace ziggurat

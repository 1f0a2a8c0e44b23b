#include "compression/plan_modifier.h"

#include <utility>
#include <vector>

namespace ziggurat {

CachePlan PlanModifier::Plan(const PolicyContext& context, int prompt_tokens,
                             int max_new_tokens) const {
  const SequenceLimits limits{prompt_tokens, max_new_tokens};
  CachePlan plan;
  plan.layers.assign(context.num_layers, PlanKeepAll(limits));
  Modify(context, limits, &plan);
  return CompletePlan(context, limits, std::move(plan));
}

}  // namespace ziggurat

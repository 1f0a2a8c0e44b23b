// The uncompressed cache: the yardstick of every other policy.
#include <memory>

#include "compression/layer_plan.h"
#include "compression/policy_descriptor.h"

namespace ziggurat {
namespace {

class Full final : public DescribedPolicy {
 public:
  using DescribedPolicy::DescribedPolicy;

  PolicyTraits traits() const override { return kAddsNothing; }

  CachePlan Plan(const PolicyContext& context, int prompt_tokens,
                 int max_new_tokens) const override {
    const SequenceLimits limits{prompt_tokens, max_new_tokens};
    return CompletePlan(context, limits,
                        std::vector<LayerPlan>(context.num_layers, PlanKeepAll(limits)));
  }
};

}  // namespace

const PolicyDescriptor& FullPolicy() {
  static constexpr PolicyDescriptor kDescriptor = {
      .name = "full",
      .summary = "keeps everything",
      .make = [](const PolicyArguments& arguments) -> std::shared_ptr<const DescribedPolicy> {
        return std::make_shared<Full>(arguments);
      },
  };
  return kDescriptor;
}

}  // namespace ziggurat

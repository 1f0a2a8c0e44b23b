// H2O (arXiv:2306.14048): the tokens that have received most attention so far and the most recent
// ones; while decoding, the least attended one makes room for each new one.
#include <memory>

#include "compression/layer_plan.h"
#include "compression/policy_descriptor.h"
#include "compression/window_selection.h"

namespace ziggurat {
namespace {

class H2o final : public DescribedPolicy {
 public:
  explicit H2o(const PolicyArguments& arguments)
      : DescribedPolicy(arguments),
        edit_{.heavy = static_cast<int>(arguments.Integer("heavy")),
              .recent = static_cast<int>(arguments.Integer("recent"))} {}

  PolicyTraits traits() const override { return kDropsTokens | kReadsPrompt | kOverwritesAny; }

  void Apply(const PolicyContext& context, const SequenceLimits& limits,
             CachePlan* plan) const override {
    plan->layers.assign(context.num_layers, PlanKeepHeavy(limits, edit_));
  }

 private:
  KeepHeavy edit_;
};

constexpr ParameterSpec kParameters[] = {
    {.name = "heavy",
     .help = "tokens kept for the attention that they have received so far",
     .is_amount = true,
     .minimum = 1,
     .maximum = kMaxTokensParameter,
     .default_value = 128},
    {.name = "recent",
     .help = "last tokens, kept whatever they receive",
     .is_amount = true,
     .minimum = 1,
     .maximum = kMaxTokensParameter,
     .default_value = 128},
};

}  // namespace

const PolicyDescriptor& H2oPolicy() {
  static constexpr PolicyDescriptor kDescriptor = {
      .name = "h2o",
      .summary =
          "keeps the tokens that received most attention so far and the most recent ones, "
          "while decoding too",
      .paper = "2306.14048",
      .parameters = kParameters,
      .make = MakePolicy<H2o>,
  };
  return kDescriptor;
}

}  // namespace ziggurat

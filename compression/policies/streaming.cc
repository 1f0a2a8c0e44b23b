// StreamingLLM (arXiv:2309.17453): attention sinks and a sliding window, in every layer. Keys keep
// the RoPE position they had; nothing is re-numbered.
#include <memory>

#include "compression/layer_plan.h"
#include "compression/policy_descriptor.h"
#include "compression/window_selection.h"

namespace ziggurat {
namespace {

class Streaming final : public DescribedPolicy {
 public:
  explicit Streaming(const PolicyArguments& arguments)
      : DescribedPolicy(arguments),
        sinks_(static_cast<int>(arguments.Integer("sinks"))),
        recent_(static_cast<int>(arguments.Integer("recent"))) {}

  PolicyTraits traits() const override { return kDropsTokens | kOverwritesRing; }

  void Apply(const PolicyContext& context, const SequenceLimits& limits,
             CachePlan* plan) const override {
    plan->layers.assign(context.num_layers, PlanKeepRing(limits, sinks_, recent_));
  }

 private:
  int sinks_;
  int recent_;
};

constexpr ParameterSpec kParameters[] = {
    {.name = "sinks",
     .help = "first tokens, kept for ever",
     .minimum = 0,
     .maximum = kMaxTokensParameter,
     .default_value = 4},
    {.name = "recent",
     .help = "last tokens; a new one takes the place of the oldest",
     .is_amount = true,
     .minimum = 1,
     .maximum = kMaxTokensParameter,
     .default_value = 1020},
};

}  // namespace

const PolicyDescriptor& StreamingPolicy() {
  static constexpr PolicyDescriptor kDescriptor = {
      .name = "streaming",
      .summary =
          "keeps the first tokens and the most recent ones, while decoding too (StreamingLLM)",
      .paper = "2309.17453",
      .parameters = kParameters,
      .make = MakePolicy<Streaming>,
  };
  return kDescriptor;
}

}  // namespace ziggurat

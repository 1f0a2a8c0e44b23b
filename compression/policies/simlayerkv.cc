// SimLayerKV (arXiv:2410.13846): a layer whose last queries attend to sinks and recent tokens alone
// is lazy, and keeps only those.
#include <algorithm>
#include <memory>
#include <vector>

#include "compression/layer_plan.h"
#include "compression/policy_descriptor.h"
#include "compression/window_selection.h"

namespace ziggurat {
namespace {

enum Moment : size_t { kPrefill, kDecode };
constexpr std::string_view kMomentChoices[] = {"prefill", "decode"};

class SimLayerKv final : public DescribedPolicy {
 public:
  explicit SimLayerKv(const PolicyArguments& arguments)
      : DescribedPolicy(arguments),
        test_{.sinks = static_cast<int>(arguments.Integer("sinks")),
              .recent = static_cast<int>(arguments.Integer("recent")),
              .last = static_cast<int>(arguments.Integer("last")),
              .threshold = arguments.Real("threshold")},
        at_first_token_(arguments.Choice("decide") == kDecode) {}

  PolicyTraits traits() const override {
    return kFindsLazyLayers | (at_first_token_ ? kDecidesAfterToken : kNoTrait);
  }

  void Apply(const PolicyContext& /*context*/, const SequenceLimits& limits,
             CachePlan* plan) const override {
    const int64_t tokens_by_then = int64_t{limits.prompt_tokens} + (at_first_token_ ? 1 : 0);
    if (tokens_by_then <= int64_t{test_.sinks} + test_.recent) return;
    if (at_first_token_) return DecideLater(limits, plan);
    LazyTest test = test_;
    test.last = std::min(test.last, limits.prompt_tokens);
    for (LayerPlan& layer : plan->layers) layer.lazy = test;
  }

  std::vector<LayerPlan> Decide(const PolicyContext& context, const SequenceLimits& limits,
                                absl::Span<const double> importance) const override {
    std::vector<LayerPlan> layers(context.num_layers, PlanKeepAll(limits));
    for (size_t i = 0; i < std::min(layers.size(), importance.size()); ++i) {
      if (test_.IsMet(importance[i])) {
        layers[i] = PlanKeepRing(limits, test_.sinks, test_.recent);
      }
    }
    return layers;
  }

 private:
  void DecideLater(const SequenceLimits& limits, CachePlan* plan) const {
    // Without a step after the prompt no token is ever decoded with a trimmed cache.
    if (limits.appended_tokens() == 0) return;
    plan->importance = LayerImportance::kLazyMass;
    plan->decide = DecideAt::kFirstToken;
    plan->first_token_test = test_;
    plan->first_token_test.last = 1;
    plan->decided = {.most_sinks = test_.sinks, .mean_tokens = limits.total_tokens()};
  }

  LazyTest test_;
  bool at_first_token_;
};

constexpr ParameterSpec kParameters[] = {
    {.name = "threshold",
     .help = "a layer is lazy where more than this share of its attention is on sinks and recent "
             "tokens",
     .type = ParameterType::kReal,
     .is_amount = true,
     .minimum = 0,
     .maximum = 1,
     .default_value = 0.9},
    {.name = "sinks",
     .help = "first tokens of a lazy layer, kept for ever",
     .minimum = 0,
     .maximum = kMaxTokensParameter,
     .default_value = 4},
    {.name = "recent",
     .help = "last tokens of a lazy layer; a new one takes the place of the oldest",
     .is_amount = true,
     .minimum = 1,
     .maximum = kMaxTokensParameter,
     .default_value = 1020},
    {.name = "last",
     .help = "last queries of the prompt, whose attention is tested",
     .minimum = 1,
     .maximum = 1024,
     .only_with = ParameterCondition{"decide", kPrefill},
     .default_value = 32},
    {.name = "decide",
     .help = "when: layer by layer with the prompt, or by the first generated token's query",
     .type = ParameterType::kChoice,
     .choices = kMomentChoices,
     .default_value = kPrefill},
};

}  // namespace

const PolicyDescriptor& SimlayerkvPolicy() {
  static constexpr PolicyDescriptor kDescriptor = {
      .name = "simlayerkv",
      .summary = "keeps sinks and recent tokens in lazy layers, everything in the others",
      .paper = "2410.13846",
      .parameters = kParameters,
      .make = MakePolicy<SimLayerKv>,
  };
  return kDescriptor;
}

}  // namespace ziggurat

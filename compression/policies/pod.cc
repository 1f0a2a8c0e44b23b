// PoD, proximal over distant (arXiv:2412.02252): layers with similar attention hold the keys of
// distant tokens once, in the lowest of them.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "compression/layer_plan.h"
#include "compression/policy_descriptor.h"
#include "compression/window_selection.h"

namespace ziggurat {
namespace {

class Pod final : public DescribedPolicy {
 public:
  explicit Pod(const PolicyArguments& arguments)
      : DescribedPolicy(arguments),
        options_{.groups = arguments.Groups("groups"),
                 .sinks = static_cast<int>(arguments.Integer("sinks")),
                 .recent = static_cast<int>(arguments.Integer("recent")),
                 .skip = arguments.RealOrWord("skip").value_or(kNeverSkip)} {}

  PolicyTraits traits() const override {
    return kSharesKeys | (options_.groups->IsSameForAllHeads() ? kNoTrait : kGroupsOfHeads);
  }

  absl::Status Check(const PolicyContext& context) const override {
    const PodGroups& groups = *options_.groups;
    if (Suits(context)) return absl::OkStatus();
    return absl::InvalidArgumentError(fmt::format(
        "pod: groups={} were made for a model of {} layers and {} KV heads, and this one has {} "
        "and {}",
        groups.name, groups.num_layers, groups.num_kv_heads, context.num_layers,
        context.num_kv_heads));
  }

  void Apply(const PolicyContext& context, const SequenceLimits& limits,
             CachePlan* plan) const override {
    // Groups of another model have been refused by Check.
    if (!Suits(context)) return;
    bool shared = false;
    for (int layer = 1; layer < context.num_layers; ++layer) {
      const std::optional<int> followed = options_.groups->Followed(layer);
      shared = shared || followed.has_value();
      if (!followed.has_value() || LeadsAnyHead(layer)) continue;
      plan->layers[layer] = PlanKeepAsLeader(plan->layers[*followed], KeepAsLeader{-1});
    }
    // Layers must follow the choice of the lowest layer of their groups.
    if (shared && (MayBeDistant(limits) || plan->SelectsTokens() || plan->StoresGroups())) {
      plan->distant = options_;
    }
  }

 private:
  static constexpr double kNeverSkip = 2;

  /// Nothing is distant from the last query of a sequence that the near window covers.
  bool MayBeDistant(const SequenceLimits& limits) const {
    return limits.total_tokens() > int64_t{options_.sinks} + options_.recent;
  }

  bool Suits(const PolicyContext& context) const {
    return options_.groups->num_layers == context.num_layers &&
           options_.groups->num_kv_heads == context.num_kv_heads;
  }

  bool LeadsAnyHead(int layer) const {
    for (int head = 0; head < options_.groups->num_kv_heads; ++head) {
      if (options_.groups->Lowest(layer, head) == layer) return true;
    }
    return false;
  }

  DistantOptions options_;
};

constexpr ParameterSpec kParameters[] = {
    {.name = "groups",
     .help = "which layers share keys, head by head: a calibration that the daemon loaded",
     .type = ParameterType::kPodGroups},
    {.name = "sinks",
     .help = "first tokens, never distant",
     .minimum = 0,
     .maximum = kMaxTokensParameter,
     .default_value = 16},
    {.name = "recent",
     .help = "last positions, never distant",
     .is_amount = true,
     .minimum = 1,
     .maximum = kMaxTokensParameter,
     .default_value = 4080},
    {.name = "skip",
     .help = "the distant part is left out where the near part has at least this share of the "
             "attention",
     .type = ParameterType::kReal,
     .minimum = 0,
     .maximum = 1,
     .word = "off"},
};

}  // namespace

const PolicyDescriptor& PodPolicy() {
  static constexpr PolicyDescriptor kDescriptor = {
      .name = "pod",
      .summary =
          "keeps the keys of distant tokens once for a group of layers with similar "
          "attention (proximal over distant)",
      .paper = "2412.02252",
      .parameters = kParameters,
      .make = MakePolicy<Pod>,
  };
  return kDescriptor;
}

}  // namespace ziggurat

// SqueezeAttention (arXiv:2404.04793): the layers that change the hidden state least give up part
// of their budget to the others. Inside a layer: sinks and recent tokens, as the published code.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "compression/budget.h"
#include "compression/layer_clusters.h"
#include "compression/layer_plan.h"
#include "compression/policy_descriptor.h"
#include "compression/window_selection.h"

namespace ziggurat {
namespace {

constexpr int kSinks = 4;
constexpr int kTopGroup = 2;  // of ClusterInThree

class Squeeze final : public DescribedPolicy {
 public:
  explicit Squeeze(const PolicyArguments& arguments)
      : DescribedPolicy(arguments),
        budget_(arguments.Integer("budget")),
        share_(arguments.Real("p")) {}

  PolicyTraits traits() const override {
    return kDropsTokens | kOverwritesRing | kBudgetsOfLayers | kDecidesAfterPrompt;
  }

  void Apply(const PolicyContext& context, const SequenceLimits& limits,
             CachePlan* plan) const override {
    if (context.num_layers < 3) {
      plan->layers = PlanRings(limits, Uniform(context.num_layers));
    } else if (plan->StoresGroups() || limits.total_tokens() > SmallestBudget()) {
      plan->importance = LayerImportance::kCosine;
      plan->decide = DecideAt::kPrompt;
      plan->decided = {.most_sinks = kSinks,
                       .mean_tokens = std::min(budget_, limits.total_tokens())};
    }
  }

  std::vector<LayerPlan> Decide(const PolicyContext& context, const SequenceLimits& limits,
                                absl::Span<const double> importance) const override {
    const std::optional<std::vector<int>> groups = ClusterInThree(importance);
    return PlanRings(limits, groups.has_value() ? Budgets(*groups) : Uniform(context.num_layers));
  }

 private:
  std::vector<int64_t> Uniform(int num_layers) const {
    return std::vector<int64_t>(num_layers, budget_);
  }

  /// What the layers of the top group keep, and what is left for each of the others.
  double TopShare() const { return share_ * static_cast<double>(budget_); }
  double OtherShare(double num_layers, double num_top) const {
    return (num_layers * static_cast<double>(budget_) - num_top * TopShare()) /
           (num_layers - num_top);
  }

  /// Sum to exactly budget * layers.
  std::vector<int64_t> Budgets(const std::vector<int>& groups) const {
    const auto layers = static_cast<double>(groups.size());
    const auto top = static_cast<double>(std::count(groups.begin(), groups.end(), kTopGroup));
    std::vector<double> shares;
    shares.reserve(groups.size());
    for (int group : groups) {
      shares.push_back(group == kTopGroup ? TopShare() : OtherShare(layers, top));
    }
    return LargestRemainder(shares, budget_ * static_cast<int64_t>(groups.size()));
  }

  int64_t SmallestBudget() const { return static_cast<int64_t>(std::floor(TopShare())); }

  static std::vector<LayerPlan> PlanRings(const SequenceLimits& limits,
                                          const std::vector<int64_t>& budgets) {
    std::vector<LayerPlan> layers;
    for (int64_t budget : budgets) {
      // A single layer may be left with the budgets of hundreds: far beyond any context.
      const auto recent = std::min(budget - kSinks, static_cast<int64_t>(kMaxTokensParameter));
      layers.push_back(PlanKeepRing(limits, kSinks, static_cast<int>(recent)));
    }
    return layers;
  }

  int64_t budget_;
  double share_;
};

constexpr ParameterSpec kParameters[] = {
    {.name = "budget",
     .help = "mean over layers of the KV pairs kept, per KV head",
     .is_amount = true,
     .minimum = kSinks + 1,
     .maximum = kMaxTokensParameter},
    {.name = "p",
     .help = "share of the budget that the layers keep which change the hidden state least",
     .type = ParameterType::kReal,
     .minimum = 0.01,
     .maximum = 1,
     .default_value = 0.3},
};

std::optional<ArgumentError> CheckSmallestBudget(const PolicyArguments& arguments) {
  const int64_t budget = arguments.Integer("budget");
  const double share = arguments.Real("p");
  if (std::floor(share * static_cast<double>(budget)) > kSinks) return std::nullopt;
  return ArgumentError{
      "budget",
      fmt::format("p={} of budget={} must be at least {} tokens: {} sinks and a recent one",
                  FormatNumber(share), budget, kSinks + 1, kSinks)};
}

}  // namespace

const PolicyDescriptor& SqueezePolicy() {
  static constexpr PolicyDescriptor kDescriptor = {
      .name = "squeeze",
      .summary =
          "keeps sinks and recent tokens, fewer in layers that change the hidden state "
          "least (SqueezeAttention)",
      .paper = "2404.04793",
      .parameters = kParameters,
      .check = CheckSmallestBudget,
      .make = MakePolicy<Squeeze>,
  };
  return kDescriptor;
}

}  // namespace ziggurat

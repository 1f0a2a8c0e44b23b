// PyramidKV (arXiv:2406.02069): SnapKV's selection with budgets that differ from layer to layer:
// falling from the bottom to the top, or following what the prompt's attention looks like.
#include <algorithm>
#include <memory>

#include "compression/budget.h"
#include "compression/layer_plan.h"
#include "compression/policy_descriptor.h"
#include "compression/window_selection.h"

namespace ziggurat {
namespace {

enum Shape : size_t { kLinear, kGeometric, kExponential, kEntropy, kGini };
constexpr std::string_view kShapeChoices[] = {"linear", "geometric", "exponential", "entropy",
                                              "gini"};

class PyramidKv final : public DescribedPolicy {
 public:
  explicit PyramidKv(const PolicyArguments& arguments)
      : DescribedPolicy(arguments),
        budget_(arguments.Integer("budget")),
        statistic_(ReadWindowStatistic(arguments)),
        shape_(static_cast<Shape>(arguments.Choice("shape"))),
        beta_(arguments.Real("beta")),
        ratio_(arguments.Real("ratio")),
        rate_(arguments.Real("rate")) {}

  PolicyTraits traits() const override {
    return kDropsTokens | kReadsPrompt | kBudgetsOfLayers |
           (is_measured() ? kDecidesAfterPrompt : kNoTrait);
  }

  void Apply(const PolicyContext& context, const SequenceLimits& limits,
             CachePlan* plan) const override {
    if (context.num_layers < 1) return;
    if (!is_measured()) {
      plan->layers = PlanLayers(limits, Line(context.num_layers));
      return;
    }
    // Budgets with this mean hold the whole prompt, however they are shaped.
    if (limits.prompt_tokens <= budget_) return;
    for (LayerPlan& layer : plan->layers) layer.statistic = statistic_;
    plan->importance = shape_ == kEntropy ? LayerImportance::kEntropy : LayerImportance::kGini;
    plan->decide = DecideAt::kPrompt;
    plan->decided = {.mean_tokens = budget_ + limits.appended_tokens()};
  }

  std::vector<LayerPlan> Decide(const PolicyContext& /*context*/, const SequenceLimits& limits,
                                absl::Span<const double> importance) const override {
    return PlanLayers(limits, WeightedShares(MeanPairs(), importance));
  }

 private:
  /// Whether the weights are known only once the prompt has gone through every layer.
  bool is_measured() const { return shape_ == kEntropy || shape_ == kGini; }
  double MeanPairs() const { return static_cast<double>(budget_ - statistic_.window); }

  std::vector<double> Line(int num_layers) const {
    switch (shape_) {
      case kGeometric:
        return GeometricPyramid(MeanPairs(), num_layers, ratio_);
      case kExponential:
        return ExponentialPyramid(MeanPairs(), num_layers, rate_);
      default:
        return LinearPyramid(MeanPairs(), num_layers, beta_);
    }
  }

  /// `shares` are the pairs of each layer besides the window, before rounding. Together the layers
  /// keep min(T, (n - window) * L) of them, where T = (budget - window) * L.
  std::vector<LayerPlan> PlanLayers(const SequenceLimits& limits,
                                    const std::vector<double>& shares) const {
    const int64_t total = (budget_ - statistic_.window) * static_cast<int64_t>(shares.size());
    std::vector<int64_t> pairs = LargestRemainder(shares, total);
    SpillUpward(std::max(0, limits.prompt_tokens - statistic_.window), absl::MakeSpan(pairs));
    std::vector<LayerPlan> layers;
    layers.reserve(pairs.size());
    for (int64_t count : pairs) {
      layers.push_back(PlanKeepBest(limits, statistic_, count + statistic_.window));
    }
    return layers;
  }

  int64_t budget_;
  WindowScoreStatistic statistic_;
  Shape shape_;
  double beta_;
  double ratio_;
  double rate_;
};

constexpr ParameterSpec kParameters[] = {
    BudgetParameter("mean over layers of the KV pairs kept of the prompt, per KV head, window "
                    "included"),
    WindowParameter(8),
    {.name = "beta",
     .help = "steepness of the line: the top layer keeps 1/beta of the mean besides the window; 1 "
             "is uniform",
     .type = ParameterType::kReal,
     .minimum = 1,
     .maximum = 1e6,
     .only_with = ParameterCondition{"shape", kLinear},
     .default_value = 20},
    KernelParameter(),
    PoolParameter(),
    {.name = "shape",
     .help = "what budgets follow: a line, a curve, or the entropy or the Gini coefficient of each "
             "layer's window scores, which are known only after the last layer",
     .type = ParameterType::kChoice,
     .choices = kShapeChoices,
     .default_value = kLinear},
    {.name = "ratio",
     .help = "budget of a layer to that of the layer below",
     .type = ParameterType::kReal,
     .minimum = 0.01,
     .maximum = 1,
     .only_with = ParameterCondition{"shape", kGeometric},
     .default_value = 0.9},
    {.name = "rate",
     .help = "the top layer's budget is exp(-rate) of the bottom one's",
     .type = ParameterType::kReal,
     .minimum = 0,
     .maximum = 100,
     .only_with = ParameterCondition{"shape", kExponential},
     .default_value = 3},
};

}  // namespace

const PolicyDescriptor& PyramidkvPolicy() {
  static constexpr PolicyDescriptor kDescriptor = {
      .name = "pyramidkv",
      .summary = "selects as snapkv, with budgets that fall from the bottom layer to the top one",
      .paper = "2406.02069",
      .parameters = kParameters,
      .check = CheckBudgetAboveWindow,
      .make = MakePolicy<PyramidKv>,
  };
  return kDescriptor;
}

}  // namespace ziggurat

// PyramidKV (arXiv:2406.02069): SnapKV's selection with budgets that fall from the bottom layer to
// the top one along a line.
#include <algorithm>
#include <memory>

#include "compression/budget.h"
#include "compression/layer_plan.h"
#include "compression/policy_descriptor.h"
#include "compression/window_selection.h"

namespace ziggurat {
namespace {

class PyramidKv final : public DescribedPolicy {
 public:
  explicit PyramidKv(const PolicyArguments& arguments)
      : DescribedPolicy(arguments),
        budget_(arguments.Integer("budget")),
        beta_(arguments.Real("beta")),
        statistic_(ReadWindowStatistic(arguments)) {}

  PolicyTraits traits() const override { return kDropsTokens | kReadsPrompt | kBudgetsOfLayers; }

  CachePlan Plan(const PolicyContext& context, int prompt_tokens,
                 int max_new_tokens) const override {
    if (context.num_layers < 1) return {};
    const SequenceLimits limits{prompt_tokens, max_new_tokens};
    std::vector<LayerPlan> layers;
    for (int64_t pairs : SelectedPairs(context.num_layers, prompt_tokens)) {
      layers.push_back(PlanKeepBest(limits, statistic_, pairs + statistic_.window));
    }
    return CompletePlan(context, limits, std::move(layers));
  }

 private:
  /// Pairs that each layer keeps besides the window; min(T, (n - window) * L) together, where
  /// T = (budget - window) * L.
  std::vector<int64_t> SelectedPairs(int num_layers, int prompt_tokens) const {
    const int64_t mean = budget_ - statistic_.window;
    std::vector<int64_t> pairs = LargestRemainder(
        LinearPyramid(static_cast<double>(mean), num_layers, beta_), mean * num_layers);
    SpillUpward(std::max(0, prompt_tokens - statistic_.window), absl::MakeSpan(pairs));
    return pairs;
  }

  int64_t budget_;
  double beta_;
  WindowScoreStatistic statistic_;
};

constexpr ParameterSpec kParameters[] = {
    BudgetParameter("mean over layers of the KV pairs kept of the prompt, per KV head, window "
                    "included"),
    WindowParameter(8),
    {.name = "beta",
     .help = "steepness: the top layer keeps 1/beta of the mean besides the window; 1 is uniform",
     .type = ParameterType::kReal,
     .minimum = 1,
     .maximum = 1e6,
     .default_value = 20},
    KernelParameter(),
    PoolParameter(),
};

}  // namespace

const PolicyDescriptor& PyramidkvPolicy() {
  static constexpr PolicyDescriptor kDescriptor = {
      .name = "pyramidkv",
      .summary = "selects as snapkv, with budgets that fall from the bottom layer to the top one",
      .paper = "2406.02069",
      .parameters = kParameters,
      .check = CheckBudgetAboveWindow,
      .make = [](const PolicyArguments& arguments) -> std::shared_ptr<const DescribedPolicy> {
        return std::make_shared<PyramidKv>(arguments);
      },
  };
  return kDescriptor;
}

}  // namespace ziggurat

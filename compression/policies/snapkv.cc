// SnapKV (arXiv:2404.14469): the same budget in every layer, filled with the tokens that the last
// prompt tokens attend to most.
#include <memory>

#include "compression/layer_plan.h"
#include "compression/policy_descriptor.h"
#include "compression/window_selection.h"

namespace ziggurat {
namespace {

class SnapKv final : public DescribedPolicy {
 public:
  explicit SnapKv(const PolicyArguments& arguments)
      : DescribedPolicy(arguments),
        budget_(arguments.Integer("budget")),
        statistic_(ReadWindowStatistic(arguments)) {}

  PolicyTraits traits() const override { return kDropsTokens | kReadsPrompt; }

  void Apply(const PolicyContext& context, const SequenceLimits& limits,
             CachePlan* plan) const override {
    plan->layers.assign(context.num_layers, PlanKeepBest(limits, statistic_, budget_));
  }

 private:
  int64_t budget_;
  WindowScoreStatistic statistic_;
};

constexpr ParameterSpec kParameters[] = {
    BudgetParameter("KV pairs kept of the prompt, per layer and KV head, window included"),
    WindowParameter(32),
    KernelParameter(),
    PoolParameter(),
};

}  // namespace

const PolicyDescriptor& SnapkvPolicy() {
  static constexpr PolicyDescriptor kDescriptor = {
      .name = "snapkv",
      .summary =
          "keeps what the last prompt tokens attend to most, and those, in every layer alike",
      .paper = "2404.14469",
      .parameters = kParameters,
      .check = CheckBudgetAboveWindow,
      .make = MakePolicy<SnapKv>,
  };
  return kDescriptor;
}

}  // namespace ziggurat

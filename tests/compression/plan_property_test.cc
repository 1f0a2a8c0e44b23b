// What holds of every plan, whichever policies made it.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "compression/plan_check.h"
#include "compression/policy_descriptor.h"
#include "tests/compression/plan_testing.h"
#include "tests/compression/policy_generator.h"

namespace ziggurat {
namespace {

struct Drawn {
  PolicyContext context;
  std::shared_ptr<const Policy> policy;
  SequenceLimits limits;

  CachePlan Plan() const { return ziggurat::Plan(*policy, context, limits); }
};

/// A policy that suits its model.
Drawn Draw() {
  const char* architectures[] = {"LlamaForCausalLM", "Qwen2ForCausalLM", ""};
  Drawn drawn;
  drawn.context = TestModel(*rc::gen::inRange(1, 49), architectures[*rc::gen::inRange(0, 3)]);
  drawn.policy = DrawPolicy(DrawResources(drawn.context.num_layers, drawn.context.num_kv_heads));
  drawn.limits.prompt_tokens =
      *rc::gen::oneOf(rc::gen::inRange(1, 6000), rc::gen::inRange(1, 1 << 22));
  drawn.limits.max_new_tokens = *rc::gen::inRange(0, 5000);
  RC_LOG() << drawn.policy->ToString() << ", " << drawn.context.num_layers << " layers, prompt "
           << drawn.limits.prompt_tokens << ", new " << drawn.limits.max_new_tokens << "\n";
  return drawn;
}

void CheckEdit(const CachePlan& plan, size_t index, size_t tokens) {
  const LayerPlan& layer = plan.layers[index];
  const size_t kept = layer.prompt_tokens_kept;
  if (std::holds_alternative<KeepAll>(layer.edit)) RC_ASSERT(kept == tokens);
  if (const auto* best = std::get_if<KeepBest>(&layer.edit)) {
    const auto& statistic = std::get<WindowScoreStatistic>(layer.statistic);
    RC_ASSERT(best->recent == statistic.window);
    RC_ASSERT(best->best >= 0);
    RC_ASSERT(best->best + size_t{0} + best->recent < tokens);
  }
  if (const auto* ring = std::get_if<KeepRing>(&layer.edit)) {
    RC_ASSERT(ring->recent >= 1);
    RC_ASSERT(ring->sinks >= 0);
  }
  if (const auto* windows = std::get_if<KeepWindows>(&layer.edit)) {
    RC_ASSERT(windows->observe >= 1);
    RC_ASSERT(windows->review >= 1);
    RC_ASSERT(windows->best >= 1);
    RC_ASSERT(windows->budget >= 0);
    RC_ASSERT(windows->observe + size_t{0} + windows->budget < tokens);
  }
  if (const auto* follower = std::get_if<KeepAsLeader>(&layer.edit)) {
    if (follower->leader == -1) {
      RC_ASSERT(plan.distant.has_value());
    } else {
      RC_ASSERT(static_cast<size_t>(follower->leader) < index);
      const LayerPlan& leader = plan.layers[follower->leader];
      RC_ASSERT(std::holds_alternative<KeepWindows>(leader.edit) ||
                std::holds_alternative<KeepBest>(leader.edit));
      RC_ASSERT(kept == leader.prompt_tokens_kept);
    }
  }
}

void CheckNeeds(const CachePlan& plan, const Drawn& drawn) {
  const bool whole = std::any_of(plan.layers.begin(), plan.layers.end(), [](const auto& layer) {
    return std::holds_alternative<KeepHeavy>(layer.edit);
  });
  int rows = 0;
  for (const LayerPlan& layer : plan.layers) {
    if (const auto* score = std::get_if<WindowScoreStatistic>(&layer.statistic)) {
      rows = std::max(rows, score->window);
      RC_ASSERT(plan.needs.score_heads >= drawn.context.num_kv_heads);
      RC_ASSERT(plan.needs.selects);
    }
    if (const auto* windows = std::get_if<KeepWindows>(&layer.edit)) {
      rows = std::max(rows, windows->observe);
      RC_ASSERT(plan.needs.score_heads == drawn.context.num_q_heads);
      RC_ASSERT(plan.needs.selects);
    }
    if (layer.lazy.has_value()) rows = std::max(rows, layer.lazy->last);
  }
  // Before the task is known the needs are those of either.
  const bool open = drawn.policy->wants_prompt_text() && !whole;
  const int needed = plan.needs.window_rows;
  RC_ASSERT((open && needed >= rows) || needed == (whole ? -1 : rows));
  RC_ASSERT(needed <= drawn.limits.prompt_tokens);
  RC_ASSERT(whole || rows <= drawn.limits.prompt_tokens);
}

void CheckMergedPairs(const CachePlan& plan) {
  bool merged = false;
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    const bool upper = plan.layers[i].merge == MergeRole::kUpper;
    const bool below = i > 0 && plan.layers[i - 1].merge == MergeRole::kLower;
    RC_ASSERT(upper == below);
    merged = merged || upper;
  }
  RC_ASSERT(plan.layers.back().merge != MergeRole::kLower);
  RC_ASSERT(merged == plan.merge.has_value());
  RC_ASSERT(merged == plan.needs.lower_kv);
}

RC_GTEST_PROP(EveryPlan, IsConsistentAndWithinWhatTheSequenceCanHold, ()) {
  const Drawn drawn = Draw();
  const CachePlan plan = drawn.Plan();
  const auto n = static_cast<size_t>(drawn.limits.prompt_tokens);
  RC_ASSERT(plan.layers.size() == static_cast<size_t>(drawn.context.num_layers));
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    const LayerPlan& layer = plan.layers[i];
    RC_ASSERT(layer.prompt_tokens_kept >= 1u);
    RC_ASSERT(layer.prompt_tokens_kept <= n);
    if (!layer.lazy.has_value()) CheckEdit(plan, i, n);
  }
  CheckNeeds(plan, drawn);
  CheckMergedPairs(plan);
  const absl::Status status = CheckPlan(drawn.policy->name(), drawn.context, drawn.limits, plan);
  RC_LOG() << status << "\n";
  RC_ASSERT(status.ok());
  RC_ASSERT((plan.decide == DecideAt::kLayer) == (plan.importance == LayerImportance::kNone));
  if (plan.decide != DecideAt::kLayer) RC_ASSERT(AllAre<KeepAll>(plan));
}

// Who has not said that it decides which tokens stay leaves that to the policy beside it.
RC_GTEST_PROP(EveryPlan, OfAPolicyThatDropsNoTokensHasNoEdits, ()) {
  const Drawn drawn = Draw();
  const auto* described = dynamic_cast<const DescribedPolicy*>(drawn.policy.get());
  if (described == nullptr || (described->traits() & kDropsTokens) != 0) return;
  const CachePlan plan = drawn.Plan();
  for (const LayerPlan& layer : plan.layers) {
    const auto* follower = std::get_if<KeepAsLeader>(&layer.edit);
    RC_ASSERT(std::holds_alternative<KeepAll>(layer.edit) ||
              (follower != nullptr && follower->leader == -1));
  }
}

/// Finite, or not: a policy must not fall over what a broken model gives it.
std::vector<double> DrawImportance(size_t layers) {
  const double odd[] = {0,
                        1,
                        -1,
                        0.5,
                        std::numeric_limits<double>::quiet_NaN(),
                        std::numeric_limits<double>::infinity(),
                        -std::numeric_limits<double>::infinity(),
                        std::numeric_limits<double>::max()};
  const bool sane = *rc::gen::inRange(0, 3) > 0;
  std::vector<double> importance(layers);
  for (double& value : importance) {
    value = sane ? *rc::gen::inRange(-1000, 1001) / 1000.0 : odd[*rc::gen::inRange(0, 8)];
  }
  return importance;
}

RC_GTEST_PROP(EveryPlan, KeepsNoMoreThanThereIsWhereItDecidesLater, ()) {
  Drawn drawn = Draw();
  CachePlan plan = drawn.Plan();
  for (int more = 0; more < 50 && plan.decide == DecideAt::kLayer; ++more) {
    drawn = Draw();
    plan = drawn.Plan();
  }
  RC_PRE(plan.decide != DecideAt::kLayer);
  const bool after_token = plan.decide == DecideAt::kFirstToken;
  SequenceLimits then = drawn.limits;
  if (after_token) then = {then.prompt_tokens + 1, then.max_new_tokens - 1};
  const int tokens = then.prompt_tokens;
  CachePlan decided = plan;
  decided.layers = drawn.policy->Decide(drawn.context, then, DrawImportance(plan.layers.size()));
  RC_ASSERT(decided.layers.size() == plan.layers.size());
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    const LayerPlan& layer = decided.layers[i];
    RC_ASSERT(layer.prompt_tokens_kept >= 1u);
    RC_ASSERT(layer.prompt_tokens_kept <= static_cast<size_t>(tokens));
    CheckEdit(decided, i, static_cast<size_t>(tokens));
  }
}

// In a ring of codes the sinks stay as they are, and groups become codes earlier or later: so what
// a layer is may not follow from how long the answer may get.
RC_GTEST_PROP(EveryPlan, OfCodesInGroupsIsOfTheSameKindWhateverTheLengthOfTheAnswer, ()) {
  // Of a prompt about as long as budgets are.
  const auto draw = [] {
    Drawn drawn = Draw();
    drawn.limits.prompt_tokens = *rc::gen::inRange(1, 200);
    return drawn;
  };
  Drawn drawn = draw();
  for (int more = 0; more < 200 && !drawn.Plan().StoresGroups(); ++more) drawn = draw();
  drawn.limits.max_new_tokens = *rc::gen::inRange(2, 12);  // with one nothing is read again
  const CachePlan plan = drawn.Plan();
  RC_PRE(plan.StoresGroups());
  drawn.limits.max_new_tokens = 10000;
  const CachePlan other = drawn.Plan();
  RC_ASSERT(other.decide == plan.decide);
  RC_ASSERT(other.distant.has_value() == plan.distant.has_value());
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    RC_ASSERT(other.layers[i].edit.index() == plan.layers[i].edit.index());
    RC_ASSERT(other.layers[i].lazy.has_value() == plan.layers[i].lazy.has_value());
    RC_ASSERT(other.layers[i].merge == plan.layers[i].merge);
  }
}

RC_GTEST_PROP(EveryPlan, OfATextIsThatOfItsCanonicalText, ()) {
  const PolicyContext context = TestModel(*rc::gen::inRange(1, 20));
  const PolicyResources resources = DrawResources(context.num_layers, context.num_kv_heads);
  const auto policy = DrawPolicy(resources);
  const auto again = ParsePolicy(policy->ToString(), resources);
  RC_ASSERT(again.ok());
  RC_ASSERT((*again)->ToString() == policy->ToString());
  RC_ASSERT((*again)->name() == policy->name());
  const int n = *rc::gen::inRange(1, 5000);
  RC_ASSERT(Kept((*again)->Plan(context, {n, 10})) == Kept(policy->Plan(context, {n, 10})));
}

}  // namespace
}  // namespace ziggurat

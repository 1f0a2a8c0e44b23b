// What squeeze plans, and what it decides once the cosines are known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <limits>
#include <numeric>
#include <vector>

#include "tests/compression/plan_testing.h"

namespace ziggurat {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;

std::vector<size_t> Decide(std::string_view text, int tokens, int max_new_tokens,
                           const std::vector<double>& cosines) {
  const auto layers = Parse(text)->Decide(TestModel(static_cast<int>(cosines.size())),
                                          {tokens, max_new_tokens}, cosines);
  EXPECT_TRUE(AllAre<KeepRing>(layers));
  std::vector<size_t> budgets;
  for (const LayerPlan& layer : layers) {
    const KeepRing& ring = std::get<KeepRing>(layer.edit);
    budgets.push_back(static_cast<size_t>(ring.sinks) + ring.recent);
  }
  return budgets;
}

TEST(SqueezePlan, HoldsThePromptWholeUntilTheLastLayer) {
  const CachePlan plan = Plan("squeeze(budget=100)", 4, 1000, 50);
  EXPECT_TRUE(AllAre<KeepAll>(plan));
  EXPECT_EQ(plan.decide, DecideAt::kPrompt);
  EXPECT_EQ(plan.importance, LayerImportance::kCosine);
  EXPECT_THAT(Kept(plan), Each(1000u));
  EXPECT_EQ(plan.needs.window_rows, 0);
  EXPECT_EQ(plan.decided.mean_tokens, 100);
  EXPECT_EQ(Plan("squeeze(budget=100)", 4, 50, 11).decided.mean_tokens, 60) << "no more will come";
  EXPECT_EQ(Plan("squeeze(budget=100)", 3, 1000, 50).decide, DecideAt::kPrompt);
}

TEST(SqueezePlan, HoldsRingsOfCodesEvenWhereAllFits) {
  // p * budget is 60.
  EXPECT_EQ(Plan("squeeze(budget=100,p=0.6)", 4, 10, 20).decide, DecideAt::kLayer);
  EXPECT_EQ(Plan("squeeze(budget=100,p=0.6)+int8", 4, 10, 20).decide, DecideAt::kLayer);
  const CachePlan plan = Plan("squeeze(budget=100,p=0.6)+kivi(group=8,residual=3)", 4, 10, 20);
  EXPECT_EQ(plan.decide, DecideAt::kPrompt) << "else the sinks would become codes";
  EXPECT_EQ(plan.decided.mean_tokens, 29);
}

TEST(SqueezePlan, TakesFromTheLayersThatChangeLeast) {
  // Groups {0.1}, {0.5, 0.52}, {0.9, 0.91}: the last keep 0.3 * 100 each, the others share the
  // remaining 500 - 60.
  EXPECT_THAT(Decide("squeeze(budget=100)", 1000, 500, {0.9, 0.1, 0.5, 0.91, 0.52}),
              ElementsAre(30, 147, 147, 30, 146));
}

TEST(SqueezePlan, KeepsFourSinksAndTheRestRecent) {
  const auto layers = Parse("squeeze(budget=100)")
                          ->Decide(TestModel(3), {1000, 50}, std::vector<double>{0.1, 0.5, 0.9});
  EXPECT_EQ(std::get<KeepRing>(layers[2].edit).sinks, 4);
  EXPECT_EQ(std::get<KeepRing>(layers[2].edit).recent, 26);
  EXPECT_EQ(std::get<KeepRing>(layers[0].edit).recent, 131);
}

TEST(SqueezePlan, IsUniformWhereThereAreNoThreeGroups) {
  EXPECT_THAT(Decide("squeeze(budget=100)", 1000, 50, {0.5, 0.9, 0.5, 0.9}), Each(100u));
  EXPECT_THAT(Decide("squeeze(budget=100)", 1000, 50,
                     {0.5, std::numeric_limits<double>::quiet_NaN(), 0.1, 0.9}),
              Each(100u));
  // Fewer than three layers: nothing has to be waited for.
  const CachePlan plan = Plan("squeeze(budget=100)", 2, 1000, 50);
  EXPECT_EQ(plan.decide, DecideAt::kLayer);
  ASSERT_TRUE(AllAre<KeepRing>(plan));
}

TEST(SqueezePlan, MeasuresNothingWhereEveryBudgetHoldsAll) {
  EXPECT_EQ(Plan("squeeze(budget=100)", 4, 25, 6).decide, DecideAt::kLayer);   // 30 tokens
  EXPECT_EQ(Plan("squeeze(budget=100)", 4, 25, 7).decide, DecideAt::kPrompt);  // 31
}

TEST(SqueezePlan, OfAShortPromptGrowsIntoItsRing) {
  const auto layers = Parse("squeeze(budget=100)")
                          ->Decide(TestModel(3), {40, 500}, std::vector<double>{0.1, 0.5, 0.9});
  EXPECT_THAT(Kept(layers), ElementsAre(40, 40, 30));
}

TEST(SqueezePlan, SurvivesTheLargestNumbers) {
  // The one layer that changes most gets what 299 others leave: more than an int can say.
  std::vector<double> cosines(300, 0.9);
  cosines[0] = 0.1;
  cosines[1] = 0.5;
  const std::vector<size_t> budgets = Decide("squeeze(budget=16777216,p=0.01)", 1000, 50, cosines);
  EXPECT_THAT(std::vector(budgets.begin(), budgets.begin() + 2), Each(16777220u));
  EXPECT_THAT(std::vector(budgets.begin() + 2, budgets.end()), Each(AnyOf(167772u, 167773u)));
}

RC_GTEST_PROP(SqueezeProperty, BudgetsSumToTheMeanTimesTheLayers, ()) {
  const int layers = *rc::gen::inRange(3, 100);
  const int budget = *rc::gen::inRange(50, 3000);
  const int percent = *rc::gen::inRange(10, 101);
  std::vector<double> cosines(layers);
  for (double& cosine : cosines) cosine = *rc::gen::inRange(0, 1000) / 1000.0;
  const std::string text =
      "squeeze(budget=" + std::to_string(budget) + ",p=" + std::to_string(percent / 100.0) + ")";
  const auto kept = Decide(text, 1 << 20, 1, cosines);
  const int64_t total = std::accumulate(kept.begin(), kept.end(), int64_t{0});
  RC_ASSERT(total == int64_t{budget} * layers);
}

}  // namespace
}  // namespace ziggurat

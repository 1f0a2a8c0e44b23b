// What simlayerkv plans, layer by layer or at the first generated token.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/compression/plan_testing.h"

namespace ziggurat {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

TEST(SimLayerKvPlan, TestsEveryLayerAndPlansAsIfItWereNotLazy) {
  const CachePlan plan = Plan("simlayerkv(threshold=0.8,sinks=4,recent=60,last=16)", 3, 500, 11);
  EXPECT_TRUE(AllAre<KeepAll>(plan));
  for (const LayerPlan& layer : plan.layers) {
    ASSERT_TRUE(layer.lazy.has_value());
    EXPECT_EQ(layer.lazy->sinks, 4);
    EXPECT_EQ(layer.lazy->recent, 60);
    EXPECT_EQ(layer.lazy->last, 16);
    EXPECT_EQ(layer.lazy->threshold, 0.8);
  }
  EXPECT_THAT(Kept(plan), Each(500u));
  EXPECT_EQ(plan.needs.window_rows, 16);
  EXPECT_FALSE(plan.needs.selects);
  EXPECT_EQ(plan.decide, DecideAt::kLayer);
}

TEST(SimLayerKvPlan, TestsNothingWhereSinksAndRecentTokensAreAll) {
  // The first generated token counts where it decides.
  for (const auto& [decide, whole] : {std::pair{"prefill", 64}, {"decode", 63}}) {
    const std::string text = std::string("simlayerkv(sinks=4,recent=60,decide=") + decide + ")";
    const CachePlan plan = Plan(text, 2, whole, 164 - whole);
    EXPECT_FALSE(plan.layers[0].lazy.has_value());
    EXPECT_EQ(plan.needs.window_rows, 0);
    EXPECT_EQ(plan.decide, DecideAt::kLayer);
  }
  EXPECT_TRUE(Plan("simlayerkv(sinks=4,recent=60)", 1, 65, 1).layers[0].lazy.has_value());
  EXPECT_EQ(Plan("simlayerkv(sinks=4,recent=60,decide=decode)", 1, 64, 10).decide,
            DecideAt::kFirstToken);
}

TEST(SimLayerKvPlan, AsksForNoMoreQueriesThanThePromptHas) {
  const CachePlan plan = Plan("simlayerkv(sinks=0,recent=4,last=32)", 1, 10, 1);
  EXPECT_EQ(plan.layers[0].lazy->last, 10);
  EXPECT_EQ(plan.needs.window_rows, 10);
}

TEST(SimLayerKvPlan, DecidingLaterHoldsEverythingUntilTheFirstToken) {
  const CachePlan plan =
      Plan("simlayerkv(threshold=0.7,sinks=4,recent=60,decide=decode)", 3, 500, 11);
  EXPECT_TRUE(AllAre<KeepAll>(plan));
  EXPECT_FALSE(plan.layers[0].lazy.has_value());
  EXPECT_EQ(plan.decide, DecideAt::kFirstToken);
  EXPECT_EQ(plan.importance, LayerImportance::kLazyMass);
  EXPECT_EQ(plan.first_token_test.sinks, 4);
  EXPECT_EQ(plan.first_token_test.recent, 60);
  EXPECT_EQ(plan.first_token_test.last, 1);
  EXPECT_EQ(plan.first_token_test.threshold, 0.7);
  EXPECT_EQ(plan.needs.window_rows, 0);
}

TEST(SimLayerKvPlan, DecidesByMassesAboveTheThreshold) {
  const auto policy = Parse("simlayerkv(threshold=0.75,sinks=4,recent=60,decide=decode)");
  const double masses[] = {0.76, 0.75, 0.2};
  const auto layers = policy->Decide(TestModel(3), {501, 10}, masses);
  ASSERT_EQ(layers.size(), 3u);
  ASSERT_TRUE(std::holds_alternative<KeepRing>(layers[0].edit));
  EXPECT_EQ(std::get<KeepRing>(layers[0].edit).sinks, 4);
  EXPECT_EQ(std::get<KeepRing>(layers[0].edit).recent, 60);
  EXPECT_TRUE(std::holds_alternative<KeepAll>(layers[1].edit)) << "not above the threshold";
  EXPECT_TRUE(std::holds_alternative<KeepAll>(layers[2].edit));
  EXPECT_THAT(Kept(layers), ElementsAre(64, 501, 501));
}

TEST(SimLayerKvPlan, DecidesNothingWhereNoTokenFollowsTheFirst) {
  const CachePlan plan = Plan("simlayerkv(sinks=4,recent=60,decide=decode)", 2, 500, 1);
  EXPECT_EQ(plan.decide, DecideAt::kLayer);
  EXPECT_EQ(plan.importance, LayerImportance::kNone);
}

TEST(SimLayerKvPlan, LeavesToTheOtherPolicyWhatLayersKeepThatAreNotLazy) {
  const CachePlan plan =
      Plan("simlayerkv(sinks=4,recent=60,last=64)+snapkv(budget=100,window=16)", 2, 500, 11);
  ASSERT_TRUE(AllAre<KeepBest>(plan));
  EXPECT_TRUE(plan.layers[1].lazy.has_value());
  EXPECT_THAT(Kept(plan), Each(100u));
  EXPECT_EQ(plan.needs.window_rows, 64);
}

TEST(SimLayerKvPlan, LeavesTheSelectionAsLargeAsItIsWhereTheRingIsLarger) {
  const CachePlan plan =
      Plan("simlayerkv(sinks=4,recent=200)+snapkv(budget=100,window=16)", 2, 500, 11);
  EXPECT_THAT(Kept(plan), Each(100u));
}

}  // namespace
}  // namespace ziggurat

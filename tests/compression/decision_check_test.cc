// What a policy may decide once its plan has let every layer keep all its tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "compression/plan_check.h"
#include "tests/compression/plan_testing.h"

namespace ziggurat {
namespace {

using ::testing::HasSubstr;

constexpr int kLayers = 4;
constexpr SequenceLimits kLimits = {60, 10};  // 9 of these are cached

/// Three layers keep everything, the last one is `last`.
std::string Said(const CachePlan& plan, const LayerPlan& last) {
  std::vector<LayerPlan> layers(kLayers - 1, PlanKeepAll(kLimits));
  layers.push_back(last);
  return std::string(CheckDecision("mine", plan, kLimits, layers).message());
}

CachePlan DecidesLater(int64_t mean_tokens, int most_sinks = 0) {
  CachePlan plan;
  plan.layers.assign(kLayers, PlanKeepAll(kLimits));
  plan.importance = LayerImportance::kEntropy;
  plan.decide = DecideAt::kPrompt;
  for (LayerPlan& layer : plan.layers) layer.statistic = WindowScoreStatistic{.window = 8};
  plan.decided = {.most_sinks = most_sinks, .mean_tokens = mean_tokens};
  return plan;
}

LayerPlan Of(const LayerEdit& edit) {
  LayerPlan plan;
  plan.edit = edit;
  return plan;
}

TEST(DecisionCheck, EveryLayerIsDecidedOn) {
  EXPECT_EQ(CheckDecision("mine", DecidesLater(100), kLimits, {}).message(),
            "mine decided on 0 layers of 4");
}

TEST(DecisionCheck, TokensThatAreStillToComeCount) {
  // Three of 60 and 9 tokens, and a ring of 17, or 8 + 8 tokens and 9.
  EXPECT_EQ(Said(DecidesLater(56), Of(KeepRing{0, 17})), "");
  EXPECT_EQ(Said(DecidesLater(56), Of(KeepRing{0, 18})),
            "mine decided that 4 layers come to hold 225 tokens, its plan said at most 224");
  EXPECT_EQ(Said(DecidesLater(58), Of(KeepBest{8, 8})), "");
  EXPECT_THAT(Said(DecidesLater(57), Of(KeepBest{8, 8})), HasSubstr("hold 232 tokens"));
  EXPECT_EQ(Said(DecidesLater(69), Of(KeepRing{0, 1000})), "") << "there are no more than 69";
}

TEST(DecisionCheck, SinksAreNoMoreThanThePlanSaid) {
  EXPECT_EQ(Said(DecidesLater(60, 4), Of(KeepRing{4, 13})), "");
  EXPECT_EQ(Said(DecidesLater(60, 4), Of(KeepRing{5, 12})),
            "mine decided that layer 3 has 5 sinks, its plan said at most 4");
}

TEST(DecisionCheck, WhatWasNotStoredCannotSelect) {
  EXPECT_THAT(Said(DecidesLater(60), Of(KeepBest{8, 4})), HasSubstr("by scores of a window of 8"));
  CachePlan none = DecidesLater(60);
  none.layers[3].statistic = {};
  EXPECT_THAT(Said(none, Of(KeepBest{8, 8})), HasSubstr("stored no scores"));
  CachePlan later = DecidesLater(60);
  later.decide = DecideAt::kFirstToken;
  EXPECT_THAT(Said(later, Of(KeepBest{8, 8})), HasSubstr("stored no scores"));
  for (const LayerEdit& edit : {LayerEdit(KeepHeavy{8, 4}), LayerEdit(KeepWindows{8, 4, 2, 16}),
                                LayerEdit(KeepAsLeader{0})}) {
    EXPECT_THAT(Said(DecidesLater(60), Of(edit)), HasSubstr("statistics that are gone by then"));
  }
}

TEST(DecisionCheck, OnlyAPlanTestsAndMerges) {
  LayerPlan lazy = PlanKeepAll(kLimits), merged = lazy;
  lazy.lazy = LazyTest{4, 16, 1, 0.5};
  merged.merge = MergeRole::kUpper;
  EXPECT_THAT(Said(DecidesLater(100), lazy), HasSubstr("only a plan may ask"));
  EXPECT_THAT(Said(DecidesLater(100), merged), HasSubstr("only a plan may ask"));
}

TEST(DecisionCheck, NumbersOfEdits) {
  EXPECT_THAT(Said(DecidesLater(100), Of(KeepRing{0, 0})), HasSubstr("KeepRing.recent 0"));
}

}  // namespace
}  // namespace ziggurat

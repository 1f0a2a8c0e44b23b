// pyramidkv's other shapes: curves that are known beforehand, and budgets that follow what is
// measured of the prompt.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/compression/plan_testing.h"

namespace ziggurat {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

TEST(PyramidShapes, GeometricFallsByItsRatio) {
  // 150 * 4 = 600 pairs in the proportions 8 : 4 : 2 : 1.
  EXPECT_THAT(Kept(Plan("pyramidkv(budget=158,shape=geometric,ratio=0.5)", 4, 5000, 1)),
              ElementsAre(328, 168, 88, 48));
}

TEST(PyramidShapes, ExponentialFallsToItsRateAtTheTop) {
  const CachePlan plan = Plan("pyramidkv(budget=1008,shape=exponential,rate=2)", 5, 20000, 1);
  // exp(-0.5 l), which sums to 2.3328: 2143.3, 1300.0, 788.5, 478.2, 290.1 of 5000.
  double sum = 0;
  for (int l = 0; l < 5; ++l) sum += std::exp(-0.5 * l);
  for (int l = 0; l < 5; ++l) {
    EXPECT_NEAR(static_cast<double>(Kept(plan)[l]) - 8, 5000 * std::exp(-0.5 * l) / sum, 1) << l;
  }
  EXPECT_EQ(TotalKept(plan), 5u * 1008);
  EXPECT_THAT(Kept(Plan("pyramidkv(budget=100,shape=exponential)", 1, 5000, 1)), ElementsAre(100));
}

TEST(PyramidShapes, UniformWhereNothingFalls) {
  EXPECT_THAT(Kept(Plan("pyramidkv(budget=100,shape=geometric,ratio=1)", 7, 5000, 1)), Each(100u));
  EXPECT_THAT(Kept(Plan("pyramidkv(budget=100,shape=exponential,rate=0)", 7, 5000, 1)), Each(100u));
}

TEST(PyramidShapes, MeasuredOnesHoldThePromptUntilTheLastLayer) {
  for (const auto& [shape, importance] : {std::pair{"entropy", LayerImportance::kEntropy},
                                          std::pair{"gini", LayerImportance::kGini}}) {
    const CachePlan plan =
        Plan("pyramidkv(budget=100,window=20,shape=" + std::string(shape) + ")", 3, 500, 11);
    EXPECT_TRUE(AllAre<KeepAll>(plan));
    EXPECT_EQ(plan.decide, DecideAt::kPrompt);
    EXPECT_EQ(plan.importance, importance);
    EXPECT_THAT(Kept(plan), Each(500u));
    for (const LayerPlan& layer : plan.layers) {
      EXPECT_EQ(std::get<WindowScoreStatistic>(layer.statistic).window, 20);
    }
    EXPECT_EQ(plan.needs.window_rows, 20);
    EXPECT_EQ(plan.needs.score_heads, 2);
    EXPECT_TRUE(plan.needs.selects);
    EXPECT_EQ(plan.needs.stored_score_layers, 3);
  }
}

TEST(PyramidShapes, MeasuredOnesMeasureNothingWhereThePromptFits) {
  const CachePlan plan = Plan("pyramidkv(budget=100,shape=entropy)", 3, 100, 11);
  EXPECT_EQ(plan.decide, DecideAt::kLayer);
  EXPECT_EQ(plan.importance, LayerImportance::kNone);
  EXPECT_EQ(plan.needs.window_rows, 0);
  EXPECT_EQ(plan.needs.stored_score_layers, 0);
  EXPECT_EQ(Plan("pyramidkv(budget=100,shape=entropy)", 3, 101, 11).decide, DecideAt::kPrompt);
}

std::vector<LayerPlan> Decide(const std::vector<double>& importance, int tokens) {
  return Parse("pyramidkv(budget=100,window=20,shape=gini)")
      ->Decide(TestModel(static_cast<int>(importance.size())), {tokens, 11}, importance);
}

TEST(PyramidShapes, MeasuredOnesAreInProportionToWhatWasMeasured) {
  // 80 * 4 = 320 pairs.
  const auto layers = Decide({0.1, 0.2, 0.4, 0.1}, 5000);
  EXPECT_TRUE(AllAre<KeepBest>(layers));
  EXPECT_THAT(Kept(layers), ElementsAre(60, 100, 180, 60));
  EXPECT_EQ(std::get<KeepBest>(layers[2].edit).best, 160);
}

TEST(PyramidShapes, WhatAShortPromptLeavesOverGoesUpAndThenAround) {
  // 160 of 320 for layer 2, of which a prompt of 120 has room for 100: 60 go to layer 3, which has
  // room for those and keeps 100; 0 go around.
  EXPECT_THAT(Kept(Decide({0.1, 0.2, 0.4, 0.1}, 120)), ElementsAre(60, 100, 120, 120));
  // 40, 80, 40, 160: the top layer passes 60 on to layer 0.
  EXPECT_THAT(Kept(Decide({0.1, 0.2, 0.1, 0.4}, 120)), ElementsAre(120, 100, 60, 120));
}

TEST(PyramidShapes, WithoutAnyWeightIsUniform) {
  EXPECT_THAT(Kept(Decide({0, 0, 0}, 5000)), Each(100u));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(Kept(Decide({nan, -1, 0}, 5000)), Each(100u));
  EXPECT_THAT(Kept(Decide({nan, 1, -7}, 5000)), ElementsAre(20, 260, 20));
}

RC_GTEST_PROP(PyramidShapesProperty, KeepTheMeanBudgetOrThePrompt, ()) {
  const int layers = *rc::gen::inRange(1, 60);
  const int tokens = *rc::gen::inRange(1, 3000);
  const int budget = 20 + *rc::gen::inRange(1, 1000);
  const std::string shape = *rc::gen::element(
      std::string("geometric,ratio=0.37"), std::string("exponential,rate=7"), std::string("gini"));
  const auto policy =
      Parse("pyramidkv(window=20,budget=" + std::to_string(budget) + ",shape=" + shape + ")");
  std::vector<double> importance(layers);
  for (double& value : importance) value = *rc::gen::inRange(0, 100) / 100.0;
  const auto planned = policy->Decide(TestModel(layers), {tokens, 1}, importance);
  RC_ASSERT(TotalKept(planned) ==
            static_cast<size_t>(layers) * static_cast<size_t>(std::min(budget, tokens)));
}

}  // namespace
}  // namespace ziggurat

// Scores that are stored until the last layer has been through, and what their distribution says of
// a layer, against plain computations in double.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "compression/layer_plan.h"
#include "model/cache_ops/prompt_layer.h"
#include "tests/model/prompt_lab.h"

namespace ziggurat::testing {
namespace {

using ::testing::ElementsAreArray;
using Positions = std::vector<int32_t>;

constexpr double kTolerance = 2e-5;

class PromptScores : public ::testing::TestWithParam<std::string> {
 protected:
  PromptLabOptions options_;

  int n() const { return options_.tokens; }
  CachePlan UniformPlan(const LayerPlan& layer) const {
    CachePlan plan;
    plan.layers.assign(options_.num_layers, layer);
    return WithNeeds(options_, std::move(plan));
  }
};

double PlainEntropy(const std::vector<double>& scores) {
  const double sum = std::accumulate(scores.begin(), scores.end(), 0.0);
  double entropy = 0;
  for (const double score : scores) {
    if (score > 0) entropy -= score / sum * std::log(score / sum);
  }
  return entropy;
}

TEST_P(PromptScores, StoredScoresSelectOnceAllLayersAreThrough) {
  for (const LayerImportance importance : {LayerImportance::kEntropy, LayerImportance::kGini}) {
    const WindowScoreStatistic statistic{8, 5};
    CachePlan plan;
    plan.layers.assign(3, PlanKeepAll({n(), 10}));
    for (LayerPlan& layer : plan.layers) layer.statistic = statistic;
    plan.importance = importance;
    plan.decide = DecideAt::kPrompt;
    PromptLab lab(GetParam(), options_, WithNeeds(options_, plan));
    const WindowScoreStatistic unpooled{statistic.window, 1};
    for (int layer = 0; layer < 3; ++layer) {
      const LayerMeasured measured = lab.Run(layer);
      EXPECT_EQ(measured.kept_tokens, n());
      double expected = 0;
      for (int head = 0; head < 2; ++head) {
        const std::vector<double> p = PlainWindowScores(lab, layer, head, n(), unpooled);
        if (importance == LayerImportance::kEntropy) {
          expected += PlainEntropy(p) / 2;
        } else {  // the mean difference of all pairs over twice the mean
          const double sum = std::accumulate(p.begin(), p.end(), 0.0);
          double differences = 0;
          for (const double a : p) {
            for (const double b : p) differences += std::abs(a - b);
          }
          expected += differences / (2 * static_cast<double>(p.size()) * sum) / 2;
        }
      }
      EXPECT_NEAR(measured.importance, expected, kTolerance * std::max(1.0, expected));
    }
    for (int layer = 0; layer < 3; ++layer) {
      Positions kept;
      ASSERT_TRUE(lab.prompt().SelectStored(layer, {11 + layer, 8}, &kept).ok());
      ASSERT_EQ(kept.size(), 2u * (19 + layer));
      for (int head = 0; head < 2; ++head) {
        Positions expected =
            PlainBest(PlainWindowScores(lab, layer, head, n(), statistic), 11 + layer);
        for (int t = n() - 8; t < n(); ++t) expected.push_back(t);
        EXPECT_THAT(RowOf(kept.data(), head, 19 + layer), ElementsAreArray(expected));
      }
    }
    Positions kept = {1, 2, 3};
    EXPECT_EQ(lab.prompt().SelectStored(0, {n() - 7, 8}, &kept).code(),
              absl::StatusCode::kInternal);
    ASSERT_TRUE(lab.prompt().SelectStored(0, {n() - 8, 8}, &kept).ok());
    Positions all(n());
    std::iota(all.begin(), all.end(), 0);
    ASSERT_EQ(kept.size(), 2u * n());
    EXPECT_EQ(RowOf(kept.data(), 1, n()), all);
  }
}

TEST_P(PromptScores, TokensWithoutAnyScoreAddNothingToTheEntropy) {
  options_.q_spread = 150;  // most keys get less than a float can tell from 0
  const WindowScoreStatistic statistic{1, 1};
  LayerPlan layer = PlanKeepAll({n(), 10});
  layer.statistic = statistic;
  CachePlan plan = UniformPlan(layer);
  plan.importance = LayerImportance::kEntropy;
  plan.decide = DecideAt::kPrompt;
  PromptLab lab(GetParam(), options_, WithNeeds(options_, plan));
  const LayerMeasured measured = lab.Run(0);
  double expected = 0;
  for (int head = 0; head < 2; ++head) {
    expected += PlainEntropy(PlainWindowScores(lab, 0, head, n(), statistic)) / 2;
  }
  EXPECT_NEAR(measured.importance, expected, 1e-3);
}

TEST_P(PromptScores, WhereNoTokenHasAnyScoreTheImportanceIsZero) {
  options_ = {.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .tokens = 2, .q_spread = 150};
  const WindowScoreStatistic statistic{1, 1};
  LayerPlan layer = PlanKeepAll({n(), 10});
  layer.statistic = statistic;
  for (const LayerImportance importance : {LayerImportance::kEntropy, LayerImportance::kGini}) {
    CachePlan plan = UniformPlan(layer);
    plan.importance = importance;
    plan.decide = DecideAt::kPrompt;
    int without = 0;  // prompts of two tokens whose last one attends to itself
    for (options_.seed = 1; options_.seed <= 20; ++options_.seed) {
      PromptLab lab(GetParam(), options_, WithNeeds(options_, plan));
      EXPECT_NEAR(lab.Run(0).importance, 0, 1e-6) << "of one token, seed " << options_.seed;
      without += PlainWindowScores(lab, 0, 0, n(), statistic)[0] < 1e-50;
    }
    EXPECT_GT(without, 0);
  }
}

TEST_P(PromptScores, NothingIsSelectedWhereNothingWasStored) {
  PromptLab lab(GetParam(), options_, UniformPlan(PlanKeepAll({n(), 10})));
  lab.Run(0);
  Positions kept;
  EXPECT_EQ(lab.prompt().SelectStored(0, {5, 8}, &kept).code(), absl::StatusCode::kInternal);
}

INSTANTIATE_TEST_SUITE_P(Backends, PromptScores, ::testing::ValuesIn(CacheOpsBackends()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace ziggurat::testing

// Budgets: the line, its integers, and where the excess of short prompts goes.
#include "compression/budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

namespace ziggurat {
namespace {

using ::testing::ElementsAre;

int64_t Sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

TEST(LinearPyramid, IsThePapersLine) {
  // T = 480 * 4: top 480 / 20 = 24, bottom 960 - 24 = 936, steps of 304.
  EXPECT_THAT(LinearPyramid(480, 4, 20), ElementsAre(936, 632, 328, 24));
}

TEST(LinearPyramid, IsUniformAtBetaOne) {
  EXPECT_THAT(LinearPyramid(100, 3, 1), ElementsAre(100, 100, 100));
}

TEST(LinearPyramid, GivesASingleLayerEverything) {
  EXPECT_THAT(LinearPyramid(504, 1, 20), ElementsAre(504));
}

TEST(LargestRemainder, RoundsUpTheLargestRemainders) {
  const double shares[] = {3.2, 2.7, 1.6, 0.5};
  EXPECT_THAT(LargestRemainder(shares, 8), ElementsAre(3, 3, 2, 0));
}

TEST(LargestRemainder, GivesTiesToTheLowerLayer) {
  const double shares[] = {1.5, 1.5, 1.5, 1.5};
  EXPECT_THAT(LargestRemainder(shares, 6), ElementsAre(2, 2, 1, 1));
}

TEST(LargestRemainder, TakesRemainderThatDifferOnlyByRoundingAsTies) {
  const double shares[] = {10.0 / 3, 10.0 / 3 + 1e-12, 10.0 / 3 + 2e-12};
  EXPECT_THAT(LargestRemainder(shares, 10), ElementsAre(4, 3, 3));
}

TEST(SpillUpward, FillsTheLayersAboveInOrder) {
  std::vector<int64_t> pairs = {90, 60, 30, 10};
  SpillUpward(50, absl::MakeSpan(pairs));
  EXPECT_THAT(pairs, ElementsAre(50, 50, 50, 40));
}

TEST(SpillUpward, GoesAroundFromTheBottomLayer) {
  std::vector<int64_t> pairs = {10, 20, 30, 90};
  SpillUpward(50, absl::MakeSpan(pairs));
  EXPECT_THAT(pairs, ElementsAre(50, 20, 30, 50));
}

TEST(SpillUpward, LeavesWhatFitsAsItIs) {
  std::vector<int64_t> pairs = {90, 60, 30, 10};
  SpillUpward(90, absl::MakeSpan(pairs));
  EXPECT_THAT(pairs, ElementsAre(90, 60, 30, 10));
}

TEST(SpillUpward, KeepsNothingWhereThereIsNoRoom) {
  std::vector<int64_t> pairs = {90, 60};
  SpillUpward(0, absl::MakeSpan(pairs));
  EXPECT_THAT(pairs, ElementsAre(0, 0));
}

TEST(WeightedShares, OfWeightsWhoseSumIsNoNumberAreInProportion) {
  constexpr double kMost = std::numeric_limits<double>::max();
  const double weights[] = {kMost, kMost, kMost / 2, 0};
  EXPECT_THAT(WeightedShares(10, weights), ElementsAre(16, 16, 8, 0));
}

// ---- Properties --------------------------------------------------------------------------------

struct Shape {
  int64_t mean;
  int layers;
  double beta;
};

Shape DrawShape() {
  const int64_t mean = *rc::gen::oneOf(rc::gen::inRange<int64_t>(1, 5000),
                                       rc::gen::inRange<int64_t>(1, int64_t{1} << 24));
  const int layers = *rc::gen::inRange(1, 130);
  const double beta = *rc::gen::inRange(100, 10000) / 100.0;
  return {mean, layers, beta};
}

RC_GTEST_PROP(BudgetProperty, IntegersSumExactlyFallAndStayWithinOneOfTheLine, ()) {
  const auto [mean, layers, beta] = DrawShape();
  const std::vector<double> line = LinearPyramid(static_cast<double>(mean), layers, beta);
  const std::vector<int64_t> pairs = LargestRemainder(line, mean * layers);
  RC_ASSERT(pairs.size() == static_cast<size_t>(layers));
  RC_ASSERT(Sum(pairs) == mean * layers);
  RC_ASSERT(std::is_sorted(pairs.begin(), pairs.end(), std::greater<>()));
  for (int layer = 0; layer < layers; ++layer) {
    RC_ASSERT(pairs[layer] >= 0);
    RC_ASSERT(std::abs(static_cast<double>(pairs[layer]) - line[layer]) < 1 + 1e-6);
  }
}

RC_GTEST_PROP(BudgetProperty, SharesOfAnyOrderSumExactlyToo, ()) {
  const auto weights =
      *rc::gen::nonEmpty(rc::gen::container<std::vector<int>>(rc::gen::inRange(1, 1000)));
  const int64_t total = *rc::gen::inRange<int64_t>(0, 100000);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> shares;
  for (int weight : weights) shares.push_back(static_cast<double>(total) * weight / sum);
  const std::vector<int64_t> integers = LargestRemainder(shares, total);
  RC_ASSERT(Sum(integers) == total);
  for (size_t i = 0; i < shares.size(); ++i) {
    RC_ASSERT(std::abs(static_cast<double>(integers[i]) - shares[i]) < 1 + 1e-6);
  }
}

RC_GTEST_PROP(BudgetProperty, SpillingKeepsTheSumThatFitsAndTheFall, ()) {
  const auto [mean, layers, beta] = DrawShape();
  std::vector<int64_t> pairs =
      LargestRemainder(LinearPyramid(static_cast<double>(mean), layers, beta), mean * layers);
  const std::vector<int64_t> before = pairs;
  const int64_t capacity = *rc::gen::inRange<int64_t>(0, 2 * mean + 2);
  SpillUpward(capacity, absl::MakeSpan(pairs));
  RC_ASSERT(Sum(pairs) == std::min(mean * layers, capacity * layers));
  RC_ASSERT(std::is_sorted(pairs.begin(), pairs.end(), std::greater<>()));
  for (int layer = 0; layer < layers; ++layer) {
    RC_ASSERT(pairs[layer] <= capacity);
    // A layer gives up only what it has no room for.
    RC_ASSERT(pairs[layer] >= std::min(before[layer], capacity));
  }
}

RC_GTEST_PROP(BudgetProperty, SpillingKeepsTheSumOfAnyShape, ()) {
  std::vector<int64_t> pairs = *rc::gen::nonEmpty(
      rc::gen::container<std::vector<int64_t>>(rc::gen::inRange<int64_t>(0, 999)));
  const std::vector<int64_t> before = pairs;
  const int64_t capacity = *rc::gen::inRange<int64_t>(0, 1000);
  SpillUpward(capacity, absl::MakeSpan(pairs));
  RC_ASSERT(Sum(pairs) == std::min(Sum(before), capacity * static_cast<int64_t>(pairs.size())));
  for (size_t i = 0; i < pairs.size(); ++i) {
    RC_ASSERT(pairs[i] <= capacity);
    RC_ASSERT(pairs[i] >= std::min(before[i], capacity));
  }
}

}  // namespace
}  // namespace ziggurat

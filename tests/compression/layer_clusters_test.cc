// Groups of layers by one number.
#include "compression/layer_clusters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace ziggurat {
namespace {

using ::testing::ElementsAre;
using ::testing::Optional;

std::optional<std::vector<int>> Cluster(const std::vector<double>& values) {
  return ClusterInThree(values);
}

TEST(ClusterInThree, FindsGroupsThatLieApart) {
  EXPECT_THAT(Cluster({0.9, 0.1, 0.5, 0.91, 0.52}), Optional(ElementsAre(2, 0, 1, 2, 1)));
  EXPECT_THAT(Cluster({3, 2, 1}), Optional(ElementsAre(2, 1, 0)));
  EXPECT_THAT(Cluster({-5, -5, 7, 1, -5}), Optional(ElementsAre(0, 0, 2, 1, 0)));
}

TEST(ClusterInThree, FindsTheBestWayWhereCentresThatMoveEndInAWorseOne) {
  EXPECT_THAT(Cluster({0, 1, 2, 3, 4, 5, 6, 7, 20}),
              Optional(ElementsAre(0, 0, 0, 0, 1, 1, 1, 1, 2)));
  // From the least, the median and the greatest on, the upper seven would be two groups.
  EXPECT_THAT(Cluster({.35, .60, .93, .94, .95, .96, .97, .975, .98}),
              Optional(ElementsAre(0, 1, 2, 2, 2, 2, 2, 2, 2)));
  EXPECT_THAT(Cluster({.89, .32, .80, .42}), Optional(ElementsAre(2, 0, 2, 1)));
}

TEST(ClusterInThree, TakesTheLowestCutsOfEquallyGoodWays) {
  for (const double step : {0.01, 0.03, 0.07, 0.1, 0.3, 1.0}) {
    for (int first = 0; first < 10; ++first) {
      std::vector<double> values;
      for (int i = first; i < first + 4; ++i) values.push_back(i * step);
      EXPECT_THAT(Cluster(values), Optional(ElementsAre(0, 1, 2, 2))) << first << " * " << step;
    }
  }
}

TEST(ClusterInThree, KeepsEqualValuesTogether) {
  EXPECT_THAT(Cluster({1, 1, 1, 2, 9}), Optional(ElementsAre(0, 0, 0, 1, 2)));
}

TEST(ClusterInThree, NeedsThreeDistinctFiniteValues) {
  EXPECT_EQ(Cluster({}), std::nullopt);
  EXPECT_EQ(Cluster({1, 2}), std::nullopt);
  EXPECT_EQ(Cluster({1, 2, 2, 1}), std::nullopt);
  EXPECT_EQ(Cluster({1, 2, std::numeric_limits<double>::quiet_NaN()}), std::nullopt);
  EXPECT_EQ(Cluster({1, 2, std::numeric_limits<double>::infinity()}), std::nullopt);
}

/// The sum of squared distances from the means of the groups.
double SpreadOf(const std::vector<double>& values, const std::vector<int>& groups) {
  double sums[3] = {}, counts[3] = {}, spread = 0;
  for (size_t i = 0; i < values.size(); ++i) sums[groups[i]] += values[i], ++counts[groups[i]];
  for (size_t i = 0; i < values.size(); ++i) {
    const double distance = values[i] - sums[groups[i]] / counts[groups[i]];
    spread += distance * distance;
  }
  return spread;
}

RC_GTEST_PROP(ClusterInThreeProperty, NoOtherCentresAreBetter, ()) {
  std::vector<double> values(*rc::gen::inRange(3, 60));
  for (double& value : values) value = *rc::gen::inRange(0, 1000) / 1000.0;
  const auto groups = Cluster(values);
  RC_PRE(groups.has_value());
  const double best = SpreadOf(values, *groups);
  for (int attempt = 0; attempt < 50; ++attempt) {
    double centres[3];
    for (double& centre : centres) centre = *rc::gen::inRange(0, 1000) / 1000.0;
    std::vector<int> others;
    for (const double value : values) {
      const auto nearest = std::min_element(centres, centres + 3, [&](double a, double b) {
        return std::abs(value - a) < std::abs(value - b);
      });
      others.push_back(static_cast<int>(nearest - centres));
    }
    RC_ASSERT(best <= SpreadOf(values, others) + 1e-9);
  }
}

RC_GTEST_PROP(ClusterInThreeProperty, GroupsAreIntervalsAndStable, ()) {
  std::vector<double> values(*rc::gen::inRange(3, 100));
  for (double& value : values) value = *rc::gen::inRange(0, 200) / 100.0;
  const auto groups = Cluster(values);
  RC_PRE(groups.has_value());
  double sums[3] = {}, counts[3] = {}, low[3], high[3];
  std::fill_n(low, 3, 1e9);
  std::fill_n(high, 3, -1e9);
  for (size_t i = 0; i < values.size(); ++i) {
    const int g = (*groups)[i];
    sums[g] += values[i];
    ++counts[g];
    low[g] = std::min(low[g], values[i]);
    high[g] = std::max(high[g], values[i]);
  }
  RC_ASSERT(counts[0] > 0);
  RC_ASSERT(counts[2] > 0);
  RC_ASSERT(high[0] < low[2]);
  if (counts[1] > 0) {
    RC_ASSERT(high[0] < low[1]);
    RC_ASSERT(high[1] < low[2]);
  }
  // No value is nearer to the mean of another group.
  for (size_t i = 0; i < values.size(); ++i) {
    const int g = (*groups)[i];
    for (int other = 0; other < 3; ++other) {
      if (counts[other] == 0) continue;
      RC_ASSERT(std::abs(values[i] - sums[g] / counts[g]) <=
                std::abs(values[i] - sums[other] / counts[other]) + 1e-12);
    }
  }
}

RC_GTEST_PROP(ClusterInThreeProperty, DoesNotDependOnTheOrderOfLayers, ()) {
  std::vector<double> values(*rc::gen::inRange(3, 40));
  for (double& value : values) value = *rc::gen::inRange(0, 1000);
  const auto groups = Cluster(values);
  RC_PRE(groups.has_value());
  std::vector<double> reversed(values.rbegin(), values.rend());
  auto backwards = Cluster(reversed);
  RC_ASSERT(backwards.has_value());
  std::reverse(backwards->begin(), backwards->end());
  RC_ASSERT(*backwards == *groups);
}

}  // namespace
}  // namespace ziggurat

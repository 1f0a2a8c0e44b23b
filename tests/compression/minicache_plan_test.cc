// What minicache plans.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/compression/plan_testing.h"

namespace ziggurat {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr MergeRole kNone = MergeRole::kNone;
constexpr MergeRole kLower = MergeRole::kLower;
constexpr MergeRole kUpper = MergeRole::kUpper;

std::vector<MergeRole> Roles(const CachePlan& plan) {
  std::vector<MergeRole> roles;
  for (const LayerPlan& layer : plan.layers) roles.push_back(layer.merge);
  return roles;
}

TEST(MiniCachePlan, PairsTheUpperHalf) {
  const CachePlan plan = Plan("minicache", 8, 100, 10);
  EXPECT_THAT(Roles(plan), ElementsAre(kNone, kNone, kNone, kNone, kLower, kUpper, kLower, kUpper));
  EXPECT_TRUE(AllAre<KeepAll>(plan));
  EXPECT_TRUE(plan.needs.lower_kv);
  EXPECT_EQ(plan.needs.window_rows, 0);
}

TEST(MiniCachePlan, LeavesAnUnpairedLastLayerAsItIs) {
  EXPECT_THAT(Roles(Plan("minicache", 6, 100, 10)),
              ElementsAre(kNone, kNone, kNone, kLower, kUpper, kNone));
  EXPECT_THAT(Roles(Plan("minicache", 5, 100, 10)),
              ElementsAre(kNone, kNone, kLower, kUpper, kNone));
  EXPECT_THAT(Roles(Plan("minicache(start=2)", 5, 100, 10)),
              ElementsAre(kNone, kNone, kLower, kUpper, kNone));
  EXPECT_THAT(Roles(Plan("minicache(start=0)", 4, 100, 10)),
              ElementsAre(kLower, kUpper, kLower, kUpper));
}

TEST(MiniCachePlan, CarriesItsOptions) {
  const CachePlan plan =
      Plan("minicache(t=0.5,retain=0.1,tail=64,retain_by=threshold)", 4, 100, 10);
  ASSERT_TRUE(plan.merge.has_value());
  EXPECT_EQ(plan.merge->t, 0.5);
  EXPECT_EQ(plan.merge->retain, 0.1);
  EXPECT_EQ(plan.merge->tail, 64);
  EXPECT_TRUE(plan.merge->by_threshold);
  EXPECT_FALSE(Plan("minicache", 4, 100, 10).merge->by_threshold);
}

TEST(MiniCachePlan, IsRefusedWhereNothingCanBePaired) {
  EXPECT_TRUE(Parse("minicache(start=2)")->Check(TestModel(4)).ok());
  EXPECT_THAT(Parse("minicache(start=3)")->Check(TestModel(4)).ToString(),
              HasSubstr("start=3 leaves no pair of layers to merge in a model of 4"));
  EXPECT_TRUE(Parse("minicache")->Check(TestModel(2)).ok()) << "the last layer stays as it is";
  EXPECT_FALSE(Plan("minicache", 2, 100, 10).merge.has_value());
  EXPECT_FALSE(Plan("minicache", 1, 100, 10).merge.has_value());
}

}  // namespace
}  // namespace ziggurat

// What kivi, int8 and fp8 add to a plan.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/compression/plan_testing.h"

namespace ziggurat {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using Kind = Quantization::Kind;

TEST(QuantizedPlan, KeepsEverythingAsCodes) {
  const CachePlan kivi = Plan("kivi(bits=2,group=16,residual=64)", 2, 100, 10);
  ASSERT_TRUE(kivi.quantization.has_value());
  EXPECT_EQ(kivi.quantization->kind, Kind::kInt2);
  EXPECT_EQ(kivi.quantization->group, 16);
  EXPECT_EQ(kivi.quantization->residual, 64);
  EXPECT_TRUE(AllAre<KeepAll>(kivi));
  EXPECT_EQ(Plan("kivi", 1, 9, 9).quantization->kind, Kind::kInt4);
  EXPECT_EQ(Plan("int8", 1, 9, 9).quantization->kind, Kind::kInt8);
  EXPECT_EQ(Plan("fp8", 1, 9, 9).quantization->kind, Kind::kFp8);
}

TEST(QuantizedPlan, LeavesEveryOtherDecisionToTheOtherPolicy) {
  const CachePlan alone = Plan("snapkv(budget=50)", 2, 100, 10);
  const CachePlan both = Plan("snapkv(budget=50)+kivi", 2, 100, 10);
  ASSERT_TRUE(AllAre<KeepBest>(both));
  EXPECT_EQ(Kept(both), Kept(alone));
  EXPECT_EQ(both.needs.window_rows, alone.needs.window_rows);
  EXPECT_TRUE(both.quantization.has_value());
}

TEST(QuantizedPlan, MustSuitTheHeadSize) {
  const auto check = [](std::string_view text, int head_dim) {
    PolicyContext context = TestModel(2);
    context.head_dim = head_dim;
    return Parse(text)->Check(context).ToString();
  };
  EXPECT_EQ(check("kivi", 64), "OK");
  EXPECT_THAT(check("kivi(group=48)", 64),
              HasSubstr("kivi: group=48 must divide the head size, which is 64"));
  EXPECT_EQ(check("kivi(group=40)", 80), "OK");
  EXPECT_EQ(check("kivi(bits=2,group=8)", 80), "OK");
  EXPECT_THAT(check("kivi(bits=2,group=8)", 8), HasSubstr("multiple of 16, and this model's is 8"));
  EXPECT_EQ(check("kivi(bits=4,group=8)", 8), "OK");
  EXPECT_THAT(check("kivi(bits=4,group=4)", 4), HasSubstr("multiple of 8"));
  EXPECT_EQ(check("int8", 8), "OK");
  EXPECT_EQ(check("fp8", 80), "OK");
  EXPECT_THAT(check("snapkv(budget=100)+kivi(group=48)", 64), HasSubstr("must divide"));
}

}  // namespace
}  // namespace ziggurat

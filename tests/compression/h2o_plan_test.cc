// What h2o plans.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/compression/plan_testing.h"

namespace ziggurat {
namespace {

using ::testing::Each;

TEST(H2oPlan, KeepsHeavyAndRecentTokensInOneSlotMore) {
  const CachePlan plan = Plan("h2o(heavy=100,recent=28)", 3, 1000, 50);
  ASSERT_TRUE(AllAre<KeepHeavy>(plan));
  EXPECT_EQ(std::get<KeepHeavy>(plan.layers[2].edit).heavy, 100);
  EXPECT_EQ(std::get<KeepHeavy>(plan.layers[2].edit).recent, 28);
  EXPECT_THAT(Kept(plan), Each(128u));
}

TEST(H2oPlan, NeedsTheQueriesOfTheWholePrompt) {
  const CachePlan plan = Plan("h2o", 1, 1000, 50);
  EXPECT_EQ(plan.needs.window_rows, -1);
  EXPECT_EQ(plan.needs.score_heads, 2);  // KV heads
  EXPECT_TRUE(plan.needs.selects);
}

TEST(H2oPlan, ScoresAShortPromptThatItsAnswerOutgrows) {
  // 120 tokens and 19 appended ones: more than 129 slots.
  const CachePlan plan = Plan("h2o(heavy=100,recent=28)", 1, 120, 20);
  ASSERT_TRUE(AllAre<KeepHeavy>(plan));
  EXPECT_THAT(Kept(plan), Each(120u));
}

TEST(H2oPlan, MeasuresNothingWhereNothingWillBeEvicted) {
  // 120 tokens and 9 appended ones fill the 129 slots; no token comes after that.
  const CachePlan plan = Plan("h2o(heavy=100,recent=28)", 1, 120, 10);
  EXPECT_TRUE(AllAre<KeepAll>(plan));
  EXPECT_EQ(plan.needs.window_rows, 0);
  EXPECT_TRUE(AllAre<KeepHeavy>(Plan("h2o(heavy=100,recent=28)", 1, 120, 11)));
  EXPECT_TRUE(AllAre<KeepHeavy>(Plan("h2o(heavy=100,recent=28)", 1, 129, 1)));
}

}  // namespace
}  // namespace ziggurat

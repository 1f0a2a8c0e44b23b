// What windowkv plans: defaults by task and model family, group budgets, leaders and followers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/compression/plan_testing.h"

namespace ziggurat {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

KeepWindows LeaderOf(std::string_view text, std::string_view architecture) {
  const CachePlan plan = Parse(text)->Plan(TestModel(16, architecture), {1 << 16, 1});
  return std::get<KeepWindows>(plan.layers[0].edit);
}

struct Defaults {
  const char* task;
  const char* architecture;
  int observe, review, best;
};

TEST(WindowKvPlan, HasDefaultsByTaskAndModelFamily) {
  for (const Defaults& expected : {Defaults{"localization", "LlamaForCausalLM", 16, 8, 8},
                                   Defaults{"aggregation", "LlamaForCausalLM", 32, 16, 8},
                                   Defaults{"localization", "Qwen2ForCausalLM", 4, 32, 32},
                                   Defaults{"aggregation", "Qwen2ForCausalLM", 16, 32, 16},
                                   Defaults{"localization", "MistralForCausalLM", 16, 8, 8},
                                   Defaults{"aggregation", "", 32, 16, 8}}) {
    const std::string text = std::string("windowkv(budget=512,task=") + expected.task + ")";
    const KeepWindows edit = LeaderOf(text, expected.architecture);
    EXPECT_EQ(edit.observe, expected.observe) << text << expected.architecture;
    EXPECT_EQ(edit.review, expected.review) << text << expected.architecture;
    EXPECT_EQ(edit.best, expected.best) << text << expected.architecture;
  }
}

TEST(WindowKvPlan, TakesWhatIsSetInsteadOfDefaults) {
  const KeepWindows edit =
      LeaderOf("windowkv(budget=512,task=aggregation,review=24,observe=5,p=3)", "LlamaForCausalLM");
  EXPECT_EQ(edit.observe, 5);
  EXPECT_EQ(edit.review, 24);
  EXPECT_EQ(edit.best, 3);
  EXPECT_EQ(LeaderOf("windowkv(budget=512,task=aggregation,review=24)", "").best, 12);
  EXPECT_EQ(LeaderOf("windowkv(budget=512,task=aggregation,review=5)", "").best, 2);
  EXPECT_EQ(LeaderOf("windowkv(budget=512,task=aggregation,review=1)", "").best, 1);
}

std::vector<int> Leaders(const CachePlan& plan) {
  std::vector<int> leaders;
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    const auto* follower = std::get_if<KeepAsLeader>(&plan.layers[i].edit);
    leaders.push_back(follower != nullptr ? follower->leader : static_cast<int>(i));
  }
  return leaders;
}

TEST(WindowKvPlan, GroupsFollowTheirFirstLayer) {
  const CachePlan plan = Plan("windowkv(budget=512,task=localization,group=4)", 10, 1 << 16, 1);
  EXPECT_THAT(Leaders(plan), ElementsAre(0, 0, 0, 0, 4, 4, 4, 4, 8, 8));
  const auto group_of = [](std::string_view architecture) {
    const auto policy = Parse("windowkv(budget=512,task=localization)");
    return Leaders(policy->Plan(TestModel(28, architecture), {1 << 16, 1}));
  };
  EXPECT_EQ(group_of("Qwen2ForCausalLM")[7], 7);
  EXPECT_EQ(group_of("Qwen2ForCausalLM")[6], 0);
  EXPECT_EQ(group_of("LlamaForCausalLM")[7], 0);
  EXPECT_EQ(group_of("LlamaForCausalLM")[8], 8);
}

TEST(WindowKvPlan, BudgetsFallFromGroupToGroupAndSumExactly) {
  // (128 - 32) * 16 = 1536 in 4 groups, mean 384: the top one gets 384 / 14 = 27.43, the bottom
  // one 740.57, between them 502.86 and 265.14. Rounded 741, 503, 265, 27; a quarter for each of
  // four layers, rounded down.
  const CachePlan plan =
      Plan("windowkv(budget=128,task=aggregation,observe=32,group=4)", 16, 5000, 11);
  EXPECT_THAT(Kept(plan),
              ElementsAre(217, 217, 217, 217, 157, 157, 157, 157, 98, 98, 98, 98, 38, 38, 38, 38));
  EXPECT_EQ(std::get<KeepWindows>(plan.layers[4].edit).budget, 125);
}

TEST(WindowKvPlan, ASmallerLastGroupSharesItsBudgetAmongFewer) {
  // (84 - 4) * 6 = 480 in 2 groups of 4 and 2 layers, mean 240: 240 / 4 = 60 and 420.
  const CachePlan plan =
      Plan("windowkv(budget=84,task=aggregation,observe=4,group=4,lambda=4)", 6, 5000, 1);
  EXPECT_THAT(Kept(plan), ElementsAre(109, 109, 109, 109, 34, 34));
}

TEST(WindowKvPlan, OneGroupGetsAll) {
  const CachePlan plan =
      Plan("windowkv(budget=100,task=aggregation,observe=20,group=16)", 7, 5000, 1);
  EXPECT_THAT(Kept(plan), Each(100u));
  EXPECT_THAT(Leaders(plan), Each(0));
}

TEST(WindowKvPlan, KeepsAPromptWholeWhereItFits) {
  const CachePlan plan =
      Plan("windowkv(budget=128,task=aggregation,observe=32,group=4)", 16, 157, 11);
  // The bottom groups hold 217 and 157 tokens, the others 98 and 38.
  EXPECT_THAT(Kept(plan),
              ElementsAre(157, 157, 157, 157, 157, 157, 157, 157, 98, 98, 98, 98, 38, 38, 38, 38));
  EXPECT_TRUE(std::holds_alternative<KeepAll>(plan.layers[4].edit));
  EXPECT_TRUE(std::holds_alternative<KeepAll>(plan.layers[5].edit));
  EXPECT_TRUE(std::holds_alternative<KeepWindows>(plan.layers[8].edit));
  const CachePlan shorter = Plan("windowkv(budget=128,task=aggregation,observe=32)", 16, 20, 11);
  EXPECT_TRUE(AllAre<KeepAll>(shorter));
  EXPECT_EQ(shorter.needs.window_rows, 0);
}

TEST(WindowKvPlan, NeedsScoresOfEveryQueryHead) {
  const CachePlan plan = Plan("windowkv(budget=128,task=localization)", 4, 5000, 1);
  EXPECT_EQ(plan.needs.window_rows, 16);
  EXPECT_EQ(plan.needs.score_heads, 8);  // query heads
  EXPECT_TRUE(plan.needs.selects);
}

TEST(WindowKvPlan, LowersADefaultThatTheBudgetDoesNotExceed) {
  const KeepWindows edit = LeaderOf("windowkv(budget=10,task=aggregation)", "");
  EXPECT_EQ(edit.observe, 9);
  EXPECT_THAT(Kept(Plan("windowkv(budget=10,task=aggregation,group=1,lambda=1)", 2, 5000, 1)),
              Each(10u));
}

TEST(WindowKvPlan, WithoutATaskBoundsBoth) {
  const int layers = 16;
  const CachePlan open = Plan("windowkv(budget=64)", layers, 5000, 11);
  const CachePlan localization = Plan("windowkv(budget=64,task=localization)", layers, 5000, 11);
  const CachePlan aggregation = Plan("windowkv(budget=64,task=aggregation)", layers, 5000, 11);
  EXPECT_NE(Kept(localization), Kept(aggregation));
  for (int i = 0; i < layers; ++i) {
    EXPECT_EQ(Kept(open)[i], std::max(Kept(localization)[i], Kept(aggregation)[i]));
  }
  EXPECT_NE(localization.needs.window_rows, aggregation.needs.window_rows);
  EXPECT_EQ(open.needs.window_rows,
            std::max(localization.needs.window_rows, aggregation.needs.window_rows));
  EXPECT_EQ(open.needs.score_heads, aggregation.needs.score_heads);
}

TEST(WindowKvPolicy, ReadsThePromptOnlyToFindItsTask) {
  const auto stated = Parse("windowkv(budget=64,task=aggregation)");
  EXPECT_FALSE(stated->wants_prompt_text());
  EXPECT_EQ(stated->ForPrompt("Where is the key?"), nullptr);
  const auto open = Parse("windowkv(budget=64)");
  EXPECT_TRUE(open->wants_prompt_text());
  const auto resolved = open->ForPrompt("Where is the key?");
  ASSERT_NE(resolved, nullptr);
  EXPECT_FALSE(resolved->wants_prompt_text());
  EXPECT_EQ(resolved->name(), "windowkv");
}

TEST(WindowKvPolicy, TellsAQuestionFromASummary) {
  const auto open = Parse("simlayerkv+windowkv(budget=64)+int8");
  EXPECT_TRUE(open->wants_prompt_text());
  const std::string text(4000, ' ');
  const auto question = open->ForPrompt(
      "Read the following passage and answer the question with the exact phrase from it.\n" + text +
      "\nQuestion: In which year was the bridge opened?\nAnswer:");
  const auto summary = open->ForPrompt(
      "You are given a report by a government agency. Write a one-page summary of the report.\n" +
      text + "\nNow, write a one-page summary of the report.\nSummary:");
  ASSERT_NE(question, nullptr);
  ASSERT_NE(summary, nullptr);
  EXPECT_EQ(question->name(), "simlayerkv+windowkv+int8");
  EXPECT_THAT(question->ToString(), testing::HasSubstr("task=localization"));
  EXPECT_THAT(summary->ToString(), testing::HasSubstr("task=aggregation"));
}

}  // namespace
}  // namespace ziggurat

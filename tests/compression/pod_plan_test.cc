// What pod plans, alone and with a policy that selects.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/compression/plan_testing.h"

namespace ziggurat {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Groups named "g"; `lowest` is [layers][2].
PolicyResources Groups(const std::vector<std::vector<int>>& lowest) {
  auto groups = std::make_shared<PodGroups>();
  groups->name = "g";
  groups->num_layers = static_cast<int>(lowest.size());
  groups->num_kv_heads = 2;
  for (const auto& heads : lowest) {
    groups->lowest.insert(groups->lowest.end(), heads.begin(), heads.end());
  }
  PolicyResources resources;
  resources.pod_groups.push_back(std::move(groups));
  return resources;
}

const PolicyResources kAlike = Groups({{0, 0}, {0, 0}, {2, 2}, {2, 2}});
const PolicyResources kByHead = Groups({{0, 0}, {0, 0}, {0, 2}, {0, 2}});
const PolicyResources kSingle = Groups({{0, 0}, {1, 1}, {2, 2}, {3, 3}});

std::string Shapes(const CachePlan& plan) {
  std::string shapes;
  for (const LayerPlan& layer : plan.layers) {
    shapes += std::holds_alternative<KeepAll>(layer.edit)        ? 'a'
              : std::holds_alternative<KeepBest>(layer.edit)     ? 'b'
              : std::holds_alternative<KeepAsLeader>(layer.edit) ? 'f'
                                                                 : '?';
  }
  return shapes;
}

TEST(PodPlan, KeepsEveryTokenAndSharesDistantKeys) {
  const CachePlan plan = Plan("pod(groups=g,sinks=4,recent=60,skip=0.7)", 4, 500, 11, kAlike);
  EXPECT_TRUE(AllAre<KeepAll>(plan));
  ASSERT_TRUE(plan.distant.has_value());
  EXPECT_EQ(plan.distant->groups, kAlike.pod_groups[0]);
  EXPECT_EQ(plan.distant->sinks, 4);
  EXPECT_EQ(plan.distant->recent, 60);
  EXPECT_EQ(plan.distant->skip, 0.7);
  EXPECT_TRUE(plan.needs.group_qk);
  EXPECT_FALSE(plan.needs.selects);
  EXPECT_GT(Plan("pod(groups=g)", 4, 5000, 11, kAlike).distant->skip, 1) << "never";
}

TEST(PodPlan, IsFullWhereNoLayersShareOrNothingIsEverDistant) {
  EXPECT_FALSE(Plan("pod(groups=g,sinks=4,recent=60)", 4, 500, 11, kSingle).distant.has_value());
  // 40 tokens and 24 appended ones are within 4 sinks and the last 60.
  EXPECT_FALSE(Plan("pod(groups=g,sinks=4,recent=60)", 4, 40, 25, kAlike).distant.has_value());
  EXPECT_TRUE(Plan("pod(groups=g,sinks=4,recent=60)", 4, 40, 26, kAlike).distant.has_value());
}

TEST(PodPlan, StoresCodesOfGroupsAlikeHoweverLongTheAnswerMayBe) {
  for (const int answer : {1, 26}) {
    EXPECT_TRUE(Plan("pod(groups=g,sinks=4,recent=60)+kivi", 4, 40, answer, kAlike).distant);
  }
  EXPECT_FALSE(Plan("pod(groups=g,sinks=4,recent=60)+kivi", 4, 40, 26, kSingle).distant);
  EXPECT_FALSE(Plan("pod(groups=g,sinks=4,recent=60)+int8", 4, 40, 1, kAlike).distant);
}

TEST(PodPlan, BorrowsQueriesInPrefillOnlyWhereThePromptHasDistantTokens) {
  EXPECT_FALSE(Plan("pod(groups=g,sinks=4,recent=60)", 4, 64, 100, kAlike).needs.group_qk);
  EXPECT_TRUE(Plan("pod(groups=g,sinks=4,recent=60)", 4, 65, 100, kAlike).needs.group_qk);
}

TEST(PodPlan, SelectsOnTheLowestLayerOfAGroup) {
  const CachePlan plan =
      Plan("snapkv(budget=100)+pod(groups=g,sinks=4,recent=60)", 4, 500, 11, kAlike);
  EXPECT_EQ(Shapes(plan), "bfbf");
  EXPECT_EQ(std::get<KeepAsLeader>(plan.layers[1].edit).leader, -1);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(plan.layers[1].statistic));
  EXPECT_THAT(Kept(plan), Each(100u));
  EXPECT_TRUE(plan.distant.has_value());
  EXPECT_TRUE(plan.needs.selects);
  EXPECT_EQ(plan.needs.window_rows, 32);
}

TEST(PodPlan, SelectsOnceForAGroupThatNoTokenIsDistantIn) {
  const CachePlan plan = Plan("pod(groups=g)+snapkv(budget=100)", 4, 500, 11, kAlike);
  EXPECT_EQ(Shapes(plan), "bfbf");
  EXPECT_TRUE(plan.distant.has_value()) << "it says whom a layer follows";
  EXPECT_FALSE(plan.needs.group_qk);
  EXPECT_EQ(Shapes(Plan("pod(groups=g)+snapkv(budget=100)", 4, 90, 1, kAlike)), "aaaa");
}

TEST(PodPlan, ALayerThatIsLowestForOneHeadSelectsForThatHead) {
  EXPECT_EQ(Shapes(Plan("pod(groups=g)+snapkv(budget=100)", 4, 500, 11, kByHead)), "bfbf");
  const PolicyResources mixed = Groups({{0, 0}, {0, 1}, {0, 1}, {0, 1}});
  EXPECT_EQ(Shapes(Plan("pod(groups=g)+snapkv(budget=100)", 4, 500, 11, mixed)), "bbff");
  EXPECT_EQ(Shapes(Plan("pod(groups=g)+snapkv(budget=100)", 4, 500, 11, kSingle)), "bbbb");
}

TEST(PodPlan, AGroupHasTheBudgetOfItsLowestLayer) {
  // 936, 632, 328, 24 and the window of 32: layers 1 and 3 have those of layers 0 and 2.
  const CachePlan plan = Plan("pod(groups=g)+pyramidkv(budget=512,window=32)", 4, 2000, 1, kAlike);
  EXPECT_THAT(Kept(plan), ElementsAre(968, 968, 360, 360));
  EXPECT_EQ(Shapes(plan), "bfbf");
  // What the lowest layer keeps whole its group keeps whole.
  EXPECT_EQ(Shapes(Plan("pod(groups=g)+pyramidkv(budget=512,window=32)", 4, 900, 1, kAlike)),
            "aabf");
}

TEST(PodPlan, WithAPyramidNeedsGroupsThatAllHeadsHave) {
  const auto refused = ParsePolicy("pod(groups=g)+pyramidkv(budget=512)", kByHead);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("pod+pyramidkv cannot be composed: the layers of a group of pod keep the "
                        "same tokens, pyramidkv gives every layer a budget of its own, and these "
                        "groups differ between heads"));
}

TEST(PodPlan, MustBeOfTheSameModel) {
  const auto policy = Parse("pod(groups=g)+snapkv(budget=100)", kAlike);
  EXPECT_TRUE(policy->Check(TestModel(4)).ok());
  EXPECT_THAT(policy->Check(TestModel(5)).ToString(),
              HasSubstr("pod: groups=g were made for a model of 4 layers and 2 KV heads, and this "
                        "one has 5 and 2"));
  PolicyContext other = TestModel(4);
  other.num_kv_heads = 4;
  EXPECT_FALSE(policy->Check(other).ok());
  // Asked nevertheless, it does not read beyond its groups.
  EXPECT_TRUE(AllAre<KeepBest>(policy->Plan(TestModel(5), {500, 11})));
}

TEST(PodPolicy, ListsTheGroupsThatAreLoaded) {
  const auto message = [](std::string_view text, const PolicyResources& resources) {
    return std::string(ParsePolicy(text, resources).status().message());
  };
  EXPECT_THAT(message("pod(groups=none)", {}),
              HasSubstr("column 12: pod: groups='none' is not allowed: it takes the name of loaded "
                        "groups; none was loaded: start the daemon with --pod-groups NAME=FILE"));
  EXPECT_THAT(message("pod(groups=h)", kAlike), HasSubstr("; loaded are g\n"));
  EXPECT_THAT(message("pod", kAlike), HasSubstr("pod needs a value of groups: the name of loaded "
                                                "groups; loaded are g"));
  EXPECT_EQ(Parse("pod(groups=g)", kAlike)->ToString(),
            "pod(groups=g,sinks=16,recent=4080,skip=off)");
  EXPECT_EQ(Parse("pod(groups=g,skip=0.75)", kAlike)->ToString(),
            "pod(groups=g,sinks=16,recent=4080,skip=0.75)");
}

}  // namespace
}  // namespace ziggurat

// What full, streaming, snapkv and pyramidkv plan for a sequence: statistics, edits, slots.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "compression/policy_descriptor.h"
#include "tests/compression/plan_testing.h"

namespace ziggurat {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

TEST(FullPlan, KeepsThePromptAndGrowsByEveryTokenButTheLast) {
  const CachePlan plan = Plan("full", 3, 100, 10);
  EXPECT_TRUE(AllAre<KeepAll>(plan));
  EXPECT_THAT(Kept(plan), ElementsAre(100, 100, 100));
  EXPECT_EQ(plan.needs.window_rows, 0);
}

TEST(StreamingPlan, IsARingThatNeverOutgrowsItself) {
  const CachePlan plan = Plan("streaming(sinks=4,recent=60)", 2, 1000, 500);
  ASSERT_TRUE(AllAre<KeepRing>(plan));
  const auto& ring = std::get<KeepRing>(plan.layers[1].edit);
  EXPECT_EQ(ring.sinks, 4);
  EXPECT_EQ(ring.recent, 60);
  EXPECT_THAT(Kept(plan), Each(64u));
  EXPECT_EQ(plan.needs.window_rows, 0);
}

TEST(StreamingPlan, KeepsAShortPromptWhole) {
  EXPECT_THAT(Kept(Plan("streaming(sinks=4,recent=60)", 1, 10, 21)), ElementsAre(10));
}

TEST(SnapKvPlan, KeepsTheBestAndTheWindow) {
  const CachePlan plan = Plan("snapkv(budget=512,window=32,kernel=7,pool=max)", 2, 2000, 100);
  ASSERT_TRUE(AllAre<KeepBest>(plan));
  const auto& edit = std::get<KeepBest>(plan.layers[0].edit);
  EXPECT_EQ(edit.best, 480);
  EXPECT_EQ(edit.recent, 32);
  const auto& statistic = std::get<WindowScoreStatistic>(plan.layers[0].statistic);
  EXPECT_EQ(statistic.window, 32);
  EXPECT_EQ(statistic.kernel, 7);
  EXPECT_EQ(statistic.pooling, ScorePooling::kMax);
  EXPECT_THAT(Kept(plan), Each(512u));
  EXPECT_EQ(plan.needs.window_rows, 32);
}

TEST(SnapKvPlan, KeepsAPromptWholeThatIsNotLongerThanTheBudget) {
  for (int n : {1, 31, 32, 33, 511, 512}) {
    const CachePlan plan = Plan("snapkv(budget=512)", 2, n, 1);
    EXPECT_TRUE(AllAre<KeepAll>(plan)) << n;
    EXPECT_THAT(Kept(plan), Each(static_cast<size_t>(n)));
    EXPECT_EQ(plan.needs.window_rows, 0) << n;
    EXPECT_TRUE(std::holds_alternative<std::monostate>(plan.layers[0].statistic)) << n;
  }
  EXPECT_TRUE(AllAre<KeepBest>(Plan("snapkv(budget=512)", 2, 513, 1)));
}

TEST(PyramidKvPlan, FallsAlongTheLineAndKeepsTheWindowBesides) {
  // (512 - 32) * 4 pairs: 936, 632, 328, 24 and the window of 32.
  const CachePlan plan = Plan("pyramidkv(budget=512,window=32)", 4, 2000, 33);
  EXPECT_THAT(Kept(plan), ElementsAre(968, 664, 360, 56));
  ASSERT_TRUE(AllAre<KeepBest>(plan));
  EXPECT_EQ(std::get<KeepBest>(plan.layers[0].edit).best, 936);
  EXPECT_EQ(std::get<KeepBest>(plan.layers[3].edit).best, 24);
  EXPECT_EQ(plan.needs.window_rows, 32);
}

TEST(PyramidKvPlan, OfOneLayerIsSnapKv) {
  EXPECT_THAT(Kept(Plan("pyramidkv(budget=512)", 1, 2000, 1)), ElementsAre(512));
}

TEST(PyramidKvPlan, LetsLowLayersKeepAShortPromptWholeAndPassesOnTheExcess) {
  // Lines of 936, 632, 328, 24 into 500 - 32 = 468 places each: 468 + 164 go up, 140 of them to
  // layer 2, 444 to layer 3, and 48 find no place.
  EXPECT_THAT(Kept(Plan("pyramidkv(budget=512,window=32)", 4, 500, 1)),
              ElementsAre(500, 500, 500, 500));
  // 768 places: 168 go to layer 1, which is filled by 136; 32 to layer 2.
  const CachePlan plan = Plan("pyramidkv(budget=512,window=32)", 4, 800, 1);
  EXPECT_THAT(Kept(plan), ElementsAre(800, 800, 392, 56));
  EXPECT_TRUE(std::holds_alternative<KeepAll>(plan.layers[1].edit));
  EXPECT_TRUE(std::holds_alternative<KeepBest>(plan.layers[2].edit));
  EXPECT_EQ(plan.needs.window_rows, 32);
}

TEST(PyramidKvPlan, OfAPromptWithinTheWindowKeepsItWhole) {
  const CachePlan plan = Plan("pyramidkv(budget=512,window=32)", 4, 7, 3);
  EXPECT_TRUE(AllAre<KeepAll>(plan));
  EXPECT_THAT(Kept(plan), Each(7u));
  EXPECT_EQ(plan.needs.window_rows, 0);
}

TEST(PyramidKvPlan, HoldsThePapersShareOfTheFullCache) {
  // LLaMA-3-8B's 32 layers, n = 8192: 6.3 %, 12.5 %, 25.0 % (PyramidKV, table 1).
  for (int budget : {512, 1024, 2048}) {
    const std::string text = "pyramidkv(budget=" + std::to_string(budget) + ")";
    EXPECT_EQ(TotalKept(Plan(text, 32, 8192, 1)), size_t{32} * budget);
  }
}

TEST(PyramidKvPlan, SurvivesTheLargestNumbers) {
  const CachePlan plan = Plan("pyramidkv(budget=16777216,beta=1000000)", 1000, 1 << 24, 1 << 24);
  EXPECT_THAT(Kept(plan), Each(size_t{1} << 24));
  const CachePlan ring = Plan("streaming(sinks=16777216,recent=16777216)", 1, 1 << 24, 1 << 30);
  EXPECT_THAT(Kept(ring), Each(size_t{1} << 24));
}

// ---- Properties --------------------------------------------------------------------------------

struct Request {
  std::string text;
  int layers;
  int prompt_tokens;
  int max_new_tokens;
  int budget;  ///< of those that have one
  int window;
};

Request DrawRequest(const std::vector<std::string>& names) {
  Request request;
  const std::string name = *rc::gen::elementOf(names);
  request.layers = *rc::gen::inRange(1, 81);
  request.prompt_tokens = *rc::gen::oneOf(rc::gen::inRange(1, 3000), rc::gen::inRange(1, 1 << 24));
  request.max_new_tokens = *rc::gen::inRange(0, 5000);
  request.window = *rc::gen::inRange(1, 65);
  request.budget = request.window + *rc::gen::inRange(1, 2000);
  request.text = name;
  if (name == "streaming") {
    request.text += "(sinks=" + std::to_string(*rc::gen::inRange(0, 9)) +
                    ",recent=" + std::to_string(request.budget) + ")";
  } else if (name != "full") {
    request.text += "(budget=" + std::to_string(request.budget) +
                    ",window=" + std::to_string(request.window) + ")";
  }
  return request;
}

CachePlan PlanOf(const Request& request) {
  return Plan(request.text, request.layers, request.prompt_tokens, request.max_new_tokens);
}

RC_GTEST_PROP(PlanProperty, EveryPlanIsConsistent, ()) {
  const Request request = DrawRequest({"full", "streaming", "snapkv", "pyramidkv"});
  const CachePlan plan = PlanOf(request);
  const auto n = static_cast<size_t>(request.prompt_tokens);
  RC_ASSERT(plan.layers.size() == static_cast<size_t>(request.layers));
  int window_rows = 0;
  for (const LayerPlan& layer : plan.layers) {
    RC_ASSERT(layer.prompt_tokens_kept >= 1u);
    RC_ASSERT(layer.prompt_tokens_kept <= n);
    if (const auto* best = std::get_if<KeepBest>(&layer.edit)) {
      const auto& statistic = std::get<WindowScoreStatistic>(layer.statistic);
      RC_ASSERT(best->recent == statistic.window);
      RC_ASSERT(static_cast<size_t>(best->best + best->recent) == layer.prompt_tokens_kept);
      RC_ASSERT(layer.prompt_tokens_kept < n);
      window_rows = std::max(window_rows, statistic.window);
    } else {
      RC_ASSERT(std::holds_alternative<std::monostate>(layer.statistic));
    }
    if (std::holds_alternative<KeepAll>(layer.edit)) RC_ASSERT(layer.prompt_tokens_kept == n);
  }
  RC_ASSERT(plan.needs.window_rows == window_rows);
}

RC_GTEST_PROP(PlanProperty, APyramidKeepsItsMeanBudgetOrThePromptAndFalls, ()) {
  const Request request = DrawRequest({"pyramidkv"});
  const std::vector<size_t> kept = Kept(PlanOf(request));
  RC_ASSERT(std::is_sorted(kept.begin(), kept.end(), std::greater<>()));
  const int64_t total = std::accumulate(kept.begin(), kept.end(), int64_t{0});
  // min(T, (n - window) * L) besides the window of every layer.
  RC_ASSERT(total == int64_t{request.layers} * std::min(request.budget, request.prompt_tokens));
}

}  // namespace
}  // namespace ziggurat

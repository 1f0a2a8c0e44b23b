// Plans that the engine could not carry out are refused, with the policy, the layer and the rule.
#include "compression/plan_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/compression/plan_testing.h"

namespace ziggurat {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kLayers = 6, kPrompt = 200, kAnswer = 20, kMost = std::numeric_limits<int>::max();
constexpr SequenceLimits kLimits = {kPrompt, kAnswer};

/// "g", for pod.
PolicyResources SomeGroups() {
  PolicyResources resources;
  auto groups = std::make_shared<PodGroups>();
  groups->name = "g";
  groups->num_layers = kLayers;
  groups->num_kv_heads = 2;
  groups->lowest = {0, 0, 0, 0, 0, 2, 3, 2, 3, 2, 3, 5};
  resources.pod_groups.push_back(groups);
  return resources;
}

/// What is said of the plan of `text` once `change` has been made to it.
std::string Said(std::string_view text, const std::function<void(CachePlan&)>& change) {
  CachePlan plan = Plan(text, kLayers, kPrompt, kAnswer, SomeGroups());
  const PolicyContext context = TestModel(kLayers);
  EXPECT_TRUE(CheckPlan("mine", context, kLimits, plan).ok()) << text;
  change(plan);
  const absl::Status status = CheckPlan("mine", context, kLimits, plan);
  EXPECT_EQ(status.ok() ? absl::StatusCode::kInternal : status.code(), absl::StatusCode::kInternal);
  return std::string(status.message());
}

template <typename Edit>
std::function<void(CachePlan&)> Edited(int layer, Edit edit) {
  return [layer, edit](CachePlan& plan) { plan.layers[layer].edit = edit; };
}

std::function<void(CachePlan&)> Tested(int layer, LazyTest test) {
  return [layer, test](CachePlan& plan) { plan.layers[layer].lazy = test; };
}

TEST(PlanCheck, NamesThePolicyTheLayerAndTheNumber) {
  EXPECT_EQ(Said("full", Edited(2, KeepRing{4, 0})),
            "mine planned that layer 2 has KeepRing.recent 0, which must be from 1 to 1073741823");
  EXPECT_EQ(Said("full", [](CachePlan& plan) { plan.layers.pop_back(); }),
            "mine planned 5 layers for a model of 6");
}

TEST(PlanCheck, NumbersOfEdits) {
  for (const int wrong : {-1, kMost}) {
    EXPECT_THAT(Said("full", Edited(1, KeepRing{wrong, 8})), HasSubstr("KeepRing.sinks"));
    EXPECT_THAT(Said("full", Edited(1, KeepRing{8, wrong})), HasSubstr("KeepRing.recent"));
    EXPECT_THAT(Said("h2o", Edited(1, KeepHeavy{wrong, 8})), HasSubstr("KeepHeavy.heavy"));
    EXPECT_THAT(Said("h2o", Edited(1, KeepHeavy{8, wrong})), HasSubstr("KeepHeavy.recent"));
    EXPECT_THAT(Said("snapkv(budget=64)", Edited(1, KeepBest{wrong, 32})),
                HasSubstr("KeepBest.best"));
    EXPECT_THAT(Said("snapkv(budget=64)", Edited(1, KeepBest{32, wrong})),
                HasSubstr("KeepBest.recent"));
  }
  const KeepWindows good = {8, 4, 2, 40};
  const std::pair<int KeepWindows::*, const char*> numbers[] = {{&KeepWindows::observe, "observe"},
                                                                {&KeepWindows::review, "review"},
                                                                {&KeepWindows::best, "best"},
                                                                {&KeepWindows::budget, "budget"}};
  for (const auto& [number, name] : numbers) {
    KeepWindows wrong = good;
    wrong.*number = -1;
    EXPECT_THAT(Said("full", Edited(1, wrong)), HasSubstr(name));
  }
  EXPECT_THAT(Said("simlayerkv(recent=64)", [](CachePlan& plan) { plan.layers[3].lazy->last = 0; }),
              StartsWith("mine planned that layer 3 has LazyTest.last 0"));
  EXPECT_THAT(
      Said("simlayerkv(recent=64)", [](CachePlan& plan) { plan.layers[3].lazy->recent = kMost; }),
      HasSubstr("LazyTest.recent"));
}

TEST(PlanCheck, WhatIsKeptIsCounted) {
  EXPECT_THAT(Said("snapkv(budget=64)", Edited(1, KeepBest{500, 32})),
              HasSubstr("selects 532 tokens of a prompt of 200"));
  EXPECT_THAT(
      Said("full", [](CachePlan& plan) { plan.layers[0].prompt_tokens_kept = 199; }),
      HasSubstr("layer 0 keeps up to 200 of 200 tokens, and its prompt_tokens_kept says 199"));
  EXPECT_THAT(Said("full", [](CachePlan& plan) { plan.layers[0].prompt_tokens_kept = 201; }),
              HasSubstr("prompt_tokens_kept says 201"));
  // What the ring of a layer that may be lazy keeps is not the edit's.
  EXPECT_EQ(Said("snapkv(budget=64)", Tested(1, LazyTest{4, 100, 8, 0.5})), "");
}

TEST(PlanCheck, StatisticsBelongToEdits) {
  EXPECT_THAT(Said("full", Edited(1, KeepBest{32, 32})), HasSubstr("has no WindowScoreStatistic"));
  EXPECT_THAT(Said("snapkv(budget=64)", Edited(1, KeepBest{48, 16})),
              HasSubstr("the last 16 tokens by scores of a window of 32"));
  EXPECT_THAT(
      Said("full", [](CachePlan& plan) { plan.layers[1].statistic = WindowScoreStatistic{8}; }),
      HasSubstr("its edit is not KeepBest"));
  EXPECT_THAT(Said("snapkv(budget=64)",
                   [](CachePlan& plan) {
                     std::get<WindowScoreStatistic>(plan.layers[1].statistic).kernel = 4;
                   }),
              HasSubstr("must be odd"));
}

TEST(PlanCheck, Leaders) {
  EXPECT_THAT(Said("full", Edited(1, KeepAsLeader{-1})), HasSubstr("PoD group"));
  EXPECT_THAT(Said("full", Edited(1, KeepAsLeader{1})), HasSubstr("must be a lower one"));
  EXPECT_THAT(Said("full", Edited(1, KeepAsLeader{0})),
              HasSubstr("layer 0, which selects nothing"));
  EXPECT_THAT(Said("windowkv(budget=64,group=3)",
                   [](CachePlan& plan) { plan.layers[1].prompt_tokens_kept = 10; }),
              HasSubstr("prompt_tokens_kept says 10"));
  const std::string_view windows = "windowkv(budget=64,group=6)";
  for (const int between : {1, 2, 4}) {
    EXPECT_THAT(Said(windows, Edited(between, KeepRing{4, 60})),
                HasSubstr(absl::StrCat("layer ", between + 1, " follows layer 0, and layer ",
                                       between, " between them does not")));
  }
}

TEST(PlanCheck, SharedKeys) {
  const std::string pod = "pod(groups=g,recent=16)";
  EXPECT_THAT(Said(pod, Edited(1, KeepRing{4, 196})), HasSubstr("may be of a PoD group"));
  EXPECT_THAT(
      Said(pod + "+snapkv(budget=64)",
           [](CachePlan& plan) { plan.layers[3] = PlanKeepBest(kLimits, {.window = 32}, 100); }),
      HasSubstr("layer 3 keeps 100 tokens, and layer 2 of its PoD group 64"));
  EXPECT_THAT(Said(pod, [](CachePlan& plan) { plan.distant->groups = nullptr; }),
              HasSubstr("PoD groups of another model, or none"));
  EXPECT_THAT(Said(pod, [](CachePlan& plan) { plan.distant->recent = 0; }),
              HasSubstr("DistantOptions.recent"));
  EXPECT_THAT(Said(pod, Tested(0, LazyTest{4, 16, 1, 0.5})),
              HasSubstr("may need its distant keys"));
  EXPECT_THAT(Said(pod + "+snapkv(budget=64)", Edited(1, KeepAsLeader{0})),
              HasSubstr("layer 1 follows a layer of its own choice, and may be of a PoD group"));
  EXPECT_THAT(Said(pod + "+snapkv(budget=64)",
                   [](CachePlan& plan) {
                     plan.layers[2].edit = KeepAsLeader{-1};
                     plan.layers[2].statistic = {};
                   }),
              HasSubstr("layer 2 follows others, and leads the PoD group of KV head 1"));
  EXPECT_THAT(Said(pod,
                   [](CachePlan& plan) {
                     plan.merge.emplace();
                     plan.layers[2].merge = MergeRole::kLower;
                     plan.layers[3].merge = MergeRole::kUpper;
                   }),
              HasSubstr("layer 2 is merged, and may be of a PoD group"));
}

TEST(PlanCheck, LazyLayers) {
  EXPECT_THAT(Said("h2o(heavy=32,recent=32)", Tested(3, LazyTest{4, 16, 1, 0.5})),
              HasSubstr("layer 3 may be lazy, but its tokens collect scores"));
}

TEST(PlanCheck, Merges) {
  EXPECT_THAT(Said("minicache(start=0)", Edited(1, KeepRing{4, 196})),
              HasSubstr("must keep all tokens"));
  EXPECT_THAT(Said("minicache(start=0)", [](CachePlan& plan) { plan.merge->t = 2; }),
              HasSubstr("must be from 0 to 1"));
  EXPECT_THAT(Said("minicache(start=0)", [](CachePlan& plan) { plan.merge->tail = 0; }),
              HasSubstr("tail of 0"));
}

TEST(PlanCheck, Decisions) {
  const std::string squeeze = "squeeze(budget=64)", entropy = "pyramidkv(budget=64,shape=entropy)";
  EXPECT_THAT(Said("full", [](CachePlan& plan) { plan.importance = LayerImportance::kGini; }),
              HasSubstr("to decide on nothing later"));
  EXPECT_THAT(Said(squeeze, [](CachePlan& plan) { plan.importance = LayerImportance::kNone; }),
              HasSubstr("by no importance"));
  EXPECT_THAT(Said(squeeze, [](CachePlan& plan) { plan.decide = DecideAt::kFirstToken; }),
              HasSubstr("that token has the one alone"));
  EXPECT_THAT(Said(squeeze, Edited(4, KeepRing{4, 60})), HasSubstr("layer 4 does not keep all"));
  EXPECT_THAT(Said(squeeze, [](CachePlan& plan) { plan.decided.mean_tokens = 0; }),
              HasSubstr("DecisionBounds.mean_tokens"));
  EXPECT_THAT(Said(entropy, [](CachePlan& plan) { plan.layers[2].statistic = {}; }),
              HasSubstr("layer 2 has no WindowScoreStatistic"));
  EXPECT_THAT(Said(squeeze, Tested(2, LazyTest{4, 16, 1, 0.5})),
              HasSubstr("decided on later, too"));
  EXPECT_THAT(
      Said(squeeze,
           [](CachePlan& plan) {
             plan.distant =
                 Plan("pod(groups=g,recent=16)", kLayers, kPrompt, kAnswer, SomeGroups()).distant;
           }),
      HasSubstr("to decide later, but PoD groups attend by shared keys"));
  EXPECT_THAT(Said("simlayerkv(recent=64,decide=decode)",
                   [](CachePlan& plan) { plan.first_token_test.last = 0; }),
              HasSubstr("a first_token_test that has LazyTest.last 0"));
}

TEST(PlanCheck, Codes) {
  EXPECT_THAT(Said("kivi", Edited(0, KeepHeavy{100, 100})),
              HasSubstr("KeepHeavy overwrites single ones"));
  EXPECT_THAT(Said("h2o(heavy=32,recent=32)",
                   [](CachePlan& plan) {
                     plan.quantization = Quantization{Quantization::Kind::kInt4, 32, 32};
                   }),
              HasSubstr("KeepHeavy overwrites single ones"));
  EXPECT_THAT(Said("kivi", [](CachePlan& plan) { plan.quantization->group = 0; }),
              HasSubstr("Quantization.group"));
  EXPECT_THAT(Said("kivi", [](CachePlan& plan) { plan.quantization->group = 65544; }),
              HasSubstr("has Quantization.group 65544, which must be from 1 to 65535"));
}

TEST(PlanCheck, WhatAPrefillNeeds) {
  EXPECT_EQ(Said("full", [](CachePlan& plan) { plan.needs.group_qk = true; }),
            "mine planned a prefill with PrefillNeeds.group_qk, and has no PoD groups");
  for (const int wrong : {-1, 3, kMost}) {
    EXPECT_THAT(Said("full", [wrong](CachePlan& plan) { plan.needs.score_heads = wrong; }),
                HasSubstr(absl::StrCat("a prefill with PrefillNeeds.score_heads ", wrong)));
  }
  for (const int wrong : {-2, kMost}) {
    EXPECT_THAT(Said("full", [wrong](CachePlan& plan) { plan.needs.window_rows = wrong; }),
                HasSubstr(absl::StrCat("a prefill that has PrefillNeeds.window_rows ", wrong)));
  }
  for (const int wrong : {-1000, kLayers + 1}) {
    EXPECT_THAT(Said("full", [wrong](CachePlan& plan) { plan.needs.stored_score_layers = wrong; }),
                HasSubstr(absl::StrCat("PrefillNeeds.stored_score_layers ", wrong)));
  }
}

TEST(PlanCheck, PlansNeedWhatTheirMostDemandingLayerNeeds) {
  CachePlan plan;
  plan.layers = {PlanKeepBest(kLimits, {.window = 8}, 64), PlanKeepHeavy(kLimits, {32, 32}),
                 PlanKeepBest(kLimits, {.window = 16}, 64)};
  const auto rows = [&plan] {
    plan.needs = {};
    RaiseNeeds(TestModel(3), kLimits, &plan);
    return plan.needs.window_rows;
  };
  EXPECT_EQ(rows(), -1) << "all rows";
  plan.layers[1] = PlanKeepAll(kLimits);
  EXPECT_EQ(rows(), 16);
}

TEST(PlanCheck, PlansNeedScoresOfAsManyHeadsAsAnyLayerNeeds) {
  CachePlan windows = Plan("windowkv(budget=64,group=1)", 3, kPrompt, kAnswer);
  CachePlan best = Plan("snapkv(budget=64)", 3, kPrompt, kAnswer);
  ASSERT_GT(windows.needs.score_heads, best.needs.score_heads);
  for (const int selects : {0, 2}) {
    CachePlan mixed = windows;
    mixed.layers[selects] = best.layers[selects];
    mixed.needs = {};
    RaiseNeeds(TestModel(3), kLimits, &mixed);
    EXPECT_EQ(mixed.needs.score_heads, windows.needs.score_heads) << selects;
  }
}

TEST(PlanCheck, APolicyMayAskForMoreThanItsLayersNeed) {
  CachePlan plan = Plan("snapkv(budget=64,window=8)", 3, kPrompt, kAnswer);
  plan.needs.window_rows = 50;
  plan.needs.lower_kv = true;
  RaiseNeeds(TestModel(3), kLimits, &plan);
  EXPECT_EQ(plan.needs.window_rows, 50);
  EXPECT_TRUE(plan.needs.lower_kv);
  EXPECT_EQ(plan.needs.score_heads, 2);
}

}  // namespace
}  // namespace ziggurat

// Policies that plan or decide what makes no sense, or throw: the engine refuses or ends their
// requests, and no others.
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compression/layer_plan.h"
#include "gmock/gmock.h"
#include "scheduler/engine.h"
#include "scheduler/refusal.h"
#include "tests/scheduler/engine_harness.h"

namespace ziggurat {
namespace {

using ::testing::HasSubstr;

class WrongPolicy : public Policy {
 public:
  std::string ToString() const override { return "wrong"; }
  std::string_view name() const override { return "wrong"; }
};

/// Holds everything, and decides after the prompt, or the first token, what no layer can become by
/// then.
class WrongDecider final : public WrongPolicy {
 public:
  explicit WrongDecider(LayerEdit edit, DecideAt decide = DecideAt::kPrompt, int mean_tokens = 16)
      : edit_(edit), decide_(decide), mean_tokens_(mean_tokens) {}
  CachePlan Plan(const PolicyContext& context, const SequenceLimits& limits) const override {
    CachePlan plan;
    plan.layers.assign(context.num_layers, PlanKeepAll(limits));
    plan.decide = decide_;
    if (decide_ == DecideAt::kPrompt) {
      plan.importance = LayerImportance::kCosine;
      for (LayerPlan& layer : plan.layers) {
        if (std::holds_alternative<KeepBest>(edit_) && mean_tokens_ > 16) {
          layer.statistic = WindowScoreStatistic{.window = 8};
        }
      }
    } else {
      plan.importance = LayerImportance::kLazyMass;
      plan.first_token_test = {.sinks = 0, .recent = 8, .last = 1, .threshold = 0.5};
    }
    plan.decided.mean_tokens = mean_tokens_;
    return plan;
  }
  std::vector<LayerPlan> Decide(const PolicyContext& context, const SequenceLimits& limits,
                                absl::Span<const double> /*importance*/) const override {
    std::vector<LayerPlan> layers(context.num_layers, PlanKeepAll(limits));
    layers.back().edit = edit_;
    return layers;
  }

 private:
  LayerEdit edit_;
  DecideAt decide_;
  int mean_tokens_;
};

/// A prompt of `policy`, with `others` right ones around it in the same batch: it ends with
/// INTERNAL and `message`, they are answered.
void ExpectItAloneToEnd(EngineHarness& harness, std::shared_ptr<const Policy> policy,
                        int prompt_tokens, int others, const char* message) {
  // While the first prompt is slow, those behind it come together in one batch.
  harness.control->prefill_layer_delay_us = 20000;
  const RequestId slow = harness.MustSubmit(harness.Request(30, 1));
  EngineRequest bad = harness.Request(prompt_tokens, 10);
  bad.policy = std::move(policy);
  std::vector<std::pair<RequestId, EngineRequest>> right;
  const auto submit_right = [&](int count) {
    for (int i = 0; i < count; ++i) {
      EngineRequest good = harness.Request(50, 10);
      good.prompt.back() = 1 + static_cast<int32_t>(right.size());  // none has another's answer
      const RequestId id = harness.MustSubmit(good);
      right.emplace_back(id, std::move(good));
    }
  };
  submit_right(others / 2);
  const RequestId wrong = harness.MustSubmit(bad);
  submit_right(others - others / 2);
  harness.Await(slow);
  harness.control->prefill_layer_delay_us = 0;
  for (const auto& [id, good] : right) {
    const Collected result = harness.Await(id);
    EXPECT_TRUE(result.last.status.ok()) << result.last.status;
    EXPECT_EQ(result.tokens, harness.Expected(good));
  }
  const absl::Status status = harness.Await(wrong).last.status;
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

TEST(EngineTest, AWrongDecisionEndsItsRequestAndNoOtherOfItsBatch) {
  EngineHarness harness(Options(6000));
  const std::pair<LayerEdit, const char*> wrong[] = {
      {KeepWindows{8, 4, 2, 16}, "wrong decided that layer 3 keeps what needs statistics"},
      {KeepHeavy{8, 4}, "wrong decided that layer 3 keeps what needs statistics"},
      {KeepRing{2, 30}, "wrong decided that layer 3 has 2 sinks, its plan said at most 0"},
      {KeepRing{0, 0}, "wrong decided that layer 3 has KeepRing.recent 0, which must be from 1"},
      {KeepRing{0, std::numeric_limits<int>::max()}, "wrong decided that layer 3 has KeepRing.rec"},
      {KeepBest{std::numeric_limits<int>::max(), 8},
       "wrong decided that layer 3 has KeepBest.best"},
      {KeepBest{8, 8}, "wrong decided that layer 3 keeps its best tokens, but its plan stored"},
      {KeepAll{}, "wrong decided that 4 layers come to hold 276 tokens, its plan said at most 64"},
      {KeepRing{0, 16}, "come to hold 223 tokens"}};
  for (const auto& [edit, message] : wrong) {
    ExpectItAloneToEnd(harness, std::make_shared<WrongDecider>(edit), 60, 2, message);
  }
  ExpectItAloneToEnd(harness,
                     std::make_shared<WrongDecider>(KeepBest{8, 8}, DecideAt::kFirstToken, 100), 60,
                     2, "keeps its best tokens, but its plan stored");
  harness.ExpectEmptyPool();
}

TEST(EngineTest, ADecisionThatIsWrongByOneIsWrong) {
  EngineHarness harness(Options(6000));
  const auto decide = [](LayerEdit edit, int mean_tokens) {
    return std::make_shared<WrongDecider>(edit, DecideAt::kPrompt, mean_tokens);
  };
  ExpectItAloneToEnd(harness, decide(KeepRing{1, 16}, 100), 60, 0, "layer 3 has 1 sinks");
  ExpectItAloneToEnd(harness, decide(KeepBest{8, 4}, 100), 60, 0,
                     "keeps 8 + 4 tokens by scores of a window of 8");
  // Three layers of 60 tokens and 9 more, and the ring.
  ExpectItAloneToEnd(harness, decide(KeepRing{0, 18}, 56), 60, 0,
                     "come to hold 225 tokens, its plan said at most 224");
  EngineRequest right = harness.Request(60, 10);
  right.policy = decide(KeepRing{0, 17}, 56);
  const Collected result = harness.Await(harness.MustSubmit(right));
  EXPECT_TRUE(result.last.status.ok()) << result.last.status;
  harness.ExpectEmptyPool();
}

/// Notes how it is asked after the first token, and keeps everything.
class NotingDecider final : public WrongPolicy {
 public:
  CachePlan Plan(const PolicyContext& context, const SequenceLimits& limits) const override {
    const auto most = static_cast<int>(limits.total_tokens());
    return WrongDecider(KeepAll{}, DecideAt::kFirstToken, most).Plan(context, limits);
  }
  std::vector<LayerPlan> Decide(const PolicyContext& context, const SequenceLimits& limits,
                                absl::Span<const double> /*importance*/) const override {
    *asked_ = {limits.prompt_tokens, limits.max_new_tokens};
    return std::vector<LayerPlan>(context.num_layers, PlanKeepAll(limits));
  }
  std::pair<int, int> asked() const { return *asked_; }

 private:
  std::unique_ptr<std::pair<int, int>> asked_ = std::make_unique<std::pair<int, int>>();
};

TEST(EngineTest, APolicyThatDecidesAfterTheFirstTokenIsToldOfIt) {
  EngineHarness harness(Options(400));
  auto policy = std::make_shared<NotingDecider>();
  EngineRequest request = harness.Request(60, 10);
  request.policy = policy;
  EXPECT_EQ(harness.Await(harness.MustSubmit(request)).tokens, harness.Expected(request));
  EXPECT_EQ(policy->asked(), std::pair(61, 9)) << "tokens held, tokens to come";
}

/// Says of a layer that it keeps less than it does.
class WrongPlanner final : public WrongPolicy {
 public:
  explicit WrongPlanner(int layer) : layer_(layer) {}
  CachePlan Plan(const PolicyContext& context, const SequenceLimits& limits) const override {
    CachePlan plan;
    plan.layers.assign(context.num_layers, PlanKeepRing(limits, 0, 16));
    plan.layers[layer_] = PlanKeepAll(limits);
    plan.layers[layer_].prompt_tokens_kept = 1;
    return plan;
  }

 private:
  int layer_;
};

TEST(EngineTest, APlanThatIsTooLowIsRefused) {
  EngineHarness harness(Options(6000));
  for (int layer = 0; layer < kLayers; ++layer) {
    EngineRequest request = harness.Request(200, 10);
    request.policy = std::make_shared<WrongPlanner>(layer);
    const absl::Status status = harness.engine->Submit(std::move(request)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_EQ(status.message(),
              absl::StrCat("wrong planned that layer ", layer,
                           " keeps up to 200 of 200 tokens, and its prompt_tokens_kept says 1"));
    EXPECT_EQ(RefusalReason(status), "") << "it is not the request that is wrong";
  }
  harness.ExpectEmptyPool();
}

/// Throws where it is asked.
class ThrowingPolicy final : public WrongPolicy {
 public:
  explicit ThrowingPolicy(bool plans) : plans_(plans) {}
  CachePlan Plan(const PolicyContext& context, const SequenceLimits& limits) const override {
    if (!plans_) throw std::out_of_range("no such layer");
    return WrongDecider(KeepAll{}).Plan(context, limits);
  }
  std::vector<LayerPlan> Decide(const PolicyContext& /*context*/, const SequenceLimits& /*limits*/,
                                absl::Span<const double> /*importance*/) const override {
    throw std::out_of_range("no such importance");
  }

 private:
  bool plans_;
};

TEST(EngineTest, APolicyThatThrowsEndsItsRequestAndNoOther) {
  EngineHarness harness(Options(6000));
  EngineRequest request = harness.Request(50, 10);
  request.policy = std::make_shared<ThrowingPolicy>(/*plans=*/false);
  const absl::Status status = harness.engine->Submit(std::move(request)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(status.message(), "wrong threw an exception when it planned: no such layer");
  ExpectItAloneToEnd(harness, std::make_shared<ThrowingPolicy>(/*plans=*/true), 60, 2,
                     "wrong threw an exception when it decided: no such importance");
  harness.ExpectEmptyPool();
}

/// Merges layers that cannot be.
class WrongPairs final : public WrongPolicy {
 public:
  explicit WrongPairs(std::vector<MergeRole> roles, bool says_how = true, bool tests = false)
      : roles_(std::move(roles)), says_how_(says_how), tests_(tests) {}
  CachePlan Plan(const PolicyContext& /*context*/, const SequenceLimits& limits) const override {
    CachePlan plan;
    for (const MergeRole role : roles_) {
      plan.layers.push_back(PlanKeepAll(limits));
      plan.layers.back().merge = role;
      if (tests_) plan.layers.back().lazy = LazyTest{4, 16, 1, 0.9};
    }
    if (says_how_) plan.merge.emplace();
    return plan;
  }

 private:
  std::vector<MergeRole> roles_;
  bool says_how_, tests_;
};

TEST(EngineTest, APlanThatMakesNoSenseIsRefused) {
  EngineHarness harness(Options(6000));
  constexpr auto kNone = MergeRole::kNone, kLower = MergeRole::kLower, kUpper = MergeRole::kUpper;
  const auto expect = [&](const WrongPairs& policy, const char* message) {
    EngineRequest request = harness.Request(50, 10);
    request.policy = std::make_shared<WrongPairs>(policy);
    const absl::Status status = harness.engine->Submit(std::move(request)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_EQ(status.message(), std::string("wrong planned ") + message);
  };
  ASSERT_EQ(kLayers, 4);
  expect(WrongPairs({kNone, kNone, kNone}), "3 layers for a model of 4");
  expect(WrongPairs({kUpper, kNone, kNone, kNone}),
         "that layer 0 is the upper one of a pair, and the layer below is not its lower");
  expect(WrongPairs({kNone, kLower, kNone, kNone}),
         "that layer 2 must be the upper one of the pair that the layer below begins");
  expect(WrongPairs({kNone, kLower, kLower, kUpper}),
         "that layer 2 must be the upper one of the pair that the layer below begins");
  expect(WrongPairs({kNone, kNone, kNone, kLower}),
         "that layer 3 is the lower one of a pair, and there is no layer above it");
  expect(WrongPairs({kLower, kUpper, kNone, kNone}, false),
         "that layer 0 is merged, but CachePlan::merge does not say how");
  expect(WrongPairs({kLower, kUpper, kNone, kNone}, true, true),
         "that layer 0 is merged, and may be lazy: the other layer of its pair needs its tokens");
  harness.ExpectEmptyPool();
}

}  // namespace
}  // namespace ziggurat

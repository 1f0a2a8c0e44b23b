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

/// Holds everything, and decides after the prompt what no layer can become by then.
class WrongDecider final : public WrongPolicy {
 public:
  explicit WrongDecider(LayerEdit edit) : edit_(edit) {}
  CachePlan Plan(const PolicyContext& context, int prompt_tokens,
                 int max_new_tokens) const override {
    const SequenceLimits limits{prompt_tokens, max_new_tokens};
    CachePlan plan;
    plan.layers.assign(context.num_layers, PlanKeepAll(limits));
    plan.importance = LayerImportance::kCosine;
    plan.decide = DecideAt::kPrompt;
    plan.decided.mean_tokens = 16;
    return CompletePlan(context, limits, std::move(plan));
  }
  std::vector<LayerPlan> Decide(const PolicyContext& context, int tokens, int max_new_tokens,
                                absl::Span<const double> /*importance*/) const override {
    std::vector<LayerPlan> layers(context.num_layers, PlanKeepAll({tokens, max_new_tokens}));
    layers.back().edit = edit_;
    return layers;
  }

 private:
  LayerEdit edit_;
};

/// A prompt of `policy`, with `others` right ones around it in the same batch: it ends with
/// INTERNAL and `message`, they are answered.
void ExpectItAloneToEnd(EngineHarness& harness, std::shared_ptr<const Policy> policy,
                        int prompt_tokens, int others, const char* message) {
  // While the first prompt is slow, those behind it come together in one batch.
  harness.control->prefill_layer_delay_us = 20000;
  const RequestId slow = harness.MustSubmit(harness.Request(30, 1));
  const EngineRequest good = harness.Request(50, 10);
  EngineRequest bad = harness.Request(prompt_tokens, 10);
  bad.policy = std::move(policy);
  std::vector<RequestId> right;
  for (int i = 0; i < others / 2; ++i) right.push_back(harness.MustSubmit(good));
  const RequestId wrong = harness.MustSubmit(bad);
  for (int i = others / 2; i < others; ++i) right.push_back(harness.MustSubmit(good));
  harness.Await(slow);
  harness.control->prefill_layer_delay_us = 0;
  for (const RequestId id : right) {
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
  harness.ExpectEmptyPool();
}

/// Says of a layer that it keeps less than it does.
class WrongPlanner final : public WrongPolicy {
 public:
  explicit WrongPlanner(int layer) : layer_(layer) {}
  CachePlan Plan(const PolicyContext& context, int prompt_tokens,
                 int max_new_tokens) const override {
    const SequenceLimits limits{prompt_tokens, max_new_tokens};
    std::vector<LayerPlan> layers(context.num_layers, PlanKeepRing(limits, 0, 16));
    layers[layer_] = PlanKeepAll(limits);
    layers[layer_].prompt_tokens_kept = 1;
    return CompletePlan(context, limits, std::move(layers));
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
  CachePlan Plan(const PolicyContext& context, int prompt_tokens,
                 int max_new_tokens) const override {
    if (!plans_) throw std::out_of_range("no such layer");
    return WrongDecider(KeepAll{}).Plan(context, prompt_tokens, max_new_tokens);
  }
  std::vector<LayerPlan> Decide(const PolicyContext& /*context*/, int /*tokens*/,
                                int /*max_new_tokens*/,
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
  CachePlan Plan(const PolicyContext& /*context*/, int prompt_tokens,
                 int max_new_tokens) const override {
    CachePlan plan;
    for (const MergeRole role : roles_) {
      plan.layers.push_back(PlanKeepAll({prompt_tokens, max_new_tokens}));
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

// Prompts on their way through the layers: slices, pauses inside a layer, a second lane.
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "tests/scheduler/engine_harness.h"
#include "tests/support/poll.h"

namespace ziggurat {
namespace {

TEST(EnginePrefillTest, APromptThatGoesHalfWayLeavesTheOthersOfItsBatchAlone) {
  EngineHarness harness(ShortestSlices(8000));  // a third of half a layer a step
  harness.control->prefill_layer_delay_us = 3000;
  harness.control->prefill_parts = 3;
  for (const std::string& policy : PoliciesOfAllMethods()) {
    SCOPED_TRACE(policy);
    // The first keeps the engine busy while the others queue up for one batch. One of them would go
    // on for long, so that it is cancelled however late that comes.
    const RequestId first = harness.MustSubmit(harness.Request(10, 1));
    const EngineRequest request = harness.Request(100, 5, policy);
    const RequestId gone = harness.MustSubmit(harness.Request(100, 3000, policy));
    const RequestId stays = harness.MustSubmit(request);
    harness.Await(first);
    harness.engine->Cancel(gone, FinishReason::kCancelled);
    EXPECT_EQ(harness.Await(gone).last.reason, FinishReason::kCancelled);
    EXPECT_EQ(harness.Await(stays).tokens, harness.Expected(request));
  }
  harness.ExpectEmptyPool();
}

/// Steps of a request that decodes while `prompt` is on its way.
int64_t StepsBeside(EngineHarness& harness, const EngineRequest& prompt) {
  const RequestId running = harness.MustSubmit(harness.Request(10, 3000));
  harness.AwaitTokens(running, 2);
  const int64_t before = harness.control->decode_steps;
  EXPECT_EQ(harness.Await(harness.MustSubmit(prompt)).tokens, harness.Expected(prompt));
  const int64_t steps = harness.control->decode_steps - before;
  harness.engine->Cancel(running, FinishReason::kCancelled);
  harness.ExpectEmptyPool();
  return steps;
}

TEST(EnginePrefillTest, DecodingGoesOnBetweenTheLayersOfALongPrefillOfADevice) {
  EngineOptions options = Options(4000);
  options.device_slice_token_layers = 1000;  // a 2,000-token prompt advances one layer a step
  StubModelOptions device;
  device.is_asynchronous = true;
  EngineHarness harness(options, device);
  harness.control->decode_delay_us = 500;
  EXPECT_GE(StepsBeside(harness, harness.Request(2000, 1)), kLayers - 1);
  options = Options(8000);
  options.device_slice_token_layers = 3999;  // not two layers yet
  device.shape.num_layers = 3 * kLayers;
  EngineHarness other(options, device);
  other.control->decode_delay_us = 500;
  EXPECT_GE(StepsBeside(other, other.Request(2000, 1)), 3 * kLayers - 1);
}

TEST(EnginePrefillTest, DecodingGoesOnInsideALayerOfALongPrefill) {
  EngineHarness harness(ShortestSlices(4000));
  harness.control->decode_delay_us = 500;
  harness.control->prefill_parts = 10;
  harness.control->prefill_layer_delay_us = 2 * 10 * 2000;  // longer than two decode steps a part
  EXPECT_GE(StepsBeside(harness, harness.Request(2000, 5)), 3 * kLayers) << "whole layers: kLayers";
}

TEST(EnginePrefillTest, PromptsGetTwoThirdsOfTheTimeHoweverLongADecodeStepTakes) {
  EngineHarness harness(ShortestSlices(4000));
  harness.control->decode_delay_us = 20000;
  harness.control->prefill_parts = 50;
  harness.control->prefill_layer_delay_us = 2 * 50 * 1000;
  // 400 parts, some 35 of which are done in the 40 ms between two steps; fewer on a busy machine.
  const auto begin = std::chrono::steady_clock::now();
  const int64_t steps = StepsBeside(harness, harness.Request(2000, 1));
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(steps, 4);
  EXPECT_LE(steps, 2 + 1.3 * taken.count() / 0.06) << "a third of the time, by steps of 20 ms";
}

StubModelOptions TwoLanes() {
  StubModelOptions model;
  model.short_prefill_tokens = 120;
  return model;
}

RequestState StateOf(const EngineHarness& harness, RequestId id) {
  const std::shared_ptr<const EngineSnapshot> snapshot = harness.engine->Snapshot();
  for (const RequestSnapshot& request : snapshot->requests) {
    if (request.id == id) return request.state;
  }
  return RequestState::kWaiting;
}

void AwaitPrefilling(const EngineHarness& harness, RequestId id) {
  ASSERT_TRUE(
      PollUntil(kPatience, [&] { return StateOf(harness, id) == RequestState::kPrefilling; }))
      << "waited for the prefill of request " << id;
}

TEST(EnginePrefillTest, EveryPromptOfABatchIsDecidedByWhatWasMeasuredOfIt) {
  EngineHarness harness(ShortestSlices(4000));
  harness.control->hold_at_step = 0;
  harness.MustSubmit(harness.Request(10, 1));
  harness.AwaitHeld();
  // Behind it the two come together.
  const EngineRequest request = harness.Request(100, 2, "squeeze(budget=40,p=0.5)");
  const RequestId ids[] = {harness.MustSubmit(request), harness.MustSubmit(request)};
  harness.Continue();
  for (int prompt = 0; prompt < 2; ++prompt) {
    const Collected result = harness.Await(ids[prompt]);
    ASSERT_EQ(result.last.cache.layers.size(), size_t{kLayers});
    for (int layer = 0; layer < kLayers; ++layer) {
      // The stub's cosines rise from 0 to 0.5 over three layers, and begin one layer earlier in
      // each prompt; the layers of the highest keep half of the budget.
      const bool is_highest = (layer + prompt) % 3 == 2;
      EXPECT_EQ(result.last.cache.layers[layer].budget_tokens == 20, is_highest)
          << "prompt " << prompt << ", layer " << layer;
    }
  }
}

TEST(EnginePrefillTest, APromptThatCannotBeLaidOutEndsAloneOfItsBatch) {
  StubModelOptions model;
  model.mismeasures = [](absl::Span<const int32_t> prompt, LayerMeasured* measured) {
    if (prompt.size() == 101) measured->kept_tokens = 1'000'000;  // more than the pool holds
  };
  EngineHarness harness(ShortestSlices(4000), model);
  harness.control->hold_at_step = 0;
  harness.MustSubmit(harness.Request(10, 1));
  harness.AwaitHeld();
  // Behind it the three come together.
  const EngineRequest right = harness.Request(100, 5);
  const RequestId before = harness.MustSubmit(right);
  const RequestId wrong = harness.MustSubmit(harness.Request(101, 5));
  const RequestId behind = harness.MustSubmit(right);
  harness.Continue();
  EXPECT_EQ(harness.Await(wrong).last.status.code(), absl::StatusCode::kResourceExhausted);
  for (const RequestId id : {before, behind}) {
    EXPECT_EQ(harness.Await(id).tokens, harness.Expected(right));
  }
  harness.ExpectEmptyPool();
}

TEST(EnginePrefillTest, ShortPromptsDoNotWaitForALongOne) {
  EngineOptions options = Options(4000);
  options.prefill_slice = absl::Milliseconds(20);
  EngineHarness harness(options, TwoLanes());
  harness.control->prefill_parts = 10;
  harness.control->prefill_token_delay_us = 50;  // 100 ms a layer of 2,000
  const EngineRequest longer = harness.Request(2000, 5);
  const RequestId id = harness.MustSubmit(longer);
  AwaitPrefilling(harness, id);
  const EngineRequest shorter = harness.Request(60, 3), too_long = harness.Request(121, 3);
  std::vector<RequestId> behind;
  const RequestId waits = harness.MustSubmit(too_long);
  for (int i = 0; i < 4; ++i) behind.push_back(harness.MustSubmit(shorter));
  for (const RequestId of : behind) {
    EXPECT_EQ(harness.Await(of).tokens, harness.Expected(shorter));
  }
  // Two at a time have room.
  EXPECT_GE(harness.control->short_batches, 2);
  EXPECT_EQ(StateOf(harness, id), RequestState::kPrefilling) << "it has been overtaken";
  EXPECT_EQ(harness.Await(id).tokens, harness.Expected(longer));
  EXPECT_EQ(harness.Await(waits).tokens, harness.Expected(too_long));
  harness.ExpectEmptyPool();
}

TEST(EnginePrefillTest, ALongPromptDoesNotWaitForAllShortOnes) {
  EngineHarness harness(ShortestSlices(4000), TwoLanes());
  harness.control->prefill_layer_delay_us = 40000;
  const EngineRequest longer = harness.Request(2000, 1), shorter = harness.Request(100, 1);
  const RequestId id = harness.MustSubmit(longer);
  std::vector<RequestId> behind;
  for (int i = 0; i < 60; ++i) behind.push_back(harness.MustSubmit(shorter));
  EXPECT_EQ(harness.Await(id).tokens, harness.Expected(longer));
  // Side by side with it as many layers of others were done as of it, about.
  EXPECT_LE(harness.control->short_batches, 3);
  for (const RequestId of : behind) {
    EXPECT_EQ(harness.Await(of).tokens, harness.Expected(shorter));
  }
  harness.ExpectEmptyPool();
}

TEST(EnginePrefillTest, AShortPromptIsInNoBatchWithALongOne) {
  EngineHarness harness(ShortestSlices(4000), TwoLanes());
  harness.control->prefill_layer_delay_us = 100000;
  const RequestId first = harness.MustSubmit(harness.Request(400, 1));
  AwaitPrefilling(harness, first);
  std::vector<std::pair<RequestId, EngineRequest>> sent;
  for (int tokens : {110, 300, 2000, 500, 110}) {
    const EngineRequest request = harness.Request(tokens, 1);
    sent.emplace_back(harness.MustSubmit(request), request);
  }
  harness.control->prefill_layer_delay_us = 10000;
  for (const auto& [id, request] : sent) {
    EXPECT_EQ(harness.Await(id).tokens, harness.Expected(request));
  }
  // 400, for which 110 waits; 110 and 300, and as 2,000 comes next, no more; 2,000 with 500, and
  // the other 110 beside them.
  EXPECT_EQ(harness.control->prefill_layers, 4 * kLayers);
  EXPECT_EQ(harness.control->short_batches, 1);
  harness.ExpectEmptyPool();
}

TEST(EnginePrefillTest, RequestsOfTwoLanesCanBeCancelledInAnyOrder) {
  EngineHarness harness(ShortestSlices(4000), TwoLanes());
  harness.control->prefill_parts = 2;
  for (const std::string& policy : PoliciesOfAllMethods()) {
    SCOPED_TRACE(policy);
    for (const bool long_goes_first : {true, false}) {
      EngineRequest of_long = harness.Request(1000, 3000, policy);
      EngineRequest of_short = harness.Request(50, 3000, policy);
      const int64_t before = harness.control->short_batches;
      harness.control->prefill_layer_delay_us = 40000;
      const RequestId longer = harness.MustSubmit(std::move(of_long));
      const RequestId shorter = harness.MustSubmit(std::move(of_short));
      EXPECT_TRUE(PollUntil(kPatience, [&] { return harness.control->short_batches > before; }))
          << "waited for the short prompt's batch";
      EXPECT_EQ(harness.control->short_batches, before + 1);
      for (const RequestId id :
           long_goes_first ? std::vector{longer, shorter} : std::vector{shorter, longer}) {
        harness.engine->Cancel(id, FinishReason::kCancelled);
      }
      for (const RequestId id : {longer, shorter}) {
        const Collected result = harness.Await(id);
        EXPECT_EQ(result.last.reason, FinishReason::kCancelled);
        EXPECT_TRUE(result.tokens.empty()) << "it was cancelled in prefill";
      }
    }
  }
  harness.ExpectEmptyPool();
}

}  // namespace
}  // namespace ziggurat

// Steps that are prepared while a device computes the one before: nobody sees a difference.
#include <gtest/gtest.h>

#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/sequence.h"
#include "tests/scheduler/engine_harness.h"
#include "tests/support/poll.h"

namespace ziggurat {
namespace {

StubModelOptions OnDevice() {
  StubModelOptions options;
  options.is_asynchronous = true;
  return options;
}

void ExpectEqual(const CacheReport& actual, const CacheReport& expected) {
  EXPECT_EQ(actual.blocks, expected.blocks);
  EXPECT_EQ(actual.full_blocks, expected.full_blocks);
  ASSERT_EQ(actual.layers.size(), expected.layers.size());
  for (size_t l = 0; l < expected.layers.size(); ++l) {
    EXPECT_EQ(actual.layers[l].blocks, expected.layers[l].blocks) << "layer " << l;
    EXPECT_EQ(actual.layers[l].tokens, expected.layers[l].tokens) << "layer " << l;
    EXPECT_EQ(actual.layers[l].live_bytes, expected.layers[l].live_bytes) << "layer " << l;
    EXPECT_EQ(actual.layers[l].evicted_tokens, expected.layers[l].evicted_tokens) << "layer " << l;
  }
}

/// The request's answer and report on a device are those on the host.
void ExpectTheSame(EngineHarness& device, EngineHarness& host, const EngineRequest& request) {
  const RequestId there = device.MustSubmit(request), here = host.MustSubmit(request);
  ASSERT_GT(there, 0);
  const Collected actual = device.Await(there), expected = host.Await(here);
  ASSERT_TRUE(actual.last.status.ok()) << actual.last.status;
  EXPECT_EQ(actual.tokens, expected.tokens);
  ExpectEqual(actual.last.cache, expected.last.cache);
}

TEST(EnginePrepareTest, AnswersAndReportsAreThoseOfStepsThatAreNot) {
  EngineHarness device(Options(20000), OnDevice(), /*checks=*/false), host(Options(20000));
  for (const std::string& policy : PoliciesOfAllMethods()) {
    for (const int prompt : {1, 31, 150}) {
      for (const int generated : {1, 2, 18, 70}) {
        SCOPED_TRACE(policy + ", " + std::to_string(prompt) + " + " + std::to_string(generated));
        ExpectTheSame(device, host, device.Request(prompt, generated, policy));
        if (HasFatalFailure()) return;
      }
    }
  }
  EXPECT_GT(device.control->prepared_layers, 500);
  EXPECT_GT(device.control->edits_ahead, 100);
  device.ExpectEmptyPool();
}

// A lazy layer holds another number of tokens than the others, and so is edited in other steps.
TEST(EnginePrepareTest, LayersThatAreEditedInDifferentStepsKeepToTheirPlans) {
  EngineHarness device(Options(20000), OnDevice(), /*checks=*/false), host(Options(20000));
  for (const int recent : {28, 33, 60}) {
    for (const int residual : {0, 8, 40}) {
      const std::string policy = absl::StrCat("simlayerkv(threshold=0.5,sinks=4,recent=", recent,
                                              ")+kivi(group=8,residual=", residual, ")");
      for (int prompt = 100; prompt < 120; ++prompt) {
        SCOPED_TRACE(absl::StrCat(policy, ", ", prompt));
        ExpectTheSame(device, host, device.Request(prompt, 100, policy));
        if (HasFatalFailure()) return;
      }
    }
  }
  device.ExpectEmptyPool();
}

TEST(EnginePrepareTest, ARequestThatStopsHoldsNoBlockOfTheTokenThatDoesNotCome) {
  EngineHarness harness(Options(400), OnDevice());
  for (int generated = 1; generated < 40; ++generated) {
    EngineRequest request = harness.Request(20, 60);
    const std::vector<int32_t> all = harness.Expected(request);
    request.stop_token_ids = {all[generated]};
    const Collected result = harness.Await(harness.MustSubmit(request));
    EXPECT_EQ(result.last.reason, FinishReason::kStop);
    const size_t held = 20 + result.tokens.size();  // the stop token is not cached
    for (const LayerCacheReport& layer : result.last.cache.layers) {
      EXPECT_EQ(layer.tokens, held);
      EXPECT_EQ(layer.blocks, (held + 15) / 16) << held;
    }
    harness.ExpectEmptyPool();
  }
  EXPECT_GT(harness.control->prepared_layers, 0);
}

// What moves before a token that then does not come has moved all the same.
TEST(EnginePrepareTest, ARequestThatStopsAfterEditsForTheNextTokenLeavesNothing) {
  EngineHarness device(Options(2000), OnDevice()), host(Options(2000));
  for (const std::string& policy : PoliciesOfAllMethods()) {
    const EngineRequest unstopped = device.Request(100, 90, policy);
    const std::vector<int32_t> all = device.Expected(unstopped);
    for (int generated = 1; generated < 80; ++generated) {
      SCOPED_TRACE(absl::StrCat(policy, ", ", generated));
      EngineRequest request = unstopped;
      request.stop_token_ids = {all[generated]};
      const Collected result = device.Await(device.MustSubmit(request));
      const Collected expected = host.Await(host.MustSubmit(request));
      ASSERT_TRUE(result.last.status.ok()) << result.last.status;
      EXPECT_EQ(result.last.reason, FinishReason::kStop);
      EXPECT_EQ(result.tokens, expected.tokens);
      const CacheReport &there = result.last.cache, &here = expected.last.cache;
      ASSERT_EQ(there.layers.size(), here.layers.size());
      for (size_t l = 0; l < here.layers.size(); ++l) {
        EXPECT_EQ(there.layers[l].tokens, here.layers[l].tokens) << "layer " << l;
        EXPECT_EQ(there.layers[l].evicted_tokens, here.layers[l].evicted_tokens) << "layer " << l;
      }
      device.ExpectEmptyPool();
    }
  }
  EXPECT_GT(device.control->edits_ahead, 100);
}

TEST(EnginePrepareTest, SnapshotsShowNothingOfTheNextStep) {
  EngineHarness harness(Options(600), OnDevice());
  harness.control->decode_delay_us = 200;
  std::shared_ptr<const EngineSnapshot> last;
  int seen = 0;
  // How many snapshots are made while requests run depends on what one costs, and so on the
  // machine.
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (seen <= 100 && absl::Now() < deadline) {
    // Requests end all the time, which is shown soon.
    std::vector<RequestId> ids;
    for (int i = 0; i < 400; ++i) {
      ids.push_back(harness.MustSubmit(harness.Request(1 + i % 40, 40)));
    }
    while (!harness.engine->WaitIdle(absl::Milliseconds(1))) {
      const std::shared_ptr<const EngineSnapshot> snapshot = harness.engine->Snapshot();
      if (std::exchange(last, snapshot) == snapshot) continue;
      size_t held = 0;
      for (const RequestSnapshot& request : snapshot->requests) {
        held += request.blocks;
        if (request.state != RequestState::kDecoding) continue;
        const size_t tokens = request.prompt_tokens + request.generated_tokens - 1;
        EXPECT_EQ(request.blocks, kLayers * ((tokens + 15) / 16)) << tokens;
        ++seen;
      }
      EXPECT_EQ(snapshot->used_blocks, held);
    }
    for (const RequestId id : ids) EXPECT_TRUE(harness.Await(id).last.status.ok());
  }
  EXPECT_GT(seen, 100);
  EXPECT_GT(harness.control->prepared_layers, 0);
}

TEST(EnginePrepareTest, SnapshotsComeWhileNothingBeginsOrEnds) {
  EngineHarness harness(Options(20000), OnDevice());
  harness.control->decode_delay_us = 1000;
  std::vector<RequestId> ids;
  // In every step some take a block for the next one.
  for (int i = 0; i < 16; ++i) ids.push_back(harness.MustSubmit(harness.Request(1 + i, 4000)));
  const auto all_decode = [&] {
    const std::shared_ptr<const EngineSnapshot> snapshot = harness.engine->Snapshot();
    return snapshot->requests.size() == ids.size() &&
           absl::c_all_of(snapshot->requests, [](const RequestSnapshot& request) {
             return request.state == RequestState::kDecoding;
           });
  };
  ASSERT_TRUE(PollUntil(kPatience, all_decode)) << "waited for all to decode";
  const absl::Time deadline = absl::Now() + kPatience;
  std::shared_ptr<const EngineSnapshot> last = harness.engine->Snapshot();
  int seen = 0;  // one is due every tenth of a second
  while (seen < 3 && absl::Now() < deadline) {
    const std::shared_ptr<const EngineSnapshot> snapshot = harness.engine->Snapshot();
    ASSERT_EQ(snapshot->requests.size(), ids.size()) << "they have ended before they were shown";
    if (std::exchange(last, snapshot) != snapshot) ++seen;
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(seen, 3);
  EXPECT_GT(harness.control->prepared_layers, 0);
  for (const RequestId id : ids) harness.engine->Cancel(id, FinishReason::kCancelled);
}

TEST(EnginePrepareTest, APoolOfThePlansBlocksIsEnough) {
  const CacheGeometry geometry{kLayers, 2, 8, kBlockBytes};
  for (const std::string& policy : PoliciesOfAllMethods()) {
    SCOPED_TRACE(policy);
    const auto plan = PlanBlocks(*MustParse(policy), StubModelOptions().shape, geometry, {150, 60});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EngineHarness harness(Options(2 * plan->total_blocks), OnDevice());
    const EngineRequest request = harness.Request(150, 60, policy);
    std::vector<RequestId> ids;
    for (int i = 0; i < 5; ++i) ids.push_back(harness.MustSubmit(request));
    for (const RequestId id : ids) {
      const Collected result = harness.Await(id);
      EXPECT_TRUE(result.last.status.ok()) << result.last.status;
      EXPECT_EQ(result.tokens, harness.Expected(request));
    }
    harness.ExpectEmptyPool();
  }
}

TEST(EnginePrepareTest, CancellingAtAnyTokenLeavesNothing) {
  EngineHarness harness(Options(600), OnDevice());
  harness.control->decode_delay_us = 100;
  for (size_t tokens = 1; tokens < 40; ++tokens) {
    const RequestId id = harness.MustSubmit(harness.Request(20, 2000));
    harness.AwaitTokens(id, tokens);
    harness.engine->Cancel(id, FinishReason::kCancelled);
    const Collected result = harness.Await(id);
    EXPECT_EQ(result.last.reason, FinishReason::kCancelled);
    const size_t held = 20 + result.tokens.size() - 1;  // the last one is not cached
    EXPECT_EQ(result.last.cache.layers[0].tokens, held);
    EXPECT_EQ(result.last.cache.layers[0].blocks, (held + 15) / 16) << held;
    harness.ExpectEmptyPool();
  }
}

TEST(EnginePrepareTest, EditsThatFailEndTheFewThatTheyAreMadeWithAlone) {
  constexpr int kRequests = 20, kAtOnce = 8;
  EngineHarness harness(Options(20000), OnDevice(), /*checks=*/false);
  const EngineRequest request = harness.Request(40, 30, "kivi(group=8,residual=8)");
  harness.control->failing_edits_ahead = 1;
  harness.control->decode_delay_us = 10000;  // so that all are there when the first group is full
  std::vector<std::pair<RequestId, EngineRequest>> sent;
  for (int i = 0; i < kRequests; ++i) {
    EngineRequest one = request;
    one.prompt.back() = 1 + i;  // none has another's answer
    sent.emplace_back(harness.MustSubmit(one), one);
  }
  int failed = 0;
  for (const auto& [id, one] : sent) {
    const Collected result = harness.Await(id);
    if (result.last.reason == FinishReason::kError) {
      ++failed;
    } else {
      EXPECT_EQ(result.tokens, harness.Expected(one));
    }
  }
  EXPECT_GE(failed, 1);
  EXPECT_LE(failed, kAtOnce);
  EXPECT_EQ(harness.control->failing_edits_ahead, 0);
  harness.ExpectEmptyPool();
}

TEST(EnginePrepareTest, SecondsOfEditsCountWhenTheyAreKnown) {
  EngineHarness harness(Options(20000), OnDevice(), /*checks=*/false);
  const auto counted = [&harness] {
    for (const prometheus::MetricFamily& family : harness.metrics.Collect()) {
      if (family.name == "ziggurat_device_edit_seconds_total") {
        return family.metric.front().counter.value;
      }
    }
    return -1.0;
  };
  EXPECT_EQ(counted(), 0);
  for (int i = 0; i < 3; ++i) {
    harness.Await(harness.MustSubmit(harness.Request(40, 60, "kivi(group=8,residual=8)")));
  }
  const int64_t edits = harness.control->edits_ahead;
  EXPECT_GT(edits, 10);
  // Those of the last step before a request is over are known in the first one of the next.
  harness.Await(harness.MustSubmit(harness.Request(4, 2)));
  EXPECT_NEAR(counted(), 1e-3 * static_cast<double>(edits), 1e-9);
}

TEST(EnginePrepareTest, AStepThatFailsAfterTheNextWasPreparedLeavesNothing) {
  EngineHarness harness(Options(600), OnDevice());
  harness.control->decode_delay_us = 100;
  for (size_t tokens = 1; tokens < 40; ++tokens) {
    const RequestId id = harness.MustSubmit(harness.Request(20, 1000));
    harness.AwaitTokens(id, tokens);
    harness.control->fail_await = true;
    const Collected result = harness.Await(id);
    EXPECT_EQ(result.last.reason, FinishReason::kError);
    harness.control->fail_await = false;
    const size_t held = result.last.cache.layers[0].tokens;
    EXPECT_EQ(result.last.cache.layers[0].blocks, (held + 15) / 16) << held;
    harness.ExpectEmptyPool();
  }
}

}  // namespace
}  // namespace ziggurat

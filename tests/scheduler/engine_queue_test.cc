// Requests that wait, for room or for their turn in prefill: what is said of them, and for how
// long.
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "scheduler/refusal.h"
#include "tests/scheduler/engine_harness.h"
#include "tests/support/poll.h"

namespace ziggurat {
namespace {

using ::testing::HasSubstr;

/// The first snapshot in which so many run and wait.
std::shared_ptr<const EngineSnapshot> AwaitCounts(const EngineHarness& harness, int running,
                                                  int waiting) {
  std::shared_ptr<const EngineSnapshot> snapshot;
  const bool is_seen = PollUntil(kPatience, [&] {
    snapshot = harness.engine->Snapshot();
    return snapshot->running == running && snapshot->waiting == waiting;
  });
  EXPECT_TRUE(is_seen) << "waited for " << running << " that run and " << waiting
                       << " that wait, and there are " << snapshot->running << " and "
                       << snapshot->waiting;
  return snapshot;
}

/// Submits a request, whose prompt takes so long a layer, and waits until it is begun.
RequestId MustBegin(EngineHarness& harness, const EngineRequest& request, int layer_delay_us) {
  harness.control->prefill_layer_delay_us = layer_delay_us;
  const RequestId id = harness.MustSubmit(request);
  AwaitCounts(harness, 1, 0);
  return id;
}

TEST(EngineQueueTest, WhoseTurnInPrefillHasNotComeWaits) {
  EngineHarness harness(ShortestSlices(4000));
  const RequestId first = MustBegin(harness, harness.Request(500, 1), 100'000);
  const RequestId second = harness.MustSubmit(harness.Request(100, 20));
  const std::shared_ptr<const EngineSnapshot> snapshot = AwaitCounts(harness, 1, 1);
  ASSERT_EQ(snapshot->requests.size(), 2u);
  EXPECT_EQ(snapshot->requests[0].id, first);
  EXPECT_EQ(snapshot->requests[0].state, RequestState::kPrefilling);
  EXPECT_EQ(snapshot->requests[1].id, second);
  EXPECT_EQ(snapshot->requests[1].state, RequestState::kWaiting);
  EXPECT_EQ(snapshot->requests[1].reserved_blocks, 32u) << "it has been let in";
  const Collected result = harness.Await(second);
  EXPECT_GT(result.last.queue_seconds, 0.05) << "three more layers";
  EXPECT_GT(result.last.first_token_seconds - result.last.queue_seconds, 4 * 0.1);
}

TEST(EngineQueueTest, WhoseTurnHasNotComeEndsLikeAnyOther) {
  EngineHarness harness(ShortestSlices(4000));
  const RequestId first = MustBegin(harness, harness.Request(500, 1), 100'000);
  const RequestId cancelled = harness.MustSubmit(harness.Request(100, 20));
  const RequestId drained = harness.MustSubmit(harness.Request(100, 20));
  AwaitCounts(harness, 1, 2);
  harness.engine->Cancel(cancelled, FinishReason::kCancelled);
  EXPECT_EQ(harness.Await(cancelled).last.reason, FinishReason::kCancelled);
  harness.engine->Drain(absl::Now());
  EXPECT_EQ(harness.Await(drained).last.reason, FinishReason::kUnavailable);
  EXPECT_EQ(harness.Await(first).last.reason, FinishReason::kUnavailable);
  harness.ExpectEmptyPool();
}

TEST(EngineQueueTest, WhoWaitsTooLongIsTurnedAway) {
  EngineOptions options = ShortestSlices(400);
  options.max_queue_time = absl::Milliseconds(300);
  EngineHarness harness(options);
  const EngineRequest request = harness.Request(1000, 20);  // 256 of the 400 blocks
  const RequestId first = MustBegin(harness, request, 200'000);
  const RequestId turn = harness.MustSubmit(harness.Request(100, 20));
  const RequestId room = harness.MustSubmit(harness.Request(1000, 20));
  const std::shared_ptr<const EngineSnapshot> snapshot = AwaitCounts(harness, 1, 2);
  ASSERT_EQ(snapshot->requests.size(), 3u);
  EXPECT_EQ(snapshot->requests[1].reserved_blocks, 32u) << "it has been let in";
  EXPECT_EQ(snapshot->requests[2].reserved_blocks, 0u);
  EngineRequest hurried = harness.Request(100, 20);
  hurried.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
  const RequestId deadline = harness.MustSubmit(hurried);
  for (const RequestId id : {turn, room}) {
    const Collected result = harness.Await(id);
    EXPECT_TRUE(result.tokens.empty());
    EXPECT_EQ(result.last.reason, FinishReason::kQueueTime);
    EXPECT_EQ(result.last.status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(RefusalReason(result.last.status), "queue_time");
    EXPECT_THAT(std::string(result.last.status.message()), HasSubstr("within 0.3 seconds"));
    EXPECT_GE(result.last.queue_seconds, 0.3);
  }
  EXPECT_EQ(harness.Await(deadline).last.reason, FinishReason::kDeadline);
  EXPECT_EQ(harness.Await(first).tokens, harness.Expected(request))
      << "what has been begun may take its time";
  harness.ExpectEmptyPool();
  EXPECT_EQ(harness.metrics.Totals().finished["queue_time"], 2);
  EXPECT_EQ(harness.metrics.Totals().refused, 2);
}

TEST(EngineQueueTest, NoMoreRunThanMay) {
  EngineOptions options = Options(400);
  options.max_running = 2;
  EngineHarness harness(options);
  harness.control->decode_delay_us = 1000;
  std::vector<RequestId> ids;
  for (int i = 0; i < 6; ++i) ids.push_back(harness.MustSubmit(harness.Request(100, 20)));
  for (const RequestId id : ids) EXPECT_TRUE(harness.Await(id).last.status.ok());
  EXPECT_EQ(harness.control->largest_batch, 2);
}

/// Four requests have a place: one that runs, and three that come while a step is under way.
void PromiseThreePlaces(EngineOptions options) {
  options.max_queue = 1;
  EngineHarness harness(options);
  harness.control->hold_at_step = 1;
  std::vector<RequestId> ids = {harness.MustSubmit(harness.Request(100, 20))};
  harness.AwaitHeld();
  for (int i = 0; i < 4; ++i) ids.push_back(harness.MustSubmit(harness.Request(100, 20)));
  EXPECT_EQ(RefusalReason(harness.engine->CheckOpen()), "queue_full") << "the fourth waits";
  harness.HoldAfter(1);
  EXPECT_EQ(RefusalReason(harness.engine->CheckOpen()), "queue_full") << "they are being let in";
  harness.Continue();
  for (const RequestId id : ids) EXPECT_TRUE(harness.Await(id).last.status.ok());
  harness.ExpectEmptyPool();
}

TEST(EngineQueueTest, PlacesThatArePromisedAreNobodyElses) {
  EngineOptions options = Options(400);
  options.max_running = 4;
  PromiseThreePlaces(options);
}

TEST(EngineQueueTest, BlocksThatArePromisedAreNobodyElses) {
  PromiseThreePlaces(Options(4 * 32));  // 119 tokens are 8 blocks in each of 4 layers
}

TEST(EngineQueueTest, BehindOneThatWaitsNobodyHasAPlace) {
  EngineOptions options = Options(40);
  options.max_queue = 1;
  EngineHarness harness(options);
  harness.control->hold_at_step = 1;
  const RequestId running = harness.MustSubmit(harness.Request(60, 20));  // 20 of 40 blocks
  harness.AwaitHeld();
  const RequestId large = harness.MustSubmit(harness.Request(140, 10));  // 40 blocks
  harness.HoldAfter(2);  // the first of these steps came before it
  EXPECT_EQ(RefusalReason(harness.engine->Submit(harness.Request(10, 2)).status()), "queue_full");
  harness.Continue();
  for (const RequestId id : {running, large}) EXPECT_TRUE(harness.Await(id).last.status.ok());
}

TEST(EngineQueueTest, EveryDeadlineEndsItsRequestInItsTurn) {
  EngineHarness harness(Options(8000));
  harness.control->decode_delay_us = 1000;
  std::vector<RequestId> ids;
  for (const int milliseconds : {30, 60, 90}) {
    EngineRequest request = harness.Request(10, 4000);
    request.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
    ids.push_back(harness.MustSubmit(request));
  }
  for (const RequestId id : ids) {
    EXPECT_EQ(harness.Await(id).last.reason, FinishReason::kDeadline);
  }
  harness.ExpectEmptyPool();
}

TEST(EngineQueueTest, AnEngineThatHasEndedWhatWasLeftSleeps) {
  EngineHarness harness(Options(8000));
  harness.control->decode_delay_us = 1000;
  const RequestId id = harness.MustSubmit(harness.Request(50, 4000));
  harness.AwaitTokens(id, 1);
  harness.engine->Drain(absl::Now());
  EXPECT_EQ(harness.Await(id).last.reason, FinishReason::kUnavailable);
  harness.ExpectEmptyPool();
  bool sleeps = false;
  for (int look = 0; look < 100 && !sleeps; ++look) {  // the last step may not be over yet
    const std::shared_ptr<const EngineSnapshot> before = harness.engine->Snapshot();
    absl::SleepFor(absl::Milliseconds(50));
    sleeps = harness.engine->Snapshot() == before;
  }
  EXPECT_TRUE(sleeps) << "an engine that is at work makes a snapshot in every step";
}

}  // namespace
}  // namespace ziggurat

// What is counted of a request by the way that it takes and the way that it ends.
#include <chrono>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "prometheus/text_serializer.h"
#include "scheduler/refusal.h"
#include "tests/scheduler/engine_harness.h"

namespace ziggurat {
namespace {

using ::testing::HasSubstr;

std::string Page(const Metrics& metrics) {
  return prometheus::TextSerializer().Serialize(metrics.Collect());
}

SteadyTime SecondsAgo(int seconds) {
  return std::chrono::steady_clock::now() - std::chrono::seconds(seconds);
}

TEST(EngineMetricsTest, TokensOfPromptsAndAnswersCount) {
  EngineHarness harness(Options(400));
  harness.Await(harness.MustSubmit(harness.Request(100, 20)));
  harness.Await(harness.MustSubmit(harness.Request(50, 1)));
  const MetricTotals totals = harness.metrics.Totals();
  EXPECT_EQ(totals.prompt_tokens, 150);
  EXPECT_EQ(totals.generated_tokens, 21);
  EXPECT_EQ(totals.finished.at("length"), 2);
}

TEST(EngineMetricsTest, WhoEndsATextCountsWhyItEnded) {
  EngineHarness harness(Options(8000));
  harness.control->decode_delay_us = 1000;
  for (const bool may_end_by_text : {false, true}) {
    EngineRequest request = harness.Request(10, 4000);
    request.may_end_by_text = may_end_by_text;
    const RequestId id = harness.MustSubmit(request);
    harness.AwaitTokens(id, 2);
    harness.engine->Cancel(id, FinishReason::kStop);
    const Collected result = harness.Await(id);
    EXPECT_EQ(result.last.reason, FinishReason::kStop);
    EXPECT_TRUE(result.last.status.ok()) << result.last.status;
    EXPECT_EQ(harness.metrics.Totals().finished["stop"], 1) << "the engine's, and no more";
    EXPECT_EQ(harness.metrics.Totals().finished["cancelled"], 0);
  }
}

TEST(EngineMetricsTest, WhoGivesUpInTheQueueHasWaited) {
  EngineHarness harness(Options(40));
  harness.control->decode_delay_us = 1000;
  const RequestId running = harness.MustSubmit(harness.Request(60, 80));
  harness.AwaitTokens(running, 1);
  const RequestId waiting = harness.MustSubmit(harness.Request(140, 10));
  harness.engine->Cancel(waiting, FinishReason::kCancelled);
  harness.Await(waiting);
  harness.Await(running);
  EXPECT_THAT(Page(harness.metrics), HasSubstr("ziggurat_queue_seconds_count 2\n"));
}

TEST(EngineMetricsTest, DecodingLastsToTheLastTokenAndNotToTheEnd) {
  EngineHarness harness(Options(400));
  harness.control->decode_delay_us = 100'000;
  harness.control->fail_decode = true;
  const Collected result = harness.Await(harness.MustSubmit(harness.Request(10, 20)));
  EXPECT_EQ(result.tokens.size(), 1u);
  EXPECT_GE(result.last.total_seconds - result.last.first_token_seconds, 0.1);
  EXPECT_THAT(Page(harness.metrics), HasSubstr("ziggurat_decode_seconds_count 1\n"));
  EXPECT_THAT(Page(harness.metrics), HasSubstr("ziggurat_decode_seconds_sum 0\n"));
}

/// What CheckWaited says of one that came two seconds ago, and what it counts.
void ExpectWaited(absl::Duration most, std::optional<SteadyTime> deadline, bool has_left,
                  absl::StatusCode code, const std::string& counted) {
  EngineOptions options = Options(400);
  options.max_queue_time = most;
  EngineHarness harness(options);
  EXPECT_EQ(harness.engine->CheckWaited(SecondsAgo(2), deadline, has_left).code(), code);
  const bool has_ended = !counted.empty();
  if (has_ended) {
    EXPECT_EQ(harness.metrics.Totals().finished[counted], 1) << counted;
  }
  double finished = 0;
  for (const auto& [reason, count] : harness.metrics.Totals().finished) finished += count;
  EXPECT_EQ(finished, has_ended ? 1 : 0);
  EXPECT_EQ(harness.metrics.Totals().refused, counted == "queue_time" ? 1 : 0);
  for (const char* name : {"ziggurat_queue_seconds_count ", "ziggurat_request_seconds_count "}) {
    EXPECT_THAT(Page(harness.metrics), HasSubstr(absl::StrCat(name, has_ended ? 1 : 0, "\n")));
  }
}

TEST(EngineMetricsTest, WhoEndsBeforeItIsSubmittedCountsAsOneThatEndsInTheQueue) {
  const SteadyTime past = SecondsAgo(1), future = SecondsAgo(-100);
  const absl::Duration never = absl::ZeroDuration();
  using enum absl::StatusCode;
  ExpectWaited(never, std::nullopt, false, kOk, "");
  ExpectWaited(never, future, false, kOk, "");
  ExpectWaited(absl::Seconds(100), future, false, kOk, "");
  ExpectWaited(absl::Seconds(1), future, false, kResourceExhausted, "queue_time");
  ExpectWaited(absl::Seconds(1), past, false, kDeadlineExceeded, "deadline");
  ExpectWaited(never, future, true, kCancelled, "cancelled");
  ExpectWaited(never, past, true, kDeadlineExceeded, "deadline");
}

TEST(EngineMetricsTest, APairsSharedBlocksCountOnceWhileItIsPrefilled) {
  EngineHarness harness(ShortestSlices(400));
  harness.control->prefill_layer_delay_us = 300'000;  // snapshots are shown every tenth of a second
  const RequestId id = harness.MustSubmit(harness.Request(100, 1, "minicache(start=0)"));
  int seen = 0;
  const SteadyTime end = SecondsAgo(-30);
  for (bool is_there = false; !is_there || harness.engine->Snapshot()->running > 0;) {
    ASSERT_LT(std::chrono::steady_clock::now(), end) << "nobody looked while it was there";
    const std::shared_ptr<const EngineSnapshot> snapshot = harness.engine->Snapshot();
    size_t blocks = 0;
    for (const LayerSnapshot& layer : snapshot->layers) {
      EXPECT_EQ(layer.live_bytes + layer.tail_waste_bytes, layer.used_blocks * kBlockBytes);
      EXPECT_LE(layer.live_bytes, layer.used_blocks * kBlockBytes);
      blocks += layer.used_blocks;
    }
    EXPECT_EQ(blocks, snapshot->used_blocks);
    is_there = is_there || snapshot->running > 0;
    if (blocks > 0 && snapshot->requests[0].state == RequestState::kPrefilling) {
      ++seen;
      harness.control->prefill_layer_delay_us = 0;
    }
    absl::SleepFor(absl::Milliseconds(2));
  }
  EXPECT_GT(seen, 0);
  EXPECT_TRUE(harness.Await(id).last.status.ok());
}

TEST(EngineOptionsTest, APromptLeavesRoomForOneNewToken) {
  Metrics metrics;
  const auto create = [&metrics](EngineOptions options) {
    return Engine::Create(options, std::make_unique<StubModel>(StubModelOptions()), &metrics);
  };
  EngineOptions options = Options(400);
  options.max_prompt_tokens = 4096;  // the stub's context
  EXPECT_THAT(create(options).status().ToString(), HasSubstr("must leave room for one new token"));
  options.max_prompt_tokens = 4095;
  EXPECT_TRUE(create(options).ok());
  options.max_prompt_tokens = 0;
  options.prefill_tokens = 100'000;
  const auto filled = create(options);
  ASSERT_TRUE(filled.ok()) << filled.status();
  EXPECT_EQ((*filled)->options().max_prompt_tokens, 4095);
  EXPECT_EQ((*filled)->options().prefill_tokens, 8192) << "what the model's prefill takes";
}

TEST(EngineOptionsTest, APrefillThatNeedsMoreWorkspaceThanThereIsIsRefused) {
  StubModelOptions model;
  model.max_prefill_tokens = 12;
  EngineHarness harness(Options(400), model);
  EngineRequest request = harness.Request(10, 1);
  harness.Await(harness.MustSubmit(request));
  request.report_attention_recall = true;  // by the last 32 queries, of which the stub keeps all
  const absl::Status status = harness.engine->Submit(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(RefusalReason(status), "never_fits");
  EXPECT_THAT(status.ToString(), HasSubstr("needs a workspace of"));
}

}  // namespace
}  // namespace ziggurat

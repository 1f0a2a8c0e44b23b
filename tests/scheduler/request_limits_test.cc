// What a request may ask for, to the last token, and why it ended.
#include "scheduler/request_limits.h"

#include <chrono>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/endings.h"
#include "scheduler/metrics.h"
#include "scheduler/refusal.h"

namespace ziggurat {
namespace {

using ::testing::HasSubstr;

EngineRequest Request(int prompt_tokens, int max_new_tokens, int min_new_tokens = 0) {
  EngineRequest request;
  request.prompt.resize(prompt_tokens);
  request.max_new_tokens = max_new_tokens;
  request.min_new_tokens = min_new_tokens;
  return request;
}

std::string Said(const absl::Status& status) {
  if (!status.ok()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  }
  return std::string(status.message());
}

TEST(RequestLimits, AnAnswerMayFillTheContextToItsLastToken) {
  EXPECT_EQ(Said(CheckLengths(Request(10, 90), 100)), "");
  EXPECT_THAT(Said(CheckLengths(Request(10, 91), 100)), HasSubstr("max_tokens is 91"));
  EXPECT_EQ(Said(CheckLengths(Request(10, 1), 100)), "");
  EXPECT_THAT(Said(CheckLengths(Request(10, 0), 100)), HasSubstr("from 1 to 90"));
}

TEST(RequestLimits, TheMinimumIsAtMostTheMaximum) {
  EXPECT_EQ(Said(CheckLengths(Request(10, 20, 20), 100)), "");
  EXPECT_THAT(Said(CheckLengths(Request(10, 20, 21), 100)), HasSubstr("min_tokens is 21"));
  EXPECT_THAT(Said(CheckLengths(Request(10, 20, -1), 100)), HasSubstr("from 0 to 20"));
}

TEST(RequestLimits, APromptHasOneTokenToTheMost) {
  EXPECT_EQ(Said(CheckPromptTokens("prompt", 1, 50)), "");
  EXPECT_EQ(Said(CheckPromptTokens("prompt", 50, 50)), "");
  EXPECT_THAT(Said(CheckPromptTokens("prompt", 0, 50)), HasSubstr("prompt is empty"));
  EXPECT_THAT(Said(CheckPromptTokens("prompt", 51, 50)), HasSubstr("has 51 tokens: at most 50"));
}

TEST(Endings, WhoLeavesWhenItsTimeIsNearlyUpRanOutOfTime) {
  const SteadyTime now = std::chrono::steady_clock::now();
  const auto reason = [&](int milliseconds_left) {
    return WhyLeft(now + std::chrono::milliseconds(milliseconds_left), now).reason;
  };
  EXPECT_EQ(reason(-1), FinishReason::kDeadline);
  EXPECT_EQ(reason(50), FinishReason::kDeadline) << "clients give up a little before";
  EXPECT_EQ(reason(51), FinishReason::kCancelled);
  EXPECT_EQ(WhyLeft(std::nullopt, now).reason, FinishReason::kCancelled);
  EXPECT_EQ(WhyLeft(now, now).status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(WhyLeft(std::nullopt, now).status.code(), absl::StatusCode::kCancelled);
}

TEST(Endings, WhoWaitedTooLongIsRefusedAndCounts) {
  Metrics metrics;
  const Ending ending = PastQueueTime(2.5, &metrics);
  EXPECT_EQ(ending.reason, FinishReason::kQueueTime);
  EXPECT_EQ(ending.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(ending.status.message()), HasSubstr("within 2.5 seconds"));
  EXPECT_EQ(RefusalReason(ending.status), "queue_time");
  EXPECT_EQ(metrics.Totals().refused, 1);
}

}  // namespace
}  // namespace ziggurat

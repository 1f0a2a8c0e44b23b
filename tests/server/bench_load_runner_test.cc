// Load on a whole daemon around the stub model: closed, open, refused, failed, broken off.
#include <atomic>
#include <thread>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cli/bench/load/cache_sampler.h"
#include "server/cli/bench/load/load_runner.h"
#include "tests/server/stub_daemon.h"
#include "tests/support/poll.h"

namespace ziggurat::bench {
namespace {

using ::testing::HasSubstr;

WorkloadOptions Requests(size_t count, double rate = 0) {
  return {.input = LengthDistribution::Uniform(5, 30),
          .output = LengthDistribution::Uniform(1, 12),
          .rate = rate,
          .seed = 3,
          .requests = count,
          .limits = {.context_tokens = 4096, .prompt_tokens = 4095}};
}

class BenchLoadRunner : public ::testing::Test {
 protected:
  std::unique_ptr<LoadRunner> Start(WorkloadOptions workload, const LoadOptions& options) {
    return std::make_unique<LoadRunner>(daemon_->stub(), Workload(std::move(workload)), prompts_,
                                        options);
  }
  int Count(const std::vector<RequestRecord>& records, Outcome outcome) {
    return static_cast<int>(
        std::count_if(records.begin(), records.end(),
                      [&](const RequestRecord& record) { return record.outcome == outcome; }));
  }

  std::unique_ptr<StubDaemon> daemon_ = std::make_unique<StubDaemon>();
  const PromptMaker prompts_{1024, {}, 3};
};

TEST_F(BenchLoadRunner, ClosedLoopMakesEveryRequestOnceWithAtMostSoManyAtATime) {
  daemon_->control().decode_delay_us = 500;
  const auto runner = Start(Requests(60), {.clients = 4});
  ASSERT_TRUE(runner->Wait().ok());
  EXPECT_TRUE(runner->finished());
  const LoadProgress progress = runner->progress();
  EXPECT_EQ(progress.sent, 60);
  EXPECT_EQ(progress.ended, 60);
  EXPECT_EQ(progress.done, 60);
  const std::vector<RequestRecord> records = runner->TakeRecords();
  ASSERT_EQ(records.size(), 60u);
  Workload same(Requests(60));
  std::vector<std::pair<double, int>> events;
  for (size_t i = 0; i < records.size(); ++i) {
    const RequestRecord& record = records[i];
    EXPECT_EQ(record.plan.index, i);
    const Lengths lengths = same.Next()->lengths;
    EXPECT_EQ(record.plan.lengths, lengths);
    ASSERT_EQ(record.outcome, Outcome::kDone) << record.error;
    EXPECT_EQ(record.prompt_tokens, lengths.input);
    EXPECT_EQ(record.output_tokens, lengths.output);
    EXPECT_EQ(record.arrived_tokens(), lengths.output);
    EXPECT_EQ(record.due_seconds, record.sent_seconds);
    EXPECT_GT(record.ttft(), 0);
    EXPECT_GE(record.end_to_end(), record.arrivals.back().seconds - record.due_seconds);
    events.emplace_back(record.sent_seconds, 1);
    events.emplace_back(record.end_seconds, -1);
  }
  std::sort(events.begin(), events.end());
  int at_once = 0, most = 0;
  for (const auto& [seconds, change] : events) most = std::max(most, at_once += change);
  EXPECT_EQ(most, 4);
  daemon_->WaitIdle();
}

TEST_F(BenchLoadRunner, AnswersDoNotEndAtTheModelsStopTokens) {
  StubModelOptions model = StubDaemon::DefaultModel();
  model.next_token = [](int32_t, int) { return 777; };
  daemon_ =
      std::make_unique<StubDaemon>(StubDaemon::DefaultConfig(), model, std::vector<int32_t>{777});
  WorkloadOptions workload = Requests(3);
  workload.output = LengthDistribution::Fixed(9);
  const auto runner = Start(workload, {.clients = 3});
  ASSERT_TRUE(runner->Wait().ok());
  for (const RequestRecord& record : runner->TakeRecords()) EXPECT_EQ(record.output_tokens, 9);
}

TEST_F(BenchLoadRunner, OpenLoopSendsWhenRequestsArriveWhateverTheDaemonDoes) {
  daemon_->control().decode_delay_us = 100000;  // far slower than the arrivals
  const auto runner = Start(Requests(40, 100), {});
  ASSERT_TRUE(runner->Wait().ok());
  Workload same(Requests(40, 100));
  for (const RequestRecord& record : runner->TakeRecords()) {
    ASSERT_EQ(record.outcome, Outcome::kDone) << record.error;
    EXPECT_EQ(record.due_seconds, same.Next()->arrival_seconds);
    EXPECT_GE(record.sent_seconds, record.due_seconds);
    EXPECT_LT(record.sent_seconds, record.due_seconds + 1);
    EXPECT_GE(record.ttft(), record.arrivals.front().seconds - record.sent_seconds)
        << "what came late counts as waiting";
  }
}

TEST_F(BenchLoadRunner, ARequestThatIsDueInAThousandYearsIsNotSent) {
  const auto runner = Start(Requests(3, 1e-12), {});
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(runner->progress().sent, 0);
  runner->Stop();
  EXPECT_TRUE(absl::IsCancelled(runner->Wait()));
}

TEST_F(BenchLoadRunner, ClientsSendNothingAfterTheDurationAndWhatRunsIsWaitedFor) {
  daemon_->control().decode_delay_us = 3000;
  WorkloadOptions workload = Requests(0);
  workload.requests = std::nullopt;
  const auto runner = Start(workload, {.clients = 3, .duration_seconds = 0.4});
  ASSERT_TRUE(runner->Wait().ok());
  const std::vector<RequestRecord> records = runner->TakeRecords();
  EXPECT_GE(records.size(), 3u);
  EXPECT_EQ(Count(records, Outcome::kDone), static_cast<int>(records.size()));
  // Some time passes between the look at the clock and what is noted.
  for (const RequestRecord& record : records) EXPECT_LE(record.sent_seconds, 2);
}

TEST_F(BenchLoadRunner, OpenLoopSendsAllThatIsDueInTimeAndNothingElse) {
  // The second one is more than this machine can send in time.
  for (const double rate : {50., 1e6}) {
    const double duration = rate < 100 ? 0.4 : 0.001;
    WorkloadOptions options = Requests(0, rate);
    options.requests = std::nullopt;
    Workload same(options);
    size_t due = 0;
    while (same.Next()->arrival_seconds <= duration) ++due;
    ASSERT_GT(due, 5u);
    const auto runner = Start(options, {.duration_seconds = duration});
    ASSERT_TRUE(runner->Wait().ok());
    EXPECT_EQ(runner->TakeRecords().size(), due) << rate;
  }
}

TEST_F(BenchLoadRunner, RefusalsAreCountedWithTheirReasonAndDoNotSpin) {
  const absl::Time start = absl::Now();
  const auto runner = Start(Requests(4), {.clients = 2, .compression = "snapkv(bugdet=3)"});
  ASSERT_TRUE(runner->Wait().ok());
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(90)) << "a refused client rests";
  const std::vector<RequestRecord> records = runner->TakeRecords();
  ASSERT_EQ(Count(records, Outcome::kRefused), 4);
  EXPECT_EQ(records[0].error_code, "INVALID_ARGUMENT");
  EXPECT_THAT(records[0].error, HasSubstr("bugdet"));

  WorkloadOptions huge = Requests(2);
  huge.input = LengthDistribution::Fixed(4000);
  ServeConfig small = StubDaemon::DefaultConfig();
  small.kv_cache_bytes = 64 << 10;
  daemon_ = std::make_unique<StubDaemon>(small);
  const auto never = Start(huge, {.clients = 1});
  ASSERT_TRUE(never->Wait().ok());
  EXPECT_EQ(never->TakeRecords()[0].error_code, "RESOURCE_EXHAUSTED");
}

TEST_F(BenchLoadRunner, ARequestThatTakesTooLongHasFailed) {
  daemon_->control().decode_delay_us = 50000;
  WorkloadOptions workload = Requests(3);
  workload.output = LengthDistribution::Fixed(1000);
  const auto runner = Start(workload, {.clients = 3, .timeout_seconds = 2});
  ASSERT_TRUE(runner->Wait().ok());
  const std::vector<RequestRecord> records = runner->TakeRecords();
  ASSERT_EQ(Count(records, Outcome::kFailed), 3);
  EXPECT_EQ(records[0].error_code, "DEADLINE_EXCEEDED");
  EXPECT_GT(records[0].arrived_tokens(), 0) << "what came before is kept";
  daemon_->WaitIdle();
}

TEST_F(BenchLoadRunner, StopCancelsWhatIsUnderWayAndKeepsWhatWasDone) {
  daemon_->control().decode_delay_us = 2000;
  for (const int clients : {0, 3}) {
    WorkloadOptions workload = Requests(100000, clients == 0 ? 200 : 0);
    const auto runner = Start(workload, {.clients = clients});
    ASSERT_TRUE(PollUntil(kPatience, [&] { return runner->progress().done >= 5; }))
        << "waited for five requests, and " << runner->progress().done << " are done";
    daemon_->control().hold_at_step = 0;
    ASSERT_TRUE(PollUntil(kPatience, [&] { return daemon_->control().is_held.load(); }))
        << "waited for a request that cannot end";
    runner->Stop();
    EXPECT_TRUE(absl::IsCancelled(runner->Wait()));
    daemon_->control().hold_at_step = StubControl::kNever;
    const std::vector<RequestRecord> records = runner->TakeRecords();
    EXPECT_GE(Count(records, Outcome::kDone), 5);
    EXPECT_GT(Count(records, Outcome::kCancelled), 0);
    EXPECT_EQ(Count(records, Outcome::kFailed), 0);
    daemon_->WaitIdle();
  }
}

TEST_F(BenchLoadRunner, ADaemonThatGoesAwayEndsTheRun) {
  daemon_->control().decode_delay_us = 2000;
  WorkloadOptions workload = Requests(100000);
  const auto runner = Start(workload, {.clients = 3});
  ASSERT_TRUE(PollUntil(kPatience, [&] { return runner->progress().done >= 5; }))
      << "waited for five requests, and " << runner->progress().done << " are done";
  daemon_->daemon().Drain(absl::ZeroDuration());
  EXPECT_TRUE(absl::IsUnavailable(runner->Wait()));
  EXPECT_LT(runner->TakeRecords().size(), 1000u);
}

TEST_F(BenchLoadRunner, TheSamplerSeesTheCacheFillAndEmpty) {
  daemon_->control().decode_delay_us = 3000;
  const auto runner = Start(Requests(40), {.clients = 4});
  CacheSampler sampler(daemon_->stub(), runner->start(), std::chrono::milliseconds(10));
  ASSERT_TRUE(runner->Wait().ok());
  daemon_->WaitIdle();
  absl::SleepFor(absl::Milliseconds(150));  // the daemon's own picture of itself is as old
  const CacheSamples cache = sampler.Stop();
  EXPECT_EQ(cache.missed, 0);
  EXPECT_GT(cache.total_blocks, 0u);
  ASSERT_GT(cache.samples.size(), 5u);
  uint64_t most_used = 0;
  uint32_t most_running = 0;
  for (size_t i = 0; i < cache.samples.size(); ++i) {
    const CacheSample& sample = cache.samples[i];
    EXPECT_GT(sample.seconds, i > 0 ? cache.samples[i - 1].seconds : 0);
    EXPECT_LE(sample.used_blocks + sample.reserved_blocks, cache.total_blocks);
    most_used = std::max(most_used, sample.used_blocks);
    most_running = std::max(most_running, sample.running);
  }
  EXPECT_GT(most_used, 0u);
  EXPECT_GE(most_running, 2u);
  EXPECT_LE(most_running, 4u);
  EXPECT_EQ(cache.samples.back().used_blocks, 0u);
}

TEST_F(BenchLoadRunner, TotalsOnlyLeavesOutLayersAndRequests) {
  v1::GetCacheRequest request;
  v1::GetCacheResponse whole, totals;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(daemon_->stub().GetCache(&context, request, &whole).ok());
  }
  request.set_totals_only(true);
  grpc::ClientContext context;
  ASSERT_TRUE(daemon_->stub().GetCache(&context, request, &totals).ok());
  EXPECT_GT(whole.layers_size(), 0);
  EXPECT_EQ(totals.layers_size(), 0);
  EXPECT_EQ(totals.total_blocks(), whole.total_blocks());
  EXPECT_EQ(totals.free_blocks(), whole.free_blocks());
}

}  // namespace
}  // namespace ziggurat::bench

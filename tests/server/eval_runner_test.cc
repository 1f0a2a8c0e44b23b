// Questions to a whole daemon around the stub model: asked, written down, failed, broken off.
#include <atomic>
#include <filesystem>
#include <future>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cli/eval/resume.h"
#include "server/cli/policy_check.h"
#include "server/cli/progress.h"
#include "tests/model/tokenizer_files.h"
#include "tests/server/stub_daemon.h"
#include "tests/support/files.h"
#include "tests/support/poll.h"

namespace ziggurat::eval {
namespace {

using ::testing::HasSubstr;

class EvalRunner : public ::testing::Test {
 protected:
  void Start(const ServeConfig& config = StubDaemon::DefaultConfig()) {
    daemon_ = std::make_unique<StubDaemon>(config);
    grpc::ClientContext context;
    ASSERT_TRUE(daemon_->stub().GetModel(&context, {}, &model_).ok());
    auto log = ResultLog::Open(folder_.path().string());
    ASSERT_TRUE(log.ok()) << log.status();
    log_ = *std::move(log);
  }
  /// One request runs and one waits; then the daemon is full.
  void StartFullWithTwo() {
    ServeConfig config = StubDaemon::DefaultConfig();
    config.max_running = 1;
    config.max_queue = 1;
    Start(config);
  }
  void MakeQuestions(int count) {
    for (int i = 0; i < count; ++i) {
      file_.questions.push_back({.task = "single",
                                 .length = 64,
                                 .depth = 0.5,
                                 .prompt = " The passkey of Dora Todd is 78474. " +
                                           std::to_string(i) + " What is it? Answer:",
                                 .answer = " 78474"});
    }
    for (size_t i = 0; i < file_.questions.size(); ++i) {
      Asking asking{.file = &file_, .index = i};
      ASSERT_TRUE(PrepareAsking(daemon_->stub(), options_, asking).ok());
      askings_.push_back(asking);
    }
  }
  std::vector<Job> Jobs() const { return Resume({}, model_, policies_, askings_, false).jobs; }

  TemporaryFolder folder_;
  std::unique_ptr<StubDaemon> daemon_;
  v1::GetModelResponse model_;
  std::unique_ptr<ResultLog> log_;
  AskingOptions options_;
  TaskFile file_ = {.path = "/a/b/toy.jsonl", .hash = "0123", .questions = {}};
  std::vector<Asking> askings_;
  std::vector<EvalPolicy> policies_ = {
      {.canonical = "full", .name = "full"},
      {.canonical = "streaming(sinks=4,recent=8)", .name = "streaming"}};
};

TEST_F(EvalRunner, AsksEverythingOnceAndWritesItDown) {
  Start();
  MakeQuestions(6);
  Runner runner(daemon_->stub(), model_, *log_, Jobs(), {.concurrency = 4});
  ASSERT_TRUE(runner.Wait().ok());
  const RunProgress progress = runner.progress();
  EXPECT_EQ(progress.done, 12u);
  EXPECT_EQ(progress.total, 12u);
  EXPECT_EQ(progress.failed, 0u);
  EXPECT_EQ(progress.done_weight, progress.total_weight);
  const std::vector<Result> results = runner.TakeResults();
  ASSERT_EQ(results.size(), 12u);
  for (const Result& result : results) {
    EXPECT_FALSE(result.failed()) << result.error;
    EXPECT_EQ(result.file, "toy.jsonl");
    EXPECT_EQ(result.version, model_.version());
    EXPECT_GT(result.prompt_tokens, 10);
    EXPECT_EQ(result.completion_tokens, askings_[0].max_tokens);
    EXPECT_GT(result.cache.bytes, 0u);
    EXPECT_GT(result.total_seconds, 0);
    if (result.key.policy == "full") {
      EXPECT_EQ(result.cache.blocks, result.cache.full_blocks);
    } else {
      EXPECT_LT(result.cache.blocks, result.cache.full_blocks);
    }
  }
  log_.reset();
  const auto log = ResultLog::Open(folder_.path().string());
  ASSERT_TRUE(log.ok()) << log.status();
  const Resumption resumption = Resume((*log)->earlier(), model_, policies_, askings_, false);
  EXPECT_EQ(resumption.settled.size(), 12u);
  EXPECT_TRUE(resumption.jobs.empty());
}

TEST_F(EvalRunner, TextIsWhatTheModelSaid) {
  Start();
  MakeQuestions(1);
  Runner runner(daemon_->stub(), model_, *log_, Jobs(), {});
  ASSERT_TRUE(runner.Wait().ok());
  v1::GenerateRequest request = TextRequest(file_.questions[0].prompt, askings_[0].max_tokens);
  request.add_stop(".");
  request.set_compression("full");
  EXPECT_EQ(runner.TakeResults()[0].text, daemon_->Generate(request).text);
}

TEST_F(EvalRunner, AnswersOfOneTokenAreAskedWithTheEndHeldBack) {
  Start();
  file_.questions.push_back(
      {.task = "agg", .length = 64, .prompt = " Which colour? Answer:", .answer = " blue"});
  Asking asking{.file = &file_, .index = 0};
  ASSERT_TRUE(PrepareAsking(daemon_->stub(), options_, asking).ok());
  EXPECT_EQ(asking.answer_tokens, 1);
  EXPECT_EQ(asking.held_back, 1);
  EXPECT_EQ(asking.held_back_text, ":");
  EXPECT_EQ(asking.max_tokens, 2);
  const v1::GenerateRequest request = MakeRequest(asking, policies_[0], false);
  ASSERT_TRUE(request.has_token_ids());
  grpc::ClientContext context;
  v1::DetokenizeRequest ids;
  *ids.mutable_token_ids() = request.token_ids().ids();
  v1::DetokenizeResponse text;
  ASSERT_TRUE(daemon_->stub().Detokenize(&context, ids, &text).ok());
  EXPECT_EQ(text.text(), " Which colour? Answer");

  options_.hold_back = 0;
  Asking whole{.file = &file_, .index = 0};
  ASSERT_TRUE(PrepareAsking(daemon_->stub(), options_, whole).ok());
  EXPECT_EQ(whole.held_back, 0);
  EXPECT_EQ(whole.max_tokens, 1);
  EXPECT_EQ(MakeRequest(whole, policies_[0], true).text(), " Which colour? Answer:");
  EXPECT_TRUE(MakeRequest(whole, policies_[0], true).report_attention_recall());

  options_.hold_back = 1000;
  Asking all{.file = &file_, .index = 0};
  ASSERT_TRUE(PrepareAsking(daemon_->stub(), options_, all).ok());
  EXPECT_EQ(all.prompt_token_ids.size(), 1u) << "something must be left to send";
}

TEST_F(EvalRunner, WhatIsHeldBackBeginsWithACharacter) {
  Start();
  file_.questions.push_back(
      {.task = "agg", .length = 64, .prompt = "Which colour?：", .answer = " blue"});
  Asking asking{.file = &file_, .index = 0};
  ASSERT_TRUE(PrepareAsking(daemon_->stub(), options_, asking).ok());
  EXPECT_EQ(asking.held_back_text, "：");
  EXPECT_EQ(asking.held_back, 3) << "a token for each byte";
  EXPECT_EQ(asking.max_tokens, 4);

  file_.questions.push_back({.task = "agg", .length = 64, .prompt = "：", .answer = " blue"});
  Asking alone{.file = &file_, .index = 1};
  ASSERT_TRUE(PrepareAsking(daemon_->stub(), options_, alone).ok());
  EXPECT_EQ(alone.held_back_text, "：");
  EXPECT_EQ(alone.prompt_token_ids.size(), 1u) << "BOS";
}

TEST_F(EvalRunner, AnAnswerThatSharesATokenWithItsPromptIsCountedAlone) {
  Start();
  const auto tokens = [&](const char* prompt, const char* answer) {
    file_.questions = {{.task = "t", .length = 9, .prompt = prompt, .answer = answer}};
    Asking asking{.file = &file_, .index = 0};
    EXPECT_TRUE(PrepareAsking(daemon_->stub(), options_, asking).ok());
    return asking.answer_tokens;
  };
  const int alone = tokens(" Where is it?", " the red stone");
  EXPECT_GT(alone, 1);
  EXPECT_GE(tokens(" Where is it? ", "the red stone"), alone) << "the space is a token by itself";
}

TEST_F(EvalRunner, TheSpaceBeforeATextIsNoTokenOfTheAnswer) {
  StubDaemon daemon(StubDaemon::DefaultConfig(), StubDaemon::DefaultModel(), {},
                    LoadJson(SentencePieceTokenizer()));
  file_.questions.push_back(
      {.task = "t", .length = 9, .prompt = "hello world", .answer = " hello"});
  Asking asking{.file = &file_, .index = 0};
  ASSERT_TRUE(PrepareAsking(daemon.stub(), options_, asking).ok());
  EXPECT_EQ(asking.answer_tokens, 1) << "alone it is two";
  EXPECT_EQ(asking.held_back, 1);
  EXPECT_EQ(asking.held_back_text, " world");
}

TEST_F(EvalRunner, StopsThatTheAnswerHoldsAreLeftOut) {
  Start();
  options_.stop = {".", "\n"};
  file_.questions.push_back({.task = "t", .length = 9, .prompt = "Pi is", .answer = " 3.14"});
  Asking asking{.file = &file_, .index = 0};
  ASSERT_TRUE(PrepareAsking(daemon_->stub(), options_, asking).ok());
  EXPECT_THAT(asking.stop, ::testing::ElementsAre("\n"));
}

TEST_F(EvalRunner, PoliciesAreJudgedByTheDaemon) {
  Start();
  std::string canonical;
  ASSERT_TRUE(CheckPolicy(daemon_->stub(), "snapkv( budget = 64 )", options_.stop, canonical).ok());
  EXPECT_EQ(canonical, "snapkv(budget=64,window=32,kernel=5,pool=avg)");
  const grpc::Status status = CheckPolicy(daemon_->stub(), "squash(x=3)", options_.stop, canonical);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("squash"));
  EXPECT_THAT(status.error_message(), HasSubstr("^"));
}

constexpr char kSummary[] =
    "You are given a report by a government agency. Write a one-page summary of the report.\n"
    "Report: The bridge was opened in 1932.\nNow, write a one-page summary of the report.\n"
    "Summary:";

TEST_F(EvalRunner, PoliciesThatDependOnThePromptAreLeftToEachPrompt) {
  Start();
  EvalPolicy open{.name = "windowkv(budget=64)"};
  ASSERT_TRUE(CheckPolicy(daemon_->stub(), open.name, options_.stop, open.canonical).ok());
  EXPECT_EQ(open.canonical,
            "windowkv(budget=64,task=auto,review=auto,observe=auto,group=auto,lambda=14,p=auto)");
  std::string stated;
  ASSERT_TRUE(
      CheckPolicy(daemon_->stub(), "windowkv(budget=64,task=localization)", options_.stop, stated)
          .ok());
  EXPECT_NE(stated, open.canonical);
  std::string other_spelling;
  ASSERT_TRUE(CheckPolicy(daemon_->stub(), "windowkv( budget = 64, task = auto )", options_.stop,
                          other_spelling)
                  .ok());
  EXPECT_EQ(other_spelling, open.canonical);

  file_.questions = {{.task = "sum", .length = 64, .prompt = kSummary, .answer = " A bridge"},
                     {.task = "sum", .length = 64, .prompt = kSummary, .answer = " blue"},
                     {.task = "find", .length = 64, .prompt = " Who is it?", .answer = " Dora"}};
  const char* tasks[] = {"task=aggregation", "task=aggregation", "task=localization"};
  for (size_t i = 0; i < file_.questions.size(); ++i) {
    Asking asking{.file = &file_, .index = i};
    ASSERT_TRUE(PrepareAsking(daemon_->stub(), options_, asking).ok());
    const Generation answer = daemon_->Generate(MakeRequest(asking, open, false));
    ASSERT_TRUE(answer.ok()) << answer.Describe();
    EXPECT_THAT(answer.result->cache().compression(), HasSubstr(tasks[i])) << "prompt " << i;
  }
}

TEST_F(EvalRunner, ADefaultThatDependsOnThePromptIsAllowedAsItIs) {
  ServeConfig config = StubDaemon::DefaultConfig();
  config.compression = "windowkv(budget=64)";
  config.allow_compression = {"full"};
  Start(config);
  policies_[1] = {.name = config.compression};
  ASSERT_TRUE(
      CheckPolicy(daemon_->stub(), config.compression, options_.stop, policies_[1].canonical).ok());
  MakeQuestions(2);
  Runner runner(daemon_->stub(), model_, *log_, Jobs(), {});
  ASSERT_TRUE(runner.Wait().ok());
  const std::vector<Result> results = runner.TakeResults();
  EXPECT_EQ(results.size(), 4u);
  for (const Result& result : results) EXPECT_FALSE(result.failed()) << result.error;
}

TEST_F(EvalRunner, RefusedRequestsAreResultsOfTheirOwn) {
  ServeConfig config = StubDaemon::DefaultConfig();
  config.max_prompt_tokens = 8;
  Start(config);
  MakeQuestions(2);
  Runner runner(daemon_->stub(), model_, *log_, Jobs(), {.concurrency = 2});
  ASSERT_TRUE(runner.Wait().ok());
  EXPECT_EQ(runner.progress().failed, 4u);
  const std::vector<Result> results = runner.TakeResults();
  EXPECT_EQ(results.size(), 4u);
  for (const Result& result : results) {
    EXPECT_EQ(result.error_code, "INVALID_ARGUMENT");
    EXPECT_THAT(result.error, HasSubstr("8"));
  }
}

TEST_F(EvalRunner, FullQueuesAreWaitedFor) {
  StartFullWithTwo();
  MakeQuestions(8);
  daemon_->control().decode_delay_us = 5000;
  Runner runner(daemon_->stub(), model_, *log_, Jobs(), {.concurrency = 8});
  ASSERT_TRUE(runner.Wait().ok());
  EXPECT_EQ(runner.progress().done, 16u);
  EXPECT_EQ(runner.progress().failed, 0u);
}

TEST_F(EvalRunner, PatienceWithAFullQueueEnds) {
  StartFullWithTwo();
  MakeQuestions(8);
  daemon_->control().decode_delay_us = 50000;
  Runner runner(daemon_->stub(), model_, *log_, Jobs(),
                {.concurrency = 8, .busy_patience = absl::ZeroDuration()});
  ASSERT_TRUE(runner.Wait().ok());
  EXPECT_GT(runner.progress().failed, 0u);
  const std::vector<Result> results = runner.TakeResults();
  EXPECT_EQ(results.size(), 16u);
  for (const Result& result : results) {
    EXPECT_TRUE(!result.failed() || result.error_code == "RESOURCE_EXHAUSTED") << result.error;
  }
}

TEST_F(EvalRunner, APolicyIsJudgedOnceTheQueueHasRoom) {
  StartFullWithTwo();
  daemon_->control().decode_delay_us = 20000;
  const v1::GenerateRequest request = TextRequest("a", 3000, AtEos::kGoOn);
  LongCall running(*daemon_, request);
  ASSERT_TRUE(running.Read());
  LongCall waiting(*daemon_, request);
  ASSERT_TRUE(PollUntil(kPatience, [&] { return daemon_->Cache().waiting() == 1; }))
      << "waited for one that runs and one that waits";
  const auto was_refused = [&] {
    const std::string metrics = HttpGet(*daemon_, "/metrics").body;
    const char* refusals = "ziggurat_admissions_refused_total{reason=\"queue_full\"} ";
    return absl::StrContains(metrics, refusals) &&
           !absl::StrContains(metrics, absl::StrCat(refusals, "0\n"));
  };
  EXPECT_FALSE(was_refused());
  std::string canonical;
  std::future<grpc::Status> judged = std::async(std::launch::async, [&] {
    return CheckPolicy(daemon_->stub(), "snapkv(budget=64)", {}, canonical);
  });
  EXPECT_TRUE(PollUntil(kPatience, was_refused)) << "waited for a refusal of the policy";
  running.Cancel();
  waiting.Cancel();
  const grpc::Status status = judged.get();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(canonical, HasSubstr("budget=64"));
}

TEST_F(EvalRunner, DeadlinesAreFailures) {
  Start();
  MakeQuestions(1);
  daemon_->control().prefill_layer_delay_us = 300000;
  Runner runner(daemon_->stub(), model_, *log_, Jobs(), {.deadline = absl::Milliseconds(50)});
  ASSERT_TRUE(runner.Wait().ok());
  const std::vector<Result> results = runner.TakeResults();
  EXPECT_EQ(results.size(), 2u);
  for (const Result& result : results) {
    EXPECT_EQ(result.error_code, "DEADLINE_EXCEEDED");
  }
}

TEST_F(EvalRunner, StopKeepsWhatIsDoneAndDropsTheRest) {
  Start();
  MakeQuestions(50);
  daemon_->control().decode_delay_us = 5000;
  Runner runner(daemon_->stub(), model_, *log_, Jobs(), {.concurrency = 3});
  ASSERT_TRUE(PollUntil(kPatience, [&] { return runner.progress().done >= 5; }))
      << "waited for 5 questions, and " << runner.progress().done << " are done";
  runner.Stop();
  const absl::Time stopped = absl::Now();
  EXPECT_TRUE(absl::IsCancelled(runner.Wait()));
  EXPECT_LT(absl::Now() - stopped, absl::Seconds(5));
  EXPECT_TRUE(runner.finished());
  const std::vector<Result> results = runner.TakeResults();
  EXPECT_GE(results.size(), 5u);
  EXPECT_LT(results.size(), 100u);
  for (const Result& result : results) EXPECT_FALSE(result.failed()) << result.error;
  daemon_->WaitIdle();

  log_.reset();
  const auto log = ResultLog::Open(folder_.path().string());
  ASSERT_TRUE(log.ok()) << log.status();
  EXPECT_EQ((*log)->earlier().size(), results.size());
  const Resumption resumption = Resume((*log)->earlier(), model_, policies_, askings_, false);
  EXPECT_EQ(resumption.settled.size(), results.size());
  EXPECT_EQ(resumption.jobs.size(), 100u - results.size());
}

TEST_F(EvalRunner, EndsWhereTheDaemonIsGone) {
  Start();
  MakeQuestions(50);
  daemon_->control().decode_delay_us = 5000;
  Runner runner(daemon_->stub(), model_, *log_, Jobs(), {.concurrency = 2});
  ASSERT_TRUE(PollUntil(kPatience, [&] { return runner.progress().done >= 3; }))
      << "waited for 3 questions, and " << runner.progress().done << " are done";
  daemon_->daemon().Drain(absl::Seconds(10));
  const absl::Status status = runner.Wait();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_LT(runner.progress().done, 100u);
  EXPECT_EQ(runner.progress().failed, 0u) << "what was not answered is not a result";
}

TEST(EvalProgress, SaysRateTimeLeftAndFailures) {
  RunProgress progress{.done = 30, .total = 120, .done_weight = 100, .total_weight = 300};
  EXPECT_EQ(DescribeProgress(progress, absl::Seconds(10)), "30/120  33 % 3.0/s, 0:20 left");
  progress.failed = 2;
  EXPECT_THAT(DescribeProgress(progress, absl::Seconds(5000)), HasSubstr("2:46:40 left, 2 failed"));
  progress.done = 0;
  progress.done_weight = 0;
  EXPECT_EQ(DescribeProgress(progress, absl::Seconds(10)), "0/120   0 %, 2 failed");
  const RunProgress timed{.done = 30, .total = 0, .done_weight = 75, .total_weight = 100};
  EXPECT_EQ(DescribeProgress(timed, absl::Seconds(15)), "30  75 % 2.0/s, 0:05 left");
  const RunProgress over{.done = 30, .total = 0, .done_weight = 100, .total_weight = 100};
  EXPECT_EQ(DescribeProgress(over, absl::Seconds(15)), "30 100 % 2.0/s, took 0:15");
}

TEST(EvalProgress, FitsItsColumns) {
  const RunProgress progress{.done = 30, .total = 120, .done_weight = 150, .total_weight = 300};
  const std::string wide = DrawProgress(progress, absl::Seconds(10), 80);
  EXPECT_THAT(wide, ::testing::StartsWith("[==="));
  for (const int columns : {0, 10, 40, 50, 80, 200}) {
    EXPECT_LE(DrawProgress(progress, absl::Seconds(10), columns).size(),
              static_cast<size_t>(std::max(columns, 1)));
  }
}

}  // namespace
}  // namespace ziggurat::eval

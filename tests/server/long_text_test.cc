// Texts that take long to tokenize, and prompts of which policies see both ends alone.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compression/policy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/generate_request.h"
#include "server/text_thread.h"
#include "tests/server/stub_daemon.h"
#include "tests/support/poll.h"

namespace ziggurat {
namespace {

using ::testing::HasSubstr;

const std::vector<int32_t> kPrompt = {10, 20, 30, 40, 50};

constexpr size_t kLongTextBytes = 500'000;  // about as many as the stub takes

std::string Letters(size_t bytes) {
  std::string text;
  for (size_t i = 0; text.size() < bytes; ++i) text += static_cast<char>('a' + i * i % 23);
  return text;
}

/// Too long for the thread of a call, and short enough for the model.
std::string LongPrompt() {
  std::string text;
  while (text.size() <= TextThread::kShortBytes) text += " passkeys";
  return text;
}

ServeConfig ConfigForLongPrompts() {
  ServeConfig config = StubDaemon::DefaultConfig();
  config.kv_cache_bytes = size_t{64} << 20;
  return config;
}

bool Shows(StubDaemon& daemon, const std::string& series) {
  const HttpAnswer page = HttpGet(daemon, "/metrics");
  return page.body.find("\n" + series + "\n") != std::string::npos;
}

/// A daemon that is busy with long texts, at least one after the other, until the test ends.
class LongTextTest : public ::testing::Test {
 protected:
  static constexpr int kClients = 4;

  explicit LongTextTest(const ServeConfig& config = ConfigForLongPrompts()) : daemon_(config) {}

  void SetUp() override {
    if (kGrpcIsSlow) GTEST_SKIP() << "in this build gRPC takes longer than tokenizing";
    for (int i = 0; i < kClients; ++i) {
      clients_.emplace_back([this] {
        v1::TokenizeRequest request;
        request.set_text(Letters(kLongTextBytes));
        while (!is_ending_) {
          grpc::ClientContext context;
          v1::TokenizeResponse response;
          const grpc::Status status = daemon_.stub().Tokenize(&context, request, &response);
          EXPECT_TRUE(status.ok()) << status.error_message();
          EXPECT_GT(response.token_ids_size(), 0);
          ++texts_done_;
        }
      });
    }
    // From then on there is always one in work, and mostly three wait.
    WaitForTexts(kClients);
  }

  ~LongTextTest() override {
    is_ending_ = true;
    for (std::thread& client : clients_) client.join();
  }

  void WaitForTexts(int count) {
    const int before = texts_done_;
    EXPECT_TRUE(PollUntil(kPatience, [&] { return texts_done_ >= before + count; }))
        << "waited for " << count << " texts, and " << texts_done_ - before << " were done";
  }

  StubDaemon daemon_;
  std::atomic<bool> is_ending_ = false;
  std::atomic<int> texts_done_ = 0;
  std::vector<std::thread> clients_;
};

TEST_F(LongTextTest, OthersAreAnsweredMeanwhile) {
  // Behind the texts, each of three calls would see some of them done. A machine that is busy with
  // more than this may stop the client in one try, not in all.
  int fewest_texts = std::numeric_limits<int>::max();
  for (int i = 0; i < 10 && fewest_texts > 1; ++i) {
    const int before = texts_done_;
    grpc::ClientContext context;
    v1::GetModelResponse model;
    const grpc::Status status = daemon_.stub().GetModel(&context, {}, &model);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_TRUE(daemon_.Generate(IdRequest(kPrompt, 3)).status.ok());
    EXPECT_TRUE(daemon_.Generate(TextRequest("a few words", 3)).status.ok());
    fewest_texts = std::min(fewest_texts, texts_done_ - before);
  }
  EXPECT_LE(fewest_texts, 1);
}

TEST_F(LongTextTest, ACallThatIsCancelledWhileItWaitsEnds) {
  grpc::ClientContext context;
  std::atomic<bool> has_ended = false;
  std::thread client([&] {
    while (!has_ended && !Shows(daemon_, "ziggurat_requests_waiting 1")) {
    }
    context.TryCancel();
  });
  EXPECT_EQ(daemon_.Generate(TextRequest(LongPrompt(), 3), &context).status.error_code(),
            grpc::StatusCode::CANCELLED);
  has_ended = true;
  client.join();
  // Its turn comes, and the engine never hears of it.
  WaitForTexts(kClients + 1);
  EXPECT_EQ(daemon_.control().prefill_layers, 0);
  EXPECT_TRUE(Shows(daemon_, "ziggurat_requests_finished_total{reason=\"cancelled\"} 1"));
  EXPECT_TRUE(Shows(daemon_, "ziggurat_queue_seconds_count 1"));
}

TEST_F(LongTextTest, ADeadlineThatPassesBeforeItsTurnCounts) {
  // On a busy machine one may not come to the daemon before its deadline.
  for (int tries = 0; tries < 20; ++tries) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(20));
    EXPECT_EQ(daemon_.Generate(TextRequest(LongPrompt(), 3), &context).status.error_code(),
              grpc::StatusCode::DEADLINE_EXCEEDED);
    WaitForTexts(kClients + 1);
    EXPECT_EQ(daemon_.control().prefill_layers, 0);
    if (Shows(daemon_, "ziggurat_requests_finished_total{reason=\"deadline\"} 1")) return;
  }
  ADD_FAILURE() << "none was counted";
}

TEST_F(LongTextTest, TheWaitIsSeenAndTimed) {
  const auto begun = std::chrono::steady_clock::now();
  std::future<Generation> answer = std::async(
      std::launch::async, [this] { return daemon_.Generate(TextRequest(LongPrompt(), 3)); });
  bool was_seen = false;
  while (answer.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    was_seen = was_seen || Shows(daemon_, "ziggurat_requests_waiting 1");
  }
  const Generation got = answer.get();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  ASSERT_TRUE(got.ok()) << got.Describe();
  EXPECT_TRUE(was_seen);
  EXPECT_GT(got.result->timings().queue_seconds(), took.count() / 2);
  EXPECT_GT(got.result->timings().first_token_seconds(), took.count() / 2);
  EXPECT_TRUE(Shows(daemon_, "ziggurat_requests_waiting 0"));
}

TEST_F(LongTextTest, WhatIsTooLongForAnyPromptDoesNotWait) {
  const v1::GenerateRequest request = TextRequest(Letters(4 * kLongTextBytes), 3);
  int fewest_texts = std::numeric_limits<int>::max();
  for (int i = 0; i < 10 && fewest_texts > 1; ++i) {
    const int before = texts_done_;
    const grpc::Status status = daemon_.Generate(request).status;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("the request has 20000"));
    EXPECT_THAT(status.error_message(),
                HasSubstr(" bytes: at most 589696 are allowed, 128 for each of 4095 tokens"));
    fewest_texts = std::min(fewest_texts, texts_done_ - before);
  }
  EXPECT_LE(fewest_texts, 1);
}

class FullLongTextTest : public LongTextTest {
 protected:
  FullLongTextTest() : LongTextTest(Config()) {}
  static ServeConfig Config() {
    ServeConfig config = ConfigForLongPrompts();
    config.max_running = 1;
    config.max_queue = 1;
    config.max_streams = 64;
    return config;
  }
};

TEST_F(FullLongTextTest, TextsThatWaitAreTheQueue) {
  int refused = 0;
  int fewest_texts = std::numeric_limits<int>::max();  // done while one waited for its refusal
  for (int tries = 0; tries < 10 && fewest_texts > 1; ++tries) {
    std::vector<std::future<std::pair<grpc::Status, int>>> answers;
    for (int i = 0; i < 6; ++i) {
      answers.push_back(std::async(std::launch::async, [this] {
        const int before = texts_done_;
        const grpc::Status status = daemon_.Generate(TextRequest(LongPrompt(), 3)).status;
        return std::pair(status, texts_done_ - before);
      }));
    }
    int answered = 0;
    for (auto& answer : answers) {
      const auto [status, texts] = answer.get();
      if (status.ok()) {
        ++answered;
        continue;
      }
      EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
      EXPECT_THAT(status.error_message(), HasSubstr("the queue is full"));
      ++refused;
      fewest_texts = std::min(fewest_texts, texts);
    }
    EXPECT_GE(answered, 1);
  }
  EXPECT_LE(fewest_texts, 1) << "refused only when their turn came";
  EXPECT_TRUE(Shows(
      daemon_, absl::StrCat("ziggurat_admissions_refused_total{reason=\"queue_full\"} ", refused)));
  EXPECT_TRUE(Shows(daemon_, "ziggurat_requests_waiting 0"));
}

TEST(TextThreadTest, RunsWhatWaitsBeforeItEnds) {
  std::atomic<int> done = 0;
  {
    TextThread thread;
    for (int i = 0; i < 3; ++i) {
      thread.Run(TextThread::kShortBytes + 1, [&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        ++done;
      });
    }
  }
  EXPECT_EQ(done, 3);
}

class ImpatientLongTextTest : public LongTextTest {
 protected:
  ImpatientLongTextTest() : LongTextTest(Config()) {}
  static ServeConfig Config() {
    ServeConfig config = ConfigForLongPrompts();
    config.max_queue_time = absl::Milliseconds(5);
    return config;
  }
};

TEST_F(ImpatientLongTextTest, TheWaitIsPartOfTheQueueTime) {
  const Generation got = daemon_.Generate(TextRequest(LongPrompt(), 3));
  EXPECT_EQ(got.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(daemon_.control().prefill_layers, 0);
  EXPECT_TRUE(Shows(daemon_, "ziggurat_requests_finished_total{reason=\"queue_time\"} 1"));
  EXPECT_TRUE(Shows(daemon_, "ziggurat_admissions_refused_total{reason=\"queue_time\"} 1"));
}

constexpr int kAtOnce = 12;

/// What `call` answers to as many at once.
std::vector<grpc::Status> CallAtOnce(const std::function<grpc::Status()>& call) {
  std::vector<std::future<grpc::Status>> answers(kAtOnce);
  for (auto& answer : answers) answer = std::async(std::launch::async, call);
  std::vector<grpc::Status> statuses;
  statuses.reserve(kAtOnce);
  for (auto& answer : answers) statuses.push_back(answer.get());
  return statuses;
}

TEST(LongTexts, OfMoreBytesThanMayWaitAreRefused) {
  if (kGrpcIsSlow) GTEST_SKIP() << "in this build gRPC takes longer than tokenizing";
  ServeConfig config = StubDaemon::DefaultConfig();
  config.max_message_bytes = static_cast<int>(kLongTextBytes) + 100;
  StubDaemon daemon(config);
  int refused = 0;
  // It may be that they come more slowly than they are tokenized.
  for (int tries = 0; tries < 10 && refused == 0; ++tries) {
    const std::vector<grpc::Status> answers = CallAtOnce([&daemon] {
      grpc::ClientContext context;
      v1::TokenizeRequest request;
      request.set_text(Letters(kLongTextBytes));
      v1::TokenizeResponse response;
      return daemon.stub().Tokenize(&context, request, &response);
    });
    int answered = 0;
    for (const grpc::Status& status : answers) {
      answered += status.ok() ? 1 : 0;
      refused += status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED ? 1 : 0;
    }
    EXPECT_GE(answered, 4);
    EXPECT_EQ(answered + refused, kAtOnce);
  }
  EXPECT_GE(refused, 1);
}

TEST(LongTexts, OfPromptsOfMoreBytesThanMayWaitAreRefusedByTheQueue) {
  if (kGrpcIsSlow) GTEST_SKIP() << "in this build gRPC takes longer than tokenizing";
  ServeConfig config = StubDaemon::DefaultConfig();
  constexpr size_t kBytes = kLongTextBytes;
  config.max_message_bytes = static_cast<int>(kBytes) + 100;
  StubDaemon daemon(config);
  int refused = 0;
  for (int tries = 0; tries < 10 && refused == 0; ++tries) {
    const std::vector<grpc::Status> answers =
        CallAtOnce([&daemon] { return daemon.Generate(TextRequest(Letters(kBytes), 3)).status; });
    for (const grpc::Status& status : answers) {
      if (status.error_code() == grpc::StatusCode::INVALID_ARGUMENT) continue;  // too many tokens
      EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
      EXPECT_THAT(status.error_message(), HasSubstr("too many texts wait to become tokens"));
      ++refused;
    }
  }
  EXPECT_GE(refused, 1);
  EXPECT_LE(refused, 8);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(daemon.Generate(TextRequest(Letters(kBytes), 3)).status.error_code(),
              grpc::StatusCode::INVALID_ARGUMENT)
        << "nothing waits any more";
  }
  EXPECT_TRUE(Shows(
      daemon, absl::StrCat("ziggurat_admissions_refused_total{reason=\"queue_full\"} ", refused)));
}

TEST(LongTexts, ThatNobodyWaitsForAnyMoreAreNotTokenized) {
  if (kGrpcIsSlow) GTEST_SKIP() << "in this build gRPC takes longer than tokenizing";
  StubDaemon daemon;
  v1::TokenizeRequest request;
  request.set_text(Letters(kLongTextBytes));
  const auto tokenize = [&](grpc::ClientContext& context) {
    v1::TokenizeResponse response;
    return daemon.stub().Tokenize(&context, request, &response).error_code();
  };
  const auto seconds_of_one = [&] {
    const auto begun = std::chrono::steady_clock::now();
    grpc::ClientContext context;
    EXPECT_EQ(tokenize(context), grpc::StatusCode::OK);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  };
  const double alone = seconds_of_one();
  constexpr int kGone = 20;
  grpc::ClientContext contexts[kGone];
  std::vector<std::thread> clients;
  for (grpc::ClientContext& context : contexts) {
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::microseconds(static_cast<int64_t>(2e6 * alone)));
    clients.emplace_back([&] { tokenize(context); });
  }
  for (std::thread& client : clients) client.join();
  const double behind_them = seconds_of_one();
  // Others may have taken the machine meanwhile.
  EXPECT_LT(behind_them, kGone / 2 * std::max({alone, seconds_of_one(), seconds_of_one()}));
}

TEST(LongPromptTest, IsServed) {
  StubDaemon daemon(ConfigForLongPrompts());
  const std::string text = LongPrompt();
  const Generation got = daemon.Generate(TextRequest(text, 3));
  ASSERT_TRUE(got.ok()) << got.Describe();
  EXPECT_EQ(got.result->usage().prompt_tokens(), BundledTokenizer()->Encode(text)->size());
}

TEST(LongPromptTest, PoliciesSeeAsMuchOfTokenIdsAsOfText) {
  const std::string nothing(600, ' ');
  const std::string text =
      nothing + "Read this passage and answer the question with the exact phrase from it.\n" +
      std::string(4000, ' ') +
      "\nQuestion: In which year was the bridge opened?\nAnswer:" + nothing;
  ServedModel model;
  model.tokenizer = BundledTokenizer();
  RequestRules rules;
  rules.vocab_size = 1024;
  rules.max_context_tokens = 8192;
  rules.max_prompt_tokens = 8191;
  rules.default_policy = *ParsePolicy("windowkv(budget=64)");
  const auto policy_of = [&](const v1::GenerateRequest& request) {
    const auto parsed = ParseGenerateRequest(request, model, rules);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    return parsed.ok() ? parsed->engine.policy->ToString() : "";
  };
  // A token for each letter: as many as there can be.
  std::vector<int32_t> ids;
  for (const char letter : text) {
    const auto of_letter =
        BundledTokenizer()->Encode(std::string(1, letter), {.add_special_tokens = false});
    ids.insert(ids.end(), of_letter->begin(), of_letter->end());
  }
  EXPECT_EQ(policy_of(IdRequest(ids, 3)), policy_of(TextRequest(text, 3)));
  EXPECT_NE(policy_of(TextRequest(text, 3)),
            policy_of(TextRequest(std::string(text.size(), ' '), 3)));
}

}  // namespace
}  // namespace ziggurat

// Generate over a real port: streaming, stop strings, logprobs, cancellation, deadlines, limits.
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/stub_daemon.h"
#include "tests/support/poll.h"

namespace ziggurat {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

const std::vector<int32_t> kPrompt = {10, 20, 30, 40, 50};

std::vector<int32_t> PlainIds(const std::string& text) {
  return *BundledTokenizer()->Encode(text, {.add_special_tokens = false});
}

TEST(GenerateTest, StreamsTheTokensOfTheModelThenOneResult) {
  StubDaemon daemon;
  const Generation got = daemon.Generate(IdRequest(kPrompt, 40));
  ASSERT_TRUE(got.ok()) << got.Describe();
  const std::vector<int32_t> want = StubGreedyTokens(daemon.model(), kPrompt, 40);
  EXPECT_THAT(got.token_ids, ElementsAreArray(want));
  EXPECT_EQ(got.text, *BundledTokenizer()->Decode(want));
  ASSERT_TRUE(got.result.has_value());
  EXPECT_EQ(got.result->finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(got.result->usage().prompt_tokens(), 5);
  EXPECT_EQ(got.result->usage().completion_tokens(), 40);
  EXPECT_GT(got.result->timings().total_seconds(), 0);
  EXPECT_GE(got.result->timings().total_seconds(), got.result->timings().first_token_seconds());
  EXPECT_THAT(got.result->request_id(), HasSubstr("req-"));
}

TEST(GenerateTest, SendsTokensAsTheyComeAndNotAllAtTheEnd) {
  StubDaemon daemon;
  daemon.control().decode_delay_us = 50'000;
  EXPECT_GE(daemon.Generate(IdRequest(kPrompt, 8)).chunks, 4);
}

TEST(GenerateTest, ReportsItsTimesInSeconds) {
  StubDaemon daemon;
  daemon.control().decode_delay_us = 50'000;
  const absl::Time begun = absl::Now();
  const v1::Timings timings = daemon.Generate(IdRequest(kPrompt, 5)).result.value().timings();
  EXPECT_GE(timings.total_seconds(), 0.2);
  EXPECT_LE(timings.total_seconds(), absl::ToDoubleSeconds(absl::Now() - begun));
  EXPECT_LE(timings.queue_seconds(), timings.first_token_seconds());
  EXPECT_LE(timings.first_token_seconds(), timings.total_seconds() - 0.2);
}

TEST(GenerateTest, ReportsTheCacheLayerByLayer) {
  StubDaemon daemon;
  v1::GenerateRequest request = IdRequest(std::vector<int32_t>(200, 7), 21);
  request.set_compression("snapkv(budget=64,window=16)");
  const Generation got = daemon.Generate(request);
  ASSERT_TRUE(got.ok()) << got.Describe();
  const v1::CacheReport& cache = got.result->cache();
  ASSERT_EQ(cache.layers_size(), daemon.model().shape.num_layers);
  uint64_t blocks = 0;
  for (int i = 0; i < cache.layers_size(); ++i) {
    const v1::LayerCacheReport& layer = cache.layers(i);
    EXPECT_EQ(layer.layer(), static_cast<uint32_t>(i));
    EXPECT_EQ(layer.budget_tokens(), 64u);
    EXPECT_EQ(layer.tokens(), 64u + 20u);  // the last token drawn is never written
    EXPECT_EQ(layer.blocks(), 6u);         // ceil(84 / 16)
    EXPECT_EQ(layer.bytes(), 6u * cache.block_bytes());
    EXPECT_EQ(layer.format(), "bf16");
    blocks += layer.blocks();
  }
  EXPECT_EQ(cache.blocks(), blocks);
  EXPECT_EQ(cache.full_blocks(), 4u * 14u);  // ceil(220 / 16) of 4 layers
  EXPECT_NEAR(cache.compression_ratio(), 14.0 / 6.0, 1e-9);
  EXPECT_THAT(cache.compression(), HasSubstr("snapkv(budget=64"));
}

TEST(GenerateTest, TokenizesTextAndEchoesItsIds) {
  StubDaemon daemon;
  v1::GenerateRequest request = TextRequest(" The secret is", 3);
  request.set_echo_prompt_token_ids(true);
  const Generation got = daemon.Generate(request);
  ASSERT_TRUE(got.ok()) << got.Describe();
  EXPECT_THAT(got.prompt_token_ids,
              ElementsAreArray(*BundledTokenizer()->Encode(" The secret is")));
  EXPECT_EQ(got.result->usage().prompt_tokens(), static_cast<int>(got.prompt_token_ids.size()));
}

TEST(GenerateTest, EndsAtAStopStringSpreadOverTokensAndLeaksNoneOfIt) {
  const std::vector<int32_t> answer = PlainIds(" one two STOP three four five six seven");
  StubDaemon daemon(StubDaemon::DefaultConfig(),
                    ScriptedModel(answer, static_cast<int>(kPrompt.size())));
  v1::GenerateRequest request = IdRequest(kPrompt, static_cast<int>(answer.size()));
  request.add_stop("never");
  request.add_stop("STOP");
  const Generation got = daemon.Generate(request);
  ASSERT_TRUE(got.ok()) << got.Describe();
  EXPECT_EQ(got.text, " one two ");
  EXPECT_EQ(got.result->finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(got.result->stop_string(), "STOP");
  // Usage counts the token that completed the stop string, and nothing behind it.
  EXPECT_EQ(got.result->usage().completion_tokens(), static_cast<int>(got.token_ids.size()));
  const std::string told = *BundledTokenizer()->Decode(got.token_ids);
  EXPECT_THAT(told, HasSubstr("STOP"));
  EXPECT_THAT(told, ::testing::Not(HasSubstr("three")));
  daemon.WaitIdle();
  EXPECT_EQ(daemon.Cache().used_blocks(), 0u);
  EXPECT_THAT(HttpGet(daemon, "/metrics").body,
              HasSubstr(absl::StrCat("\nziggurat_request_generated_tokens_sum ",
                                     got.token_ids.size(), "\n")));
}

TEST(GenerateTest, ComputesNoMoreBehindAStopString) {
  StubDaemon daemon(StubDaemon::DefaultConfig(),
                    ScriptedModel(PlainIds(" STOP"), static_cast<int>(kPrompt.size())));
  daemon.control().decode_delay_us = 5000;
  v1::GenerateRequest request = IdRequest(kPrompt, 3000);
  request.add_stop("STOP");
  EXPECT_EQ(daemon.Generate(request).result.value().finish_reason(), v1::FINISH_REASON_STOP);
  daemon.WaitIdle();
  EXPECT_LT(daemon.control().decode_steps, 300);
}

TEST(GenerateTest, SendsAtItsEndWhatMightHaveBegunAStopString) {
  const int32_t kEos = 1;
  std::vector<int32_t> answer = PlainIds(" one STOP");
  answer.push_back(kEos);
  StubDaemon daemon(StubDaemon::DefaultConfig(),
                    ScriptedModel(answer, static_cast<int>(kPrompt.size())), {kEos});
  v1::GenerateRequest request = IdRequest(kPrompt, 100);
  request.add_stop("STOPPED");
  const Generation got = daemon.Generate(request);
  ASSERT_TRUE(got.ok()) << got.Describe();
  EXPECT_EQ(got.text, " one STOP");
  EXPECT_EQ(got.result->stop_token_id(), kEos);
}

TEST(GenerateTest, LooksForNoStopStringWithinTheLeastNumberOfTokens) {
  const std::vector<int32_t> answer = PlainIds(" STOP one two three four five STOP six");
  StubDaemon daemon(StubDaemon::DefaultConfig(),
                    ScriptedModel(answer, static_cast<int>(kPrompt.size())));
  v1::GenerateRequest request = IdRequest(kPrompt, static_cast<int>(answer.size()));
  request.add_stop("STOP");
  request.set_min_tokens(static_cast<int>(PlainIds(" STOP one").size()));
  EXPECT_EQ(daemon.Generate(request).text, " STOP one two three four five ");
}

TEST(GenerateTest, EndsAtTheModelsStopTokenUnlessToldToIgnoreIt) {
  const int32_t kEos = 1;
  const std::vector<int32_t> answer = {600, 601, kEos, 602, 603, 604};
  StubDaemon daemon(StubDaemon::DefaultConfig(), ScriptedModel(answer, 5), {kEos});
  v1::GenerateRequest request = IdRequest(kPrompt, 6);
  const Generation stopped = daemon.Generate(request);
  ASSERT_TRUE(stopped.ok()) << stopped.Describe();
  EXPECT_THAT(stopped.token_ids, ElementsAreArray({600, 601}));
  EXPECT_EQ(stopped.result->finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(stopped.result->stop_token_id(), kEos);
  EXPECT_EQ(stopped.result->usage().completion_tokens(), 2);
  request.set_ignore_eos(true);
  EXPECT_THAT(daemon.Generate(request).token_ids, ElementsAreArray(answer));
  request.add_stop_token_ids(602);
  EXPECT_THAT(daemon.Generate(request).token_ids, ElementsAreArray({600, 601, kEos}));
  request.add_stop_token_ids(600);
  request.set_echo_prompt_token_ids(true);
  const Generation nothing = daemon.Generate(request);
  EXPECT_TRUE(nothing.token_ids.empty());
  EXPECT_THAT(nothing.prompt_token_ids, ElementsAreArray(kPrompt));
}

TEST(GenerateTest, SpecialTokensAreWhatTheRequestSays) {
  const int32_t kEos = 1;
  StubDaemon daemon(StubDaemon::DefaultConfig(), ScriptedModel({kEos}, 1));
  v1::GenerateRequest request = TextRequest("<|eos|>", 1);
  const Generation special = daemon.Generate(request);
  ASSERT_TRUE(special.ok()) << special.Describe();
  EXPECT_EQ(special.text, "");
  request.set_include_special_tokens(true);
  EXPECT_EQ(daemon.Generate(request).text, "<|eos|>");
  request.set_plain_text(true);
  EXPECT_GT(daemon.Generate(request).result.value().usage().prompt_tokens(),
            special.result->usage().prompt_tokens());
}

TEST(GenerateTest, EndsTheCharacterThatThePromptHasBegun) {
  const std::vector<int32_t> rocket = PlainIds("🚀");
  ASSERT_GT(rocket.size(), 1u) << "nothing is proven";
  StubDaemon daemon(StubDaemon::DefaultConfig(),
                    ScriptedModel({rocket.begin() + 1, rocket.end()}, 1));
  EXPECT_EQ(daemon.Generate(IdRequest({rocket[0]}, static_cast<int>(rocket.size()) - 1)).text, "🚀");
}

TEST(GenerateTest, GivesLogprobsOfEveryTokenWhereAsked) {
  StubDaemon daemon;
  v1::GenerateRequest request = IdRequest(kPrompt, 6);
  EXPECT_TRUE(daemon.Generate(request).logprobs.empty());
  request.set_logprobs(3);
  const Generation got = daemon.Generate(request);
  ASSERT_EQ(got.logprobs.size(), 6u);
  for (size_t i = 0; i < got.logprobs.size(); ++i) {
    EXPECT_EQ(got.logprobs[i].token_id(), got.token_ids[i]);
    ASSERT_EQ(got.logprobs[i].top_size(), 3);
    EXPECT_EQ(got.logprobs[i].top(0).token_id(), got.token_ids[i]);  // greedy
    EXPECT_FLOAT_EQ(got.logprobs[i].top(0).logprob(), got.logprobs[i].logprob());
    EXPECT_LT(got.logprobs[i].logprob(), 0);
  }
}

TEST(GenerateTest, GivesTheSameTextForTheSameSeed) {
  StubDaemon daemon;
  v1::GenerateRequest request = IdRequest(kPrompt, 30);
  request.mutable_sampling()->set_temperature(2.0);
  request.mutable_sampling()->set_seed(1);
  const Generation first = daemon.Generate(request);
  EXPECT_EQ(daemon.Generate(request).token_ids, first.token_ids);
  request.mutable_sampling()->set_seed(2);
  EXPECT_NE(daemon.Generate(request).token_ids, first.token_ids);
}

TEST(GenerateTest, GeneratesTheDefaultOrWhatTheContextHasLeft) {
  ServeConfig config = StubDaemon::DefaultConfig();
  config.default_max_tokens = 12;
  StubModelOptions model = StubDaemon::DefaultModel();
  model.shape.max_context_tokens = 64;
  StubDaemon daemon(config, model);
  v1::GenerateRequest request = IdRequest(kPrompt, 1);
  request.clear_max_tokens();
  EXPECT_EQ(daemon.Generate(request).token_ids.size(), 12u);
  request = IdRequest(std::vector<int32_t>(60, 5), 1);
  request.clear_max_tokens();
  EXPECT_EQ(daemon.Generate(request).token_ids.size(), 4u);
}

TEST(GenerateTest, FreesTheBlocksOfACancelledRequestWithinAStep) {
  StubDaemon daemon;
  daemon.control().decode_delay_us = 300'000;
  grpc::ClientContext context;
  const auto stream = daemon.stub().Generate(&context, IdRequest(kPrompt, 2000));
  v1::GenerateResponse response;
  ASSERT_TRUE(stream->Read(&response));
  const int64_t steps = daemon.control().decode_steps;
  context.TryCancel();
  daemon.WaitIdle();
  // The step under way when the cancellation arrives, and at most one that had begun before.
  EXPECT_LE(daemon.control().decode_steps - steps, 2);
  while (stream->Read(&response)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(daemon.Cache().used_blocks(), 0u);
  EXPECT_EQ(daemon.Cache().reserved_blocks(), 0u);
}

TEST(GenerateTest, CancelsARequestThatStillWaits) {
  ServeConfig config = StubDaemon::DefaultConfig();
  config.max_running = 1;
  StubDaemon daemon(config);
  daemon.control().decode_delay_us = 10'000;
  LongCall running(daemon, IdRequest(kPrompt, 2000));
  ASSERT_TRUE(running.Read());
  grpc::ClientContext waiting_context;
  const auto waiting = daemon.stub().Generate(&waiting_context, IdRequest(kPrompt, 10));
  ASSERT_TRUE(PollUntil(kPatience, [&] { return daemon.Cache().waiting() > 0; }))
      << "waited for the second request to wait";
  waiting_context.TryCancel();
  v1::GenerateResponse response;
  EXPECT_FALSE(waiting->Read(&response));
  EXPECT_EQ(waiting->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(PollUntil(kPatience, [&] { return daemon.Cache().waiting() == 0; }))
      << "waited for the second request to be gone";
  EXPECT_EQ(daemon.Cache().running(), 1u);
  running.Cancel();
  daemon.WaitIdle();
}

TEST(GenerateTest, EndsAtTheDeadlineOfTheCallAndFreesItsBlocks) {
  StubDaemon daemon;
  daemon.control().decode_delay_us = 20'000;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
  const Generation got = daemon.Generate(IdRequest(kPrompt, 2000), &context);
  EXPECT_EQ(got.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_FALSE(got.result.has_value());
  daemon.WaitIdle();
  EXPECT_EQ(daemon.Cache().used_blocks(), 0u);
}

TEST(GenerateTest, KeepsAWholeAnswerForAClientThatReadsLate) {
  StubDaemon daemon;
  grpc::ClientContext context;
  const auto stream = daemon.stub().Generate(&context, IdRequest(kPrompt, 1500));
  daemon.WaitIdle();
  std::vector<int32_t> token_ids;
  v1::GenerateResponse response;
  int results = 0;
  while (stream->Read(&response)) {
    token_ids.insert(token_ids.end(), response.chunk().token_ids().begin(),
                     response.chunk().token_ids().end());
    results += response.has_result();
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(results, 1);
  EXPECT_THAT(token_ids, ElementsAreArray(StubGreedyTokens(daemon.model(), kPrompt, 1500)));
}

TEST(GenerateTest, ServesSixtyFourStreamsOfUnlikePoliciesAtOnce) {
  ServeConfig config = StubDaemon::DefaultConfig();
  config.kv_cache_bytes = size_t{16} << 20;
  StubDaemon daemon(config);
  const char* const policies[] = {"", "streaming(sinks=4,recent=60)", "snapkv(budget=64,window=16)",
                                  "pyramidkv(budget=48)"};
  std::vector<std::thread> clients;
  std::vector<Generation> got(64);
  const auto prompt_of = [](int i) {
    std::vector<int32_t> prompt;
    for (int t = 0; t < 50 + 7 * i; ++t) prompt.push_back((t * 31 + i) % 1000);
    return prompt;
  };
  for (int i = 0; i < 64; ++i) {
    clients.emplace_back([&, i] {
      v1::GenerateRequest request = IdRequest(prompt_of(i), 20 + i % 13);
      request.set_compression(policies[i % 4]);
      got[i] = daemon.Generate(request);
    });
  }
  for (std::thread& client : clients) client.join();
  for (int i = 0; i < 64; ++i) {
    ASSERT_TRUE(got[i].status.ok()) << i << ": " << got[i].status.error_message();
    EXPECT_THAT(got[i].token_ids,
                ElementsAreArray(StubGreedyTokens(daemon.model(), prompt_of(i), 20 + i % 13)))
        << i;
  }
  EXPECT_GT(daemon.control().largest_batch, 1);
  daemon.WaitIdle();
  EXPECT_EQ(daemon.Cache().used_blocks(), 0u);
}

TEST(GenerateTest, AnswersAFailureOfTheModelAsInternalAndServesOn) {
  StubDaemon daemon;
  daemon.control().fail_decode = true;
  const Generation failed = daemon.Generate(IdRequest(kPrompt, 10));
  EXPECT_EQ(failed.status.error_code(), grpc::StatusCode::INTERNAL);
  daemon.control().fail_decode = false;
  EXPECT_TRUE(daemon.Generate(IdRequest(kPrompt, 10)).status.ok());
}

}  // namespace
}  // namespace ziggurat

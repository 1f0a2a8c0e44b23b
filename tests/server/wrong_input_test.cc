// What a client may get wrong, and the status and words that it gets back.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/stub_daemon.h"
#include "tests/support/poll.h"
#include "tests/support/raw_calls.h"

namespace ziggurat {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Pair;

const std::vector<int32_t> kPrompt = {10, 20, 30, 40, 50};

struct WrongCase {
  const char* name;
  void (*spoil)(v1::GenerateRequest&);
  grpc::StatusCode code;
  std::vector<std::string> words;  // all of them stand in the message
};

void PrintTo(const WrongCase& wrong, std::ostream* out) { *out << wrong.name; }

class WrongInputTest : public ::testing::TestWithParam<WrongCase> {
 protected:
  // One daemon for all: a bad request must leave it serving.
  static void SetUpTestSuite() {
    ServeConfig config = StubDaemon::DefaultConfig();
    config.max_prompt_tokens = 100;
    config.allow_compression = {"full", "snapkv"};
    daemon_ = new StubDaemon(config);
  }
  static void TearDownTestSuite() {
    delete daemon_;
    daemon_ = nullptr;
  }
  static StubDaemon* daemon_;
};
StubDaemon* WrongInputTest::daemon_ = nullptr;

TEST_P(WrongInputTest, IsRefusedByNameAndTheDaemonServesOn) {
  v1::GenerateRequest request = IdRequest(kPrompt, 5);
  GetParam().spoil(request);
  const Generation got = daemon_->Generate(request);
  EXPECT_EQ(got.status.error_code(), GetParam().code) << got.status.error_message();
  for (const std::string& word : GetParam().words) {
    EXPECT_THAT(got.status.error_message(), HasSubstr(word));
  }
  EXPECT_EQ(got.chunks, 0);
  EXPECT_TRUE(daemon_->Generate(IdRequest(kPrompt, 5)).status.ok());
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
using Request = v1::GenerateRequest;

INSTANTIATE_TEST_SUITE_P(
    Parameters, WrongInputTest,
    ::testing::Values(
        WrongCase{"no_input", [](Request& r) { r.clear_input(); }, kInvalid, {"text", "token_ids"}},
        WrongCase{"empty_ids",
                  [](Request& r) { r.mutable_token_ids()->clear_ids(); },
                  kInvalid,
                  {"token_ids", "empty"}},
        WrongCase{"id_above_vocabulary",
                  [](Request& r) { r.mutable_token_ids()->add_ids(1024); },
                  kInvalid,
                  {"token_ids", "1024", "1023"}},
        WrongCase{"negative_id",
                  [](Request& r) { r.mutable_token_ids()->add_ids(-1); },
                  kInvalid,
                  {"token_ids", "-1"}},
        WrongCase{"long_prompt",
                  [](Request& r) {
                    for (int i = 0; i < 96; ++i) r.mutable_token_ids()->add_ids(1);
                  },
                  kInvalid,
                  {"token_ids", "101", "100"}},
        WrongCase{"long_text",
                  [](Request& r) { r.set_text(std::string(12801, 'a')); },
                  kInvalid,
                  {"text", "12801 bytes", "12800", "128", "100 tokens"}},
        WrongCase{"zero_max_tokens",
                  [](Request& r) { r.set_max_tokens(0); },
                  kInvalid,
                  {"max_tokens", "0"}},
        WrongCase{"negative_max_tokens",
                  [](Request& r) { r.set_max_tokens(-3); },
                  kInvalid,
                  {"max_tokens", "-3"}},
        WrongCase{"max_tokens_past_the_context",
                  [](Request& r) { r.set_max_tokens(4092); },
                  kInvalid,
                  {"max_tokens", "4092", "4091", "4096"}},
        WrongCase{"min_tokens_above_max",
                  [](Request& r) { r.set_min_tokens(6); },
                  kInvalid,
                  {"min_tokens", "6", "5"}},
        WrongCase{"negative_min_tokens",
                  [](Request& r) { r.set_min_tokens(-1); },
                  kInvalid,
                  {"min_tokens", "-1"}},
        WrongCase{"negative_temperature",
                  [](Request& r) { r.mutable_sampling()->set_temperature(-0.5f); },
                  kInvalid,
                  {"temperature", "-0.5"}},
        WrongCase{"nan_temperature",
                  [](Request& r) { r.mutable_sampling()->set_temperature(kNan); },
                  kInvalid,
                  {"temperature", "nan"}},
        WrongCase{"infinite_temperature",
                  [](Request& r) { r.mutable_sampling()->set_temperature(INFINITY); },
                  kInvalid,
                  {"temperature", "inf"}},
        WrongCase{"zero_top_p",
                  [](Request& r) { r.mutable_sampling()->set_top_p(0); },
                  kInvalid,
                  {"top_p", "0"}},
        WrongCase{"negative_top_k",
                  [](Request& r) { r.mutable_sampling()->set_top_k(-2); },
                  kInvalid,
                  {"top_k", "-2"}},
        WrongCase{"nan_min_p",
                  [](Request& r) { r.mutable_sampling()->set_min_p(kNan); },
                  kInvalid,
                  {"min_p"}},
        WrongCase{"zero_repetition_penalty",
                  [](Request& r) { r.mutable_sampling()->set_repetition_penalty(0); },
                  kInvalid,
                  {"repetition_penalty"}},
        WrongCase{"large_presence_penalty",
                  [](Request& r) { r.mutable_sampling()->set_presence_penalty(2.5f); },
                  kInvalid,
                  {"presence_penalty", "2.5"}},
        WrongCase{"nan_frequency_penalty",
                  [](Request& r) { r.mutable_sampling()->set_frequency_penalty(kNan); },
                  kInvalid,
                  {"frequency_penalty"}},
        WrongCase{"too_many_logprobs",
                  [](Request& r) { r.set_logprobs(21); },
                  kInvalid,
                  {"logprobs", "21", "20"}},
        WrongCase{"negative_logprobs",
                  [](Request& r) { r.set_logprobs(-1); },
                  kInvalid,
                  {"logprobs", "-1"}},
        WrongCase{"empty_stop", [](Request& r) { r.add_stop(); }, kInvalid, {"stop", "empty"}},
        WrongCase{"long_stop",
                  [](Request& r) { r.add_stop(std::string(257, 'x')); },
                  kInvalid,
                  {"stop", "257", "256"}},
        WrongCase{"many_stops",
                  [](Request& r) {
                    for (int i = 0; i < 17; ++i) r.add_stop(std::string(1, 'x'));
                  },
                  kInvalid,
                  {"stop", "17", "16"}},
        WrongCase{"many_stop_tokens",
                  [](Request& r) {
                    for (int i = 0; i < 257; ++i) r.add_stop_token_ids(i);
                  },
                  kInvalid,
                  {"stop_token_ids", "257", "256"}},
        WrongCase{"long_request_id",
                  [](Request& r) { r.set_request_id(std::string(129, 'x')); },
                  kInvalid,
                  {"request_id", "129 bytes", "128"}},
        WrongCase{"unknown_stop_token",
                  [](Request& r) { r.add_stop_token_ids(5000); },
                  kInvalid,
                  {"stop_token_ids", "5000"}},
        WrongCase{"request_id_that_breaks_a_line",
                  [](Request& r) { r.set_request_id(std::string("a\nb")); },
                  kInvalid,
                  {"request_id"}},
        WrongCase{"unknown_policy",
                  [](Request& r) { r.set_compression(std::string("pyramid(budget=3)")); },
                  kInvalid,
                  {"compression", "pyramid", "column 1"}},
        WrongCase{"bad_policy_parameter",
                  [](Request& r) { r.set_compression(std::string("snapkv(budget=many)")); },
                  kInvalid,
                  {"compression", "column 15"}},
        WrongCase{"policy_not_allowed",
                  [](Request& r) { r.set_compression(std::string("pyramidkv(budget=64)")); },
                  grpc::StatusCode::PERMISSION_DENIED,
                  {"pyramidkv", "full, snapkv"}},
        WrongCase{"part_of_a_policy_not_allowed",
                  [](Request& r) { r.set_compression(std::string("snapkv(budget=64)+int8")); },
                  grpc::StatusCode::PERMISSION_DENIED,
                  {"'int8'", "full, snapkv"}}),
    [](const auto& tested) { return std::string(tested.param.name); });

TEST(LargestInputTest, IsTaken) {
  ServeConfig config = StubDaemon::DefaultConfig();
  config.max_prompt_tokens = 30;
  StubDaemon daemon(config);
  v1::GenerateRequest request = IdRequest(std::vector<int32_t>(30, 9), 3);
  request.set_request_id(std::string(128, 'x'));
  for (char c = 'a'; c < 'a' + 16; ++c) request.add_stop(std::string(256, c));
  for (int id = 0; id < 256; ++id) request.add_stop_token_ids(id);
  request.set_logprobs(20);
  const Generation got = daemon.Generate(request);
  ASSERT_TRUE(got.ok()) << got.Describe();
  EXPECT_EQ(got.result->request_id(), request.request_id());
  // A text of as many bytes as there may be is wrong by its tokens alone.
  EXPECT_THAT(daemon.Generate(TextRequest(std::string(30 * 128, 'a'), 3)).status.error_message(),
              HasSubstr("tokens: at most 30"));
}

TEST(LeastTokensTest, CannotBeDrawnWhereEveryTokenEndsTheAnswer) {
  StubModelOptions model = StubDaemon::DefaultModel();
  model.shape.vocab_size = 4;
  StubDaemon daemon(StubDaemon::DefaultConfig(), model, {3});
  v1::GenerateRequest request = IdRequest({1}, 5);
  request.set_min_tokens(2);
  for (const int32_t id : {0, 1, 1}) request.add_stop_token_ids(id);
  EXPECT_TRUE(daemon.Generate(request).status.ok()) << "2 is left";
  request.add_stop_token_ids(2);
  const Generation got = daemon.Generate(request);
  EXPECT_EQ(got.status.error_code(), kInvalid);
  EXPECT_THAT(got.status.error_message(), HasSubstr("min_tokens leaves nothing to draw"));
}

TEST(MalformedRequestTest, IsRefusedAndTheDaemonServesOn) {
  StubDaemon daemon;
  const std::string kNotUtf8("\x12\x01\xff", 3);  // text: one byte that is no character
  const std::string kCutShort(
      "\x12\x7f"
      "abc",
      5);  // text: 127 bytes, of which 3 came
  for (const std::string& request : {kNotUtf8, kCutShort}) {
    const grpc::Status status =
        CallFromBytes(daemon.channel(), OurMethod("Generate"), request).status;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("UTF-8"));
  }
  for (const char* method : {"Generate", "Tokenize", "Detokenize", "GetModel", "GetCache"}) {
    const grpc::Status status =
        CallFromBytes(daemon.channel(), OurMethod(method), kCutShort).status;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_THAT(status.error_message(), HasSubstr(std::string(method) + "Request: cut short"));
  }
  EXPECT_TRUE(daemon.Generate(IdRequest(kPrompt, 5)).status.ok());
}

TEST(LimitsTest, RefusesARequestThatCanNeverFitWithBothNumbers) {
  ServeConfig config = StubDaemon::DefaultConfig();
  config.kv_cache_bytes = 8 * 1024;  // 8 blocks of 64 * 2 * 8 bytes
  StubDaemon daemon(config);
  const Generation got = daemon.Generate(IdRequest(std::vector<int32_t>(100, 3), 10));
  EXPECT_EQ(got.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(got.status.error_message(), AllOf(HasSubstr("28 blocks"), HasSubstr("8")));
  EXPECT_TRUE(daemon.Generate(IdRequest(kPrompt, 5)).status.ok());
}

TEST(LimitsTest, RefusesWhatTheQueueCannotTake) {
  ServeConfig config = StubDaemon::DefaultConfig();
  config.max_running = 1;
  config.max_queue = 1;
  StubDaemon daemon(config);
  daemon.control().decode_delay_us = 10'000;
  LongCall running(daemon, IdRequest(kPrompt, 3000));
  ASSERT_TRUE(running.Read());
  grpc::ClientContext waiting_context;
  const auto waiting = daemon.stub().Generate(&waiting_context, IdRequest(kPrompt, 5));
  ASSERT_TRUE(PollUntil(kPatience, [&] { return daemon.Cache().waiting() > 0; }))
      << "waited for the second request to wait";
  grpc::ClientContext context;
  const Generation refused = daemon.Generate(IdRequest(kPrompt, 5), &context);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("queue is full"));
  EXPECT_THAT(context.GetServerTrailingMetadata(),
              Contains(Pair("ziggurat-refusal-reason", "queue_full")));
  running.Cancel();
  v1::GenerateResponse response;
  while (waiting->Read(&response)) {
  }
  EXPECT_TRUE(waiting->Finish().ok());
}

TEST(LimitsTest, TurnsAwayWhatHasWaitedTooLong) {
  ServeConfig config = StubDaemon::DefaultConfig();
  config.max_running = 1;
  config.max_queue_time = absl::Milliseconds(500);
  StubDaemon daemon(config);
  daemon.control().decode_delay_us = 10'000;
  LongCall running(daemon, IdRequest(kPrompt, 3000));
  ASSERT_TRUE(running.Read());
  grpc::ClientContext context;
  v1::GenerateRequest request = IdRequest(kPrompt, 5);
  request.set_echo_prompt_token_ids(true);
  const Generation refused = daemon.Generate(request, &context);
  EXPECT_TRUE(refused.prompt_token_ids.empty()) << "nothing was sent: gRPC may try elsewhere";
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("within 0.5 seconds"));
  EXPECT_THAT(context.GetServerTrailingMetadata(),
              Contains(Pair("ziggurat-refusal-reason", "queue_time")));
  EXPECT_TRUE(running.Read()) << "what runs goes on";
  EXPECT_EQ(running.Cancel().error_code(), grpc::StatusCode::CANCELLED);
}

TEST(LimitsTest, RefusesMoreStreamsThanMayBeOpen) {
  ServeConfig config = StubDaemon::DefaultConfig();
  config.max_streams = 1;
  StubDaemon daemon(config);
  daemon.control().decode_delay_us = 10'000;
  LongCall open(daemon, IdRequest(kPrompt, 3000));
  ASSERT_TRUE(open.Read());
  grpc::ClientContext context;
  const Generation refused = daemon.Generate(IdRequest(kPrompt, 5), &context);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("streams"));
  EXPECT_THAT(context.GetServerTrailingMetadata(),
              Contains(Pair("ziggurat-refusal-reason", "too_many_streams")));
  EXPECT_EQ(open.Cancel().error_code(), grpc::StatusCode::CANCELLED);
}

TEST(LimitsTest, RefusesAMessageThatIsTooLarge) {
  ServeConfig config = StubDaemon::DefaultConfig();
  config.max_message_bytes = 2048;
  StubDaemon daemon(config);
  const Generation refused = daemon.Generate(TextRequest(std::string(5000, 'x'), 5));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("2048"));
  EXPECT_TRUE(daemon.Generate(IdRequest(kPrompt, 5)).status.ok());
}

TEST(LimitsTest, AllowsTheDaemonsOwnPolicyEvenIfItIsNotListed) {
  ServeConfig config = StubDaemon::DefaultConfig();
  config.compression = "streaming(sinks=4,recent=28)";
  config.allow_compression = {"full"};
  StubDaemon daemon(config);
  EXPECT_TRUE(daemon.Generate(IdRequest(kPrompt, 5)).status.ok());
  v1::GenerateRequest request = IdRequest(kPrompt, 5);
  request.set_compression("streaming(sinks=4,recent=28)");
  EXPECT_TRUE(daemon.Generate(request).status.ok());
  request.set_compression("streaming(sinks=4,recent=4000)");
  EXPECT_EQ(daemon.Generate(request).status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

}  // namespace
}  // namespace ziggurat

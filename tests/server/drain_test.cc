// How a daemon ends: what it finishes, what it refuses, and for whom it waits.
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "tests/server/stub_daemon.h"
#include "tests/support/poll.h"
#include "tests/support/raw_calls.h"

namespace ziggurat {
namespace {

using ::testing::HasSubstr;

const std::vector<int32_t> kPrompt = {10, 20, 30, 40, 50};

void AwaitDecodeSteps(StubDaemon& daemon, int64_t steps) {
  EXPECT_TRUE(PollUntil(kPatience, [&] { return daemon.control().decode_steps >= steps; }))
      << "waited for " << steps << " decode steps, and there are " << daemon.control().decode_steps;
}

TEST(DrainTest, FinishesWhatRunsRefusesWhatComesAndSaysSo) {
  StubDaemon daemon;
  daemon.control().decode_delay_us = 20'000;
  std::future<Generation> running =
      std::async(std::launch::async, [&] { return daemon.Generate(IdRequest(kPrompt, 150)); });
  AwaitDecodeSteps(daemon, 2);
  std::future<void> drained =
      std::async(std::launch::async, [&] { daemon.daemon().Drain(absl::Seconds(30)); });
  EXPECT_TRUE(
      PollUntil(kPatience, [&] { return CheckHealth(daemon.channel(), "") == "NOT_SERVING"; }))
      << "waited for NOT_SERVING, and its health is " << CheckHealth(daemon.channel(), "");
  EXPECT_EQ(CheckHealth(daemon.channel(), "ziggurat.v1.Ziggurat"), "NOT_SERVING");
  const HttpAnswer ready = HttpGet(daemon, "/readyz");
  EXPECT_EQ(ready.status, 503);
  EXPECT_EQ(ready.body, "draining\n");
  Generation late = daemon.Generate(IdRequest(kPrompt, 5));
  EXPECT_EQ(late.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(late.status.error_message(), HasSubstr("drain"));
  const Generation finished = running.get();
  EXPECT_TRUE(finished.status.ok()) << finished.status.error_message();
  EXPECT_EQ(finished.token_ids.size(), 150u);
  drained.get();
}

// Above all those who call again as soon as they are answered, when the engine has become idle.
TEST(DrainTest, TellsEveryClientThatItIsUnavailable) {
  StubDaemon daemon;
  daemon.control().decode_delay_us = 1000;
  std::vector<std::future<grpc::Status>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::async(std::launch::async, [&] {
      for (;;) {
        const Generation answer = daemon.Generate(IdRequest(kPrompt, 30));
        if (!answer.status.ok()) return answer.status;
      }
    }));
  }
  AwaitDecodeSteps(daemon, 50);
  daemon.daemon().Drain(absl::Seconds(30));
  for (std::future<grpc::Status>& client : clients) {
    const grpc::Status status = client.get();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
  }
}

// Who calls again is told so for a while, before the port is closed and all that comes is
// CANCELLED.
TEST(DrainTest, RefusesWithAReasonUntilNobodyCallsAnyMore) {
  StubDaemon daemon;
  ASSERT_TRUE(daemon.Generate(IdRequest(kPrompt, 5)).status.ok());
  std::future<void> drained =
      std::async(std::launch::async, [&] { daemon.daemon().Drain(absl::Seconds(30)); });
  int told = 0;
  while (drained.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    const Generation late = daemon.Generate(IdRequest(kPrompt, 5));
    told += late.status.error_message() == "the server is draining" ? 1 : 0;
  }
  EXPECT_GE(told, 10);
}

TEST(DrainTest, EndsWhatIsLeftWhenItsTimeIsOver) {
  StubDaemon daemon;
  daemon.control().decode_delay_us = 20'000;
  std::future<Generation> running =
      std::async(std::launch::async, [&] { return daemon.Generate(IdRequest(kPrompt, 3000)); });
  AwaitDecodeSteps(daemon, 2);
  const absl::Time start = absl::Now();
  daemon.daemon().Drain(absl::Milliseconds(300));
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  EXPECT_EQ(running.get().status.error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(DrainTest, CanBeHurried) {
  StubDaemon daemon;
  daemon.control().decode_delay_us = 20'000;
  std::future<Generation> running =
      std::async(std::launch::async, [&] { return daemon.Generate(IdRequest(kPrompt, 3000)); });
  AwaitDecodeSteps(daemon, 2);
  std::future<void> drained =
      std::async(std::launch::async, [&] { daemon.daemon().Drain(absl::Seconds(300)); });
  absl::SleepFor(absl::Milliseconds(100));
  daemon.daemon().HurryDrain();
  ASSERT_EQ(drained.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  EXPECT_EQ(running.get().status.error_code(), grpc::StatusCode::UNAVAILABLE);
}

/// A long answer that is computed to its end, and of which the client has read the beginning.
class SlowReader {
 public:
  explicit SlowReader(StubDaemon& daemon) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1024);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    stub_ = v1::Ziggurat::NewStub(
        grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", daemon.daemon().grpc_port()),
                                  grpc::InsecureChannelCredentials(), arguments));
    v1::GenerateRequest request = IdRequest(kPrompt, kTokens);
    request.set_logprobs(20);
    stream_ = stub_->Generate(&context_, request);
    EXPECT_TRUE(Read());
    daemon.WaitIdle();
  }

  static constexpr int kTokens = 1000;
  grpc::Status ReadToTheEnd() {
    while (Read()) {
    }
    return stream_->Finish();
  }
  int tokens() const { return tokens_; }
  int chunks() const { return chunks_; }

 private:
  bool Read() {
    v1::GenerateResponse response;
    if (!stream_->Read(&response)) return false;
    // What waited was merged, up to a bound.
    EXPECT_LE(response.chunk().token_ids_size(), 256);
    EXPECT_EQ(response.chunk().logprobs_size(), response.chunk().token_ids_size());
    tokens_ += response.chunk().token_ids_size();
    ++chunks_;
    return true;
  }

  std::unique_ptr<v1::Ziggurat::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> stream_;
  int tokens_ = 0;
  int chunks_ = 0;
};

TEST(DrainTest, LetsWhoReadsSlowlyReadToTheEnd) {
  StubDaemon daemon;
  SlowReader reader(daemon);
  v1::GenerateRequest refused = IdRequest(kPrompt, 5);
  refused.set_request_id("two words");
  EXPECT_FALSE(daemon.Generate(refused).status.ok()) << "and nobody is waited for less";
  std::future<void> drained =
      std::async(std::launch::async, [&] { daemon.daemon().Drain(absl::Seconds(60)); });
  // Longer than a daemon whose time is over waits.
  EXPECT_EQ(drained.wait_for(std::chrono::milliseconds(2500)), std::future_status::timeout);
  EXPECT_TRUE(reader.ReadToTheEnd().ok());
  EXPECT_EQ(reader.tokens(), SlowReader::kTokens);
  EXPECT_LT(reader.chunks(), SlowReader::kTokens / 4);
  EXPECT_EQ(drained.wait_for(std::chrono::seconds(10)), std::future_status::ready);
}

TEST(DrainTest, LetsWhoReadsSlowlyReadForAMomentWhenItsTimeIsOver) {
  if (kGrpcIsSlow) GTEST_SKIP() << "in this build reading takes longer";
  StubDaemon daemon;
  SlowReader reader(daemon);
  std::future<void> drained =
      std::async(std::launch::async, [&] { daemon.daemon().Drain(absl::Milliseconds(100)); });
  absl::SleepFor(absl::Milliseconds(400));
  EXPECT_TRUE(reader.ReadToTheEnd().ok());
  EXPECT_EQ(reader.tokens(), SlowReader::kTokens);
  EXPECT_EQ(drained.wait_for(std::chrono::seconds(10)), std::future_status::ready);
}

TEST(DrainTest, WaitsForNoSlowReaderOnceItIsHurried) {
  StubDaemon daemon;
  SlowReader reader(daemon);
  std::future<void> drained =
      std::async(std::launch::async, [&] { daemon.daemon().Drain(absl::Seconds(60)); });
  absl::SleepFor(absl::Milliseconds(100));
  daemon.daemon().HurryDrain();
  EXPECT_EQ(drained.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  EXPECT_FALSE(reader.ReadToTheEnd().ok());
}

TEST(DrainTest, IsNotHeldUpByAClientThatDoesNotRead) {
  StubDaemon daemon;
  grpc::ClientContext context;
  const auto stream = daemon.stub().Generate(&context, IdRequest(kPrompt, 3000));
  v1::GenerateResponse response;
  ASSERT_TRUE(stream->Read(&response));
  daemon.WaitIdle();
  std::future<void> drained =
      std::async(std::launch::async, [&] { daemon.daemon().Drain(absl::Seconds(1)); });
  EXPECT_EQ(drained.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  while (stream->Read(&response)) {
  }
  (void)stream->Finish();
}

}  // namespace
}  // namespace ziggurat

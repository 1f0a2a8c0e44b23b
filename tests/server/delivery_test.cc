// The delivery without gRPC, so that a thread sanitizer sees every lock there is.
#include "server/delivery.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/stub_daemon.h"
#include "tests/support/stub_model.h"

namespace ziggurat {
namespace {

// Gathers what is sent, and notes any call that breaks the order.
class RecordingSink : public ResponseSink {
 public:
  void Send(v1::GenerateResponse response) override {
    std::lock_guard lock(mutex_);
    if (is_finished_ || has_result_) is_out_of_order_ = true;
    if (response.has_result()) {
      has_result_ = true;
      result_ = response.result();
    } else {
      for (const int32_t id : response.chunk().token_ids()) token_ids_.push_back(id);
    }
  }
  void Finish(absl::Status status) override {
    std::lock_guard lock(mutex_);
    if (is_finished_ || status.ok() != has_result_) is_out_of_order_ = true;
    is_finished_ = true;
    status_ = std::move(status);
  }

  std::mutex mutex_;
  bool is_finished_ = false;
  bool has_result_ = false;
  bool is_out_of_order_ = false;
  absl::Status status_;
  v1::GenerateResult result_;
  std::vector<int32_t> token_ids_;
};

DeliveryRequest MakeRequest(std::vector<int32_t> prompt, int max_tokens) {
  DeliveryRequest request;
  request.engine.name = "test";
  request.engine.prompt = std::move(prompt);
  request.engine.policy = *ParsePolicy("streaming(sinks=2,recent=30)");
  request.engine.max_new_tokens = max_tokens;
  return request;
}

TEST(DeliveryTest, FinishesEveryRequestOnceAmongSubmissionsAndCancellationsFromManyThreads) {
  constexpr int kThreads = 8;
  constexpr int kRequests = 25;  // of each thread
  const StubModelOptions model = StubDaemon::DefaultModel();
  Metrics metrics;
  auto engine = Engine::Create({.kv_cache_bytes = size_t{1} << 20, .max_running = 32},
                               std::make_unique<StubModel>(model), &metrics);
  ASSERT_TRUE(engine.ok()) << engine.status();
  std::vector<std::shared_ptr<RecordingSink>> sinks(kThreads * kRequests);
  std::vector<std::vector<int32_t>> prompts(sinks.size());
  {
    Delivery delivery(engine->get(), BundledTokenizer().get(), &metrics);
    std::vector<std::thread> clients;
    for (int t = 0; t < kThreads; ++t) {
      clients.emplace_back([&, t] {
        std::mt19937 random(t);
        for (int i = t * kRequests; i < (t + 1) * kRequests; ++i) {
          prompts[i].assign(1 + random() % 100, static_cast<int32_t>(random() % 1000));
          sinks[i] = std::make_shared<RecordingSink>();
          const auto id = delivery.Submit(MakeRequest(prompts[i], 20), sinks[i]);
          ASSERT_TRUE(id.ok()) << id.status();
          if (i % 3 == 0) (*engine)->Cancel(*id, FinishReason::kCancelled);
        }
      });
    }
    for (std::thread& client : clients) client.join();
    EXPECT_TRUE((*engine)->WaitIdle(absl::Seconds(60)));
    (*engine)->Stop();
  }
  int completed = 0;
  for (size_t i = 0; i < sinks.size(); ++i) {
    EXPECT_TRUE(sinks[i]->is_finished_);
    EXPECT_FALSE(sinks[i]->is_out_of_order_);
    if (sinks[i]->status_.ok()) {
      EXPECT_EQ(sinks[i]->token_ids_, StubGreedyTokens(model, prompts[i], 20));
      ++completed;
    } else {
      EXPECT_EQ(sinks[i]->status_.code(), absl::StatusCode::kCancelled);
      EXPECT_EQ(i % 3, 0u);
    }
  }
  EXPECT_GE(completed, kThreads * kRequests * 2 / 3 - kThreads);
}

TEST(DeliveryTest, NeverCallsTheSinkOfARequestThatWasRefused) {
  Metrics metrics;
  auto engine = Engine::Create({.kv_cache_bytes = size_t{1} << 20},
                               std::make_unique<StubModel>(StubDaemon::DefaultModel()), &metrics);
  ASSERT_TRUE(engine.ok()) << engine.status();
  const auto sink = std::make_shared<RecordingSink>();
  {
    Delivery delivery(engine->get(), BundledTokenizer().get(), &metrics);
    EXPECT_FALSE(delivery.Submit(MakeRequest({}, 20), sink).ok());
    (*engine)->Stop();
  }
  EXPECT_FALSE(sink->is_finished_);
  EXPECT_EQ(sink.use_count(), 1);
}

}  // namespace
}  // namespace ziggurat

// An engine on the stub model, and a thread that collects what it says.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/engine.h"
#include "tests/support/policies.h"
#include "tests/support/stub_model.h"

namespace ziggurat {

/// The stub's cache: 4 layers, 2 KV heads of 8, bf16: 1,024 bytes are 16 tokens of one layer.
inline constexpr size_t kBlockBytes = 1024;
inline constexpr int kLayers = 4;

inline EngineOptions Options(size_t blocks) {
  EngineOptions options;
  options.kv_cache_bytes = blocks * kBlockBytes;
  return options;
}

/// A slice of prefill is as short as the model lets it be: half a layer, or a part of that.
inline EngineOptions ShortestSlices(size_t blocks) {
  EngineOptions options = Options(blocks);
  options.prefill_slice = absl::ZeroDuration();
  return options;
}

/// Everything that came out for one request.
struct Collected {
  std::vector<int32_t> tokens;
  EngineResult last;  ///< once it has finished
  bool finished = false;
};

class EngineHarness {
 public:
  /// `checks`: every step is checked, for which tables count every token at once; in release builds
  /// not doing so is possible.
  explicit EngineHarness(EngineOptions options, StubModelOptions model = {}, bool checks = true)
      : model_(std::move(model)) {
    control = std::make_shared<StubControl>();
    model_.control = control;
    options.check_every_step = checks;
    auto created = Engine::Create(options, std::make_unique<StubModel>(model_), &metrics);
    EXPECT_TRUE(created.ok()) << created.status();
    engine = *std::move(created);
    collector_ = std::thread([this] { Collect(); });
  }
  ~EngineHarness() {
    engine->Stop();
    collector_.join();
  }

  EngineRequest Request(int prompt_tokens, int new_tokens,
                        const std::string& policy = "full") const {
    EngineRequest request;
    request.name = "test";
    for (int i = 0; i < prompt_tokens; ++i) request.prompt.push_back(1 + (i * 7) % 400);
    request.policy = MustParse(policy);
    request.max_new_tokens = new_tokens;
    return request;
  }
  std::vector<int32_t> Expected(const EngineRequest& request) const {
    return StubGreedyTokens(model_, request.prompt, request.max_new_tokens);
  }
  RequestId MustSubmit(EngineRequest request) {
    auto id = engine->Submit(std::move(request));
    EXPECT_TRUE(id.ok()) << id.status();
    return id.value_or(0);
  }
  /// Waits for the request's last output.
  Collected Await(RequestId id) {
    std::unique_lock lock(mutex_);
    const bool done =
        changed_.wait_for(lock, std::chrono::seconds(60), [&] { return collected_[id].finished; });
    EXPECT_TRUE(done) << "request " << id << " did not finish";
    return collected_[id];
  }
  /// Waits until the request has given at least `count` tokens.
  void AwaitTokens(RequestId id, size_t count) {
    std::unique_lock lock(mutex_);
    const bool done = changed_.wait_for(lock, std::chrono::seconds(60), [&] {
      return collected_[id].finished || collected_[id].tokens.size() >= count;
    });
    EXPECT_TRUE(done) << "request " << id << " did not give " << count << " tokens";
  }
  /// Lets the model do `steps` decode steps more, and waits until it stands still before the next
  /// one, or before a layer.
  void HoldAfter(int64_t steps) {
    control->hold_at_step = control->decode_steps + steps;
    AwaitHeld();
  }
  void AwaitHeld() const {
    const auto is_held = [&] {
      return control->decode_steps >= control->hold_at_step && control->is_held;
    };
    const SteadyTime end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!is_held() && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    EXPECT_TRUE(is_held());
  }
  void Continue() { control->hold_at_step = StubControl::kNever; }
  void ExpectEmptyPool() const {
    ASSERT_TRUE(engine->WaitIdle(absl::Seconds(60)));
    const std::shared_ptr<const EngineSnapshot> snapshot = engine->Snapshot();
    EXPECT_EQ(snapshot->used_blocks, 0u);
    EXPECT_EQ(snapshot->reserved_blocks, 0u);
    EXPECT_EQ(snapshot->running, 0);
    EXPECT_EQ(snapshot->waiting, 0);
  }

  Metrics metrics;
  std::shared_ptr<StubControl> control;
  std::unique_ptr<Engine> engine;

 private:
  void Collect() {
    std::vector<EngineOutput> outputs;
    while (engine->NextOutputs(&outputs)) {
      std::lock_guard lock(mutex_);
      for (EngineOutput& output : outputs) {
        Collected& entry = collected_[output.id];
        EXPECT_FALSE(entry.finished) << "output after the last one of request " << output.id;
        for (const SampledToken& token : output.tokens) entry.tokens.push_back(token.token_id);
        if (output.result != nullptr) {
          entry.finished = true;
          entry.last = std::move(*output.result);
        }
      }
      changed_.notify_all();
    }
  }

  StubModelOptions model_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RequestId, Collected> collected_;
  std::thread collector_;
};

}  // namespace ziggurat

// Random requests, policies, cancellations and deadlines, 64 at a time: nothing is lost.
// ZIGGURAT_SOAK=1 runs 2,000 requests; 0 is as good as none: 200.

#include <cstdlib>
#include <random>
#include <string_view>

#include "tests/scheduler/engine_harness.h"

namespace ziggurat {
namespace {

/// `on_device`: the model draws the tokens, and steps are prepared while it does.
void PutUnderRandomLoad(bool on_device) {
  const char* soak = std::getenv("ZIGGURAT_SOAK");
  const bool is_soak = soak != nullptr && *soak != '\0' && std::string_view(soak) != "0";
  const int total = is_soak ? 2000 : 200;
  EngineOptions options;
  options.kv_cache_bytes = 600 * 1024;
  options.max_queue = 64;
  options.prefill_tokens = 700;
  options.prefill_slice = absl::Milliseconds(1);
  StubModelOptions model;
  model.short_prefill_tokens = 100;
  model.is_asynchronous = on_device;
  EngineHarness harness(options, model);
  harness.control->prefill_parts = 2;
  harness.control->prefill_layer_delay_us = 2000;
  std::mt19937 random(20261120);
  const auto uniform = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  struct Sent {
    RequestId id;
    std::vector<int32_t> expected;
  };
  std::vector<Sent> open;
  int finished = 0;
  int cancelled = 0;
  int expired = 0;
  const auto check = [&](const Sent& sent) {
    const Collected result = harness.Await(sent.id);
    switch (result.last.reason) {
      case FinishReason::kLength:
        EXPECT_EQ(result.tokens, sent.expected);
        ++finished;
        break;
      case FinishReason::kCancelled:
        ++cancelled;
        break;
      case FinishReason::kDeadline:
        ++expired;
        break;
      default:
        ADD_FAILURE() << "request " << sent.id << ": " << result.last.status;
    }
  };
  for (int i = 0; i < total; ++i) {
    const std::string policies[] = {
        "full",
        "streaming(sinks=" + std::to_string(uniform(0, 6)) +
            ",recent=" + std::to_string(uniform(1, 90)) + ")",
        "snapkv(budget=" + std::to_string(uniform(20, 120)) + ",window=8)",
        "pyramidkv(budget=" + std::to_string(uniform(20, 120)) +
            ",window=8,beta=" + std::to_string(uniform(1, 20)) + ")"};
    // Half of them of few methods with many settings, half of all methods.
    const std::vector<std::string> all = PoliciesOfAllMethods();
    const std::string& policy = uniform(0, 1) == 0
                                    ? policies[uniform(0, 3)]
                                    : all[uniform(0, static_cast<int>(all.size()) - 1)];
    EngineRequest request = harness.Request(uniform(1, 600), uniform(1, 60), policy);
    if (uniform(0, 9) == 0) {
      request.deadline =
          std::chrono::steady_clock::now() + std::chrono::milliseconds(uniform(0, 30));
    }
    std::vector<int32_t> expected = harness.Expected(request);
    const RequestId id = harness.MustSubmit(std::move(request));
    open.push_back({id, std::move(expected)});
    if (uniform(0, 7) == 0) {
      harness.engine->Cancel(open[uniform(0, static_cast<int>(open.size()) - 1)].id,
                             FinishReason::kCancelled);
    }
    if (open.size() >= 64) {
      const size_t pick = static_cast<size_t>(uniform(0, 63));
      check(open[pick]);
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(pick));
    }
  }
  for (const Sent& sent : open) check(sent);
  harness.ExpectEmptyPool();
  std::printf("%d requests: %d finished, %d cancelled, %d past their deadline\n", total, finished,
              cancelled, expired);
  EXPECT_GT(finished, total / 2);
  EXPECT_GT(harness.control->short_batches, 0);
  EXPECT_EQ(harness.control->prepared_layers > 0, on_device);
}

TEST(EngineSoakTest, RandomLoadLeavesThePoolEmptyAndEveryFinishedAnswerRight) {
  PutUnderRandomLoad(false);
}

TEST(EngineSoakTest, StepsPreparedAheadLoseNothingEither) { PutUnderRandomLoad(true); }

}  // namespace
}  // namespace ziggurat

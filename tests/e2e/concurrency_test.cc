// How many compressed requests one pool holds at once, against what it would hold if every layer
// took the blocks of the largest.
#include <atomic>
#include <cmath>
#include <numeric>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/e2e/cache_arithmetic.h"
#include "tests/e2e/testing.h"

namespace ziggurat::e2e {
namespace {

constexpr int kLayers = 8;  // needle-llama in bf16
constexpr int kSlotsPerBlock = 16;
constexpr int kBlockBytes = 64 * 2 * 32;
constexpr int kPromptTokens = 2000;

TEST(Concurrency, APoolHoldsAsManyRequestsAsTheSumOfTheirLayersAllows) {
  constexpr int kNewTokens = 128;  // enough that all are seen to be there before the first ends
  const std::vector<int> budgets = PyramidBudgets(512, 32, 20, kLayers, kPromptTokens);
  const int blocks_of_request = TotalBlocks(budgets, kNewTokens, kSlotsPerBlock);
  const int largest_layer =
      CeilDiv(*std::max_element(budgets.begin(), budgets.end()) + kNewTokens, kSlotsPerBlock);
  const int fitting = IsSoak() ? 60 : 24;
  const int pool_blocks = (fitting + 1) * blocks_of_request - 1;  // not one more
  const int required = static_cast<int>(std::floor(0.97 * pool_blocks / blocks_of_request));
  const int uniform = pool_blocks / (kLayers * largest_layer);

  START_DAEMON(daemon, {.dtype = "bf16",
                        .kv_cache_memory = std::to_string(int64_t{pool_blocks} * kBlockBytes),
                        // A prompt is computed in as few slices as can be, with steps in between.
                        .flags = {"--prefill-slice", "60"}});
  ASSERT_EQ(daemon.GetCache().total_blocks(), static_cast<uint64_t>(pool_blocks));
  const PromptSource prompts(daemon);
  std::mt19937 random(3);
  std::vector<v1::GenerateRequest> requests;
  for (int i = 0; i < fitting * 5 / 4; ++i) {
    requests.push_back(IdRequest(prompts.Make(kPromptTokens, random), kNewTokens, AtEos::kGoOn));
    requests.back().set_compression("pyramidkv(budget=512,window=32)");
  }

  std::atomic<int> finished = 0;
  std::vector<Generation> generations(requests.size());
  std::vector<std::thread> clients;
  for (size_t i = 0; i < requests.size(); ++i) {
    clients.emplace_back([&, i] {
      generations[i] = Generate(daemon, requests[i]);
      ++finished;
    });
  }
  uint32_t peak = 0;
  uint64_t most_promised = 0;
  while (finished < static_cast<int>(requests.size())) {
    const v1::GetCacheResponse cache = daemon.GetCache();
    // Of the same instant: each running request with a reservation of its own, none without.
    const auto running = static_cast<uint32_t>(std::count_if(
        cache.requests().begin(), cache.requests().end(), [](const v1::RequestOccupancy& request) {
          return request.state() != "waiting" && request.blocks() + request.reserved_blocks() > 0;
        }));
    EXPECT_EQ(running, cache.running());
    peak = std::max(peak, running);
    most_promised = std::max(most_promised, cache.used_blocks() + cache.reserved_blocks());
    EXPECT_LE(cache.used_blocks() + cache.reserved_blocks(), cache.total_blocks());
    absl::SleepFor(absl::Milliseconds(5));
  }
  for (std::thread& client : clients) client.join();
  for (const Generation& generation : generations) {
    ASSERT_TRUE(generation.ok()) << generation.Describe();
    EXPECT_EQ(generation.token_ids.size(), static_cast<size_t>(kNewTokens));
  }

  std::printf(
      "pool %d blocks, %d per request (largest layer %d): %u at once, required %d; with "
      "equal layers %d (%.2f x); %.1f %% of the pool promised at most\n",
      pool_blocks, blocks_of_request, largest_layer, peak, required, uniform,
      peak / static_cast<double>(uniform), 100.0 * most_promised / pool_blocks);
  EXPECT_GE(peak, static_cast<uint32_t>(required));
  EXPECT_GE(peak, 1.6 * uniform);
  const v1::GetCacheResponse after = daemon.GetCache();
  EXPECT_LE(after.high_water_blocks(), static_cast<uint64_t>(pool_blocks));
  EXPECT_EMPTY_CACHE(daemon);
}

}  // namespace
}  // namespace ziggurat::e2e

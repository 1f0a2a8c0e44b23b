// What SimLayerKV buys: a layer that is found lazy gives its blocks back at once, so that a pool
// holds more long requests at a time.
#include <atomic>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/testing.h"

namespace ziggurat::e2e {
namespace {

constexpr int kLayers = 8;
constexpr int kSlotsPerBlock = 16;
constexpr int kBlockBytes = 64 * 2 * 32;
constexpr int kPromptTokens = 4200;

/// Enough that all are there before the first ends, and are seen to be.
int NewTokens() { return ComputesOnGpu() ? 2000 : 128; }

/// The bundled model told that its context is twice as long.
void WriteLongModel(const TemporaryFolder& folder) {
  for (const auto& file : std::filesystem::directory_iterator(NeedleLlama())) {
    std::filesystem::copy(file.path(), folder.path() / file.path().filename());
  }
  nlohmann::json config = nlohmann::json::parse(ReadFile(NeedleLlama() / "config.json"));
  config["max_position_embeddings"] = 8192;
  WriteFile(folder / "config.json", config.dump(1));
}

/// Sends `requests` at once; the most that were running at a time.
uint32_t PeakRunning(Daemon& daemon, const std::vector<v1::GenerateRequest>& requests) {
  std::atomic<size_t> finished = 0;
  std::vector<std::thread> clients;
  for (const v1::GenerateRequest& request : requests) {
    clients.emplace_back([&] {
      const Generation generation = Generate(daemon, request);
      EXPECT_TRUE(generation.ok()) << generation.Describe();
      ++finished;
    });
  }
  uint32_t peak = 0;
  while (finished < requests.size()) {
    const v1::GetCacheResponse cache = daemon.GetCache();
    EXPECT_LE(cache.used_blocks() + cache.reserved_blocks(), cache.total_blocks());
    peak = std::max(peak, cache.running());
    absl::SleepFor(absl::Milliseconds(5));
  }
  for (std::thread& client : clients) client.join();
  return peak;
}

TEST(LazyConcurrency, HalfOfTheLayersLazyHoldsMoreLongRequests) {
  const int new_tokens = NewTokens();
  const int full_blocks =
      kLayers * ((kPromptTokens + new_tokens - 1 + kSlotsPerBlock - 1) / kSlotsPerBlock);
  const int fitting = 8;
  const TemporaryFolder folder;
  WriteLongModel(folder);
  START_DAEMON(daemon, {.model = folder.path(),
                        .dtype = "bf16",
                        .kv_cache_memory = absl::StrCat(fitting * full_blocks * kBlockBytes),
                        // A prompt is computed in one step, so that none ends before all are there.
                        .flags = {"--prefill-slice", "60"}});
  const PromptSource prompts(daemon);
  std::mt19937 random(5);
  // One prompt for all, so that as many layers are lazy in each of them and it does not matter
  // which come first.
  std::vector<v1::GenerateRequest> requests(
      2 * fitting, IdRequest(prompts.Make(kPromptTokens, random), new_tokens, AtEos::kGoOn));

  // The threshold at which half of the layers are lazy, by the daemon's own report.
  std::string policy;
  for (int percent = 95; percent > 0 && policy.empty(); --percent) {
    v1::GenerateRequest probe = requests[0];
    probe.set_max_tokens(1);
    const std::string candidate = absl::StrCat("simlayerkv(threshold=", percent / 100.0, ")");
    probe.set_compression(candidate);
    const Generation generation = Generate(daemon, probe);
    ASSERT_TRUE(generation.ok()) << generation.Describe();
    int lazy = 0;
    for (const v1::LayerCacheReport& layer : generation.result->cache().layers()) {
      lazy += layer.lazy();
    }
    if (lazy == kLayers / 2) policy = candidate;
  }
  ASSERT_NE(policy, "") << "no threshold makes half of the layers lazy";

  uint32_t peaks[2] = {};
  for (int i = 0; i < 2; ++i) {
    for (v1::GenerateRequest& request : requests) {
      request.set_compression(i == 0 ? "full" : policy);
    }
    peaks[i] = PeakRunning(daemon, requests);
  }
  std::printf(
      "prompts of %d tokens in a pool of %d blocks: %u at once with full, %u with %s, %.2f x\n",
      kPromptTokens, fitting * full_blocks, peaks[0], peaks[1], policy.c_str(),
      peaks[1] / static_cast<double>(peaks[0]));
  EXPECT_EQ(peaks[0], static_cast<uint32_t>(fitting));
  EXPECT_GE(peaks[1], 1.4 * peaks[0]);
  EXPECT_EMPTY_CACHE(daemon);
}

}  // namespace
}  // namespace ziggurat::e2e

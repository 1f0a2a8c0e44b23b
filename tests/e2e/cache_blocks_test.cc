// The blocks that a request holds are exactly those that its policy's definition promises, layer by
// layer: while it runs (GetCache), at its end (the cache report), and none afterwards.
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/e2e/cache_arithmetic.h"
#include "tests/e2e/testing.h"

namespace ziggurat::e2e {
namespace {

constexpr int kLayers = 8;  // needle-llama
constexpr int kKvHeads = 2;
constexpr int kHeadDim = 32;

/// What a policy keeps of a prompt, and whether the rest grows or overwrites.
struct Expectation {
  std::string policy;  ///< text form
  int prompt_tokens = 0;
  std::vector<int> budgets;  ///< [layers], KV pairs per KV head right after prefill
  int ring = 0;              ///< most tokens that a layer ever holds; 0: no limit

  /// Slots of `layer` once `appended` generated tokens went to the cache.
  int Tokens(int layer, int appended) const {
    const int tokens = budgets[static_cast<size_t>(layer)] + appended;
    return ring > 0 ? std::min(tokens, ring) : tokens;
  }
};

Expectation Full(int n) { return {"full", n, std::vector<int>(kLayers, n)}; }
Expectation Streaming(int sinks, int recent, int n) {
  return {absl::StrCat("streaming(sinks=", sinks, ",recent=", recent, ")"), n,
          std::vector<int>(kLayers, std::min(n, sinks + recent)), sinks + recent};
}
Expectation Snap(int budget, int window, int n) {
  return {absl::StrCat("snapkv(budget=", budget, ",window=", window, ")"), n,
          std::vector<int>(kLayers, std::min(n, budget))};
}
Expectation Pyramid(int budget, int window, int beta, int n) {
  return {absl::StrCat("pyramidkv(budget=", budget, ",window=", window, ",beta=", beta, ")"), n,
          PyramidBudgets(budget, window, beta, kLayers, n)};
}

struct Dtype {
  std::string name;
  int element_bytes;
  int slots_per_block;
};
const Dtype kBf16 = {"bf16", 2, 16};
const Dtype kF32 = {"f32", 4, 8};
constexpr size_t kBlockBytes = size_t{64} * kKvHeads * kHeadDim;

/// A request seen running: the formula of its blocks at however many tokens it has generated.
/// Returns whether there was anything to see.
bool ExpectBlocksWhileDecoding(const v1::GetCacheResponse& cache, const Expectation& expected,
                               const Dtype& dtype, int max_tokens) {
  if (cache.requests_size() != 1 || cache.requests(0).state() != "decoding") return false;
  const v1::RequestOccupancy& request = cache.requests(0);
  // The cache receives one token for each generated one but the last.
  const int appended = static_cast<int>(request.generated_tokens()) - 1;
  EXPECT_EQ(request.layer_blocks_size(), kLayers);
  EXPECT_EQ(cache.layers_size(), kLayers);
  uint64_t held = 0;
  uint64_t bound = 0;
  for (int l = 0; l < std::min(request.layer_blocks_size(), cache.layers_size()); ++l) {
    const int blocks = CeilDiv(expected.Tokens(l, appended), dtype.slots_per_block);
    EXPECT_EQ(request.layer_blocks(l), static_cast<uint32_t>(blocks))
        << "layer " << l << " after " << request.generated_tokens() << " tokens";
    EXPECT_EQ(cache.layers(l).used_blocks(), static_cast<uint64_t>(blocks)) << "layer " << l;
    held += static_cast<uint64_t>(blocks);
    bound +=
        static_cast<uint64_t>(CeilDiv(expected.Tokens(l, max_tokens - 1), dtype.slots_per_block));
  }
  EXPECT_EQ(request.blocks(), held);
  EXPECT_EQ(request.reserved_blocks(), bound - held) << "what it may still grow to";
  EXPECT_EQ(cache.used_blocks(), held);
  EXPECT_EQ(cache.reserved_blocks(), bound - held);
  EXPECT_EQ(cache.free_blocks() + cache.used_blocks() + cache.reserved_blocks(),
            cache.total_blocks());
  return true;
}

void ExpectReport(const v1::CacheReport& report, const Expectation& expected, const Dtype& dtype,
                  int generated) {
  EXPECT_EQ(report.block_bytes(), kBlockBytes);
  ASSERT_EQ(report.layers_size(), kLayers);
  const size_t token_bytes = size_t{2} * kKvHeads * kHeadDim * dtype.element_bytes;
  uint64_t blocks = 0;
  for (int l = 0; l < kLayers; ++l) {
    SCOPED_TRACE(absl::StrCat("layer ", l));
    const v1::LayerCacheReport& layer = report.layers(l);
    const int tokens = expected.Tokens(l, generated - 1);
    const int layer_blocks = CeilDiv(tokens, dtype.slots_per_block);
    EXPECT_EQ(layer.layer(), static_cast<uint32_t>(l));
    EXPECT_EQ(layer.budget_tokens(), static_cast<uint64_t>(expected.budgets[l]));
    EXPECT_EQ(layer.tokens(), static_cast<uint64_t>(tokens));
    EXPECT_EQ(layer.blocks(), static_cast<uint64_t>(layer_blocks));
    EXPECT_EQ(layer.bytes(), layer_blocks * kBlockBytes);
    EXPECT_EQ(layer.live_bytes(), tokens * token_bytes);
    EXPECT_EQ(layer.format(), dtype.name);
    blocks += static_cast<uint64_t>(layer_blocks);
  }
  EXPECT_EQ(report.blocks(), blocks);
  EXPECT_EQ(report.bytes(), blocks * kBlockBytes);
  const int full = kLayers * CeilDiv(expected.prompt_tokens + generated - 1, dtype.slots_per_block);
  EXPECT_EQ(report.full_blocks(), static_cast<uint64_t>(full));
  EXPECT_NEAR(report.compression_ratio(), full / static_cast<double>(blocks), 1e-9);
}

void ExpectExactBlocks(Daemon& daemon, const PromptSource& prompts, const Expectation& expected,
                       const Dtype& dtype) {
  SCOPED_TRACE(
      absl::StrCat(expected.policy, ", ", expected.prompt_tokens, " prompt tokens, ", dtype.name));
  std::mt19937 random(7);
  const std::vector<int32_t> prompt = prompts.Make(expected.prompt_tokens, random);
  int looks = 0;
  // GetCache may be 100 ms old, in which a fast machine is done with a request: then a longer one.
  for (int run = 0; run < 20 && looks == 0; ++run) {
    const int new_tokens = run == 0 ? 600 : 2000;  // of a context of 4,096
    v1::GenerateRequest request = IdRequest(prompt, new_tokens, AtEos::kGoOn);
    request.set_compression(expected.policy);
    absl::Time next_look = absl::Now();
    const auto look = [&](const Generation&) {
      if (absl::Now() < next_look) return true;
      looks += ExpectBlocksWhileDecoding(daemon.GetCache(), expected, dtype, new_tokens) ? 1 : 0;
      next_look = absl::Now() + absl::Milliseconds(20);
      return true;
    };
    const Generation generation = Generate(daemon, request, {.on_message = look});
    ASSERT_TRUE(generation.ok()) << generation.Describe();
    EXPECT_EQ(generation.token_ids.size(), static_cast<size_t>(new_tokens));
    ExpectReport(generation.result->cache(), expected, dtype, new_tokens);
    EXPECT_EMPTY_CACHE(daemon);
  }
  EXPECT_GT(looks, 0) << "the request was never seen decoding";
}

void ExpectExactBlocksOfAllPolicies(const Dtype& dtype) {
  START_DAEMON(daemon, {.dtype = dtype.name});
  const PromptSource prompts(daemon);
  const Expectation expectations[] = {
      Full(5),
      Full(777),
      Streaming(4, 1020, 333),  // reaches its limit late
      Streaming(4, 60, 50),     // reaches it while decoding
      Streaming(4, 60, 1500),   // over it from the start
      Snap(128, 32, 100),       // shorter than its budget
      Snap(128, 32, 1500),
      Pyramid(128, 8, 20, 60),   // everything is kept
      Pyramid(128, 8, 20, 150),  // the lower layers spill upward
      Pyramid(128, 8, 20, 1500),
      Pyramid(512, 32, 20, 2000),
      Pyramid(333, 7, 3, 1234),  // nothing divides anything
  };
  for (const Expectation& expected : expectations) {
    ExpectExactBlocks(daemon, prompts, expected, dtype);
  }
}

TEST(CacheBlocks, AreExactlyThoseOfThePolicyInBf16) { ExpectExactBlocksOfAllPolicies(kBf16); }
TEST(CacheBlocks, AreExactlyThoseOfThePolicyInF32) { ExpectExactBlocksOfAllPolicies(kF32); }

TEST(CacheBlocks, PyramidBudgetsSpendTheMeanBudgetAndFall) {
  // The arithmetic that the tests above rely on, against numbers worked out by hand:
  // T = 480 * 8 = 3840, top = 3840 / 160 = 24, bottom = 960 - 24 = 936, steps of 130.29.
  const std::vector<int> budgets = PyramidBudgets(512, 32, 20, 8, 2000);
  EXPECT_EQ(budgets.front(), 936 + 32);
  EXPECT_EQ(budgets.back(), 24 + 32);
  EXPECT_EQ(std::accumulate(budgets.begin(), budgets.end(), 0), 512 * 8);
  EXPECT_TRUE(std::is_sorted(budgets.rbegin(), budgets.rend()));
  // A prompt of 100 tokens has 92 outside the window: 8 * 92 < 8 * 120, so all is kept.
  EXPECT_EQ(PyramidBudgets(128, 8, 20, 8, 100), std::vector<int>(8, 100));
  // 234, 201, 169, 136, ... outside the window, of which a prompt has 192: 51 pairs too many in the
  // first two layers, 23 of which fit the third and 28 the fourth.
  EXPECT_EQ(PyramidBudgets(128, 8, 20, 8, 200),
            (std::vector<int>{200, 200, 200, 172, 112, 79, 47, 14}));
}

}  // namespace
}  // namespace ziggurat::e2e

// The tokens of a request do not depend on who else is there.
#include <cmath>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/e2e/testing.h"

namespace ziggurat::e2e {
namespace {

constexpr int kRequests = 64;
constexpr int kNewTokens = 48;
// docs/architecture.md, "Same answer": a comparison ends at the first step at which the two best
// logits are this near; such ends are counted.
constexpr double kNearTie = 1e-3;
double MaxEndShare() { return ComputesOnGpu() ? 0.05 : 0.02; }

/// BOS, then one run of random ids again and again, which the model goes on copying: long contexts
/// whose continuation is a clear choice, of any length.
std::vector<int32_t> CopyPrompt(int tokens, std::mt19937& random) {
  constexpr int32_t kBos = 0;
  constexpr int32_t kFirstWord = 259;  // below are specials and bytes
  constexpr int32_t kVocabulary = 1024;
  const int run = std::clamp(tokens / 3, 2, 40);
  std::vector<int32_t> words(static_cast<size_t>(run));
  for (int32_t& word : words) {
    word = kFirstWord + static_cast<int32_t>(random() % (kVocabulary - kFirstWord));
  }
  std::vector<int32_t> prompt = {kBos};
  while (static_cast<int>(prompt.size()) < tokens) {
    prompt.push_back(words[(prompt.size() - 1) % words.size()]);
  }
  return prompt;
}

/// 5 to 2000 tokens, every order of magnitude alike.
std::vector<v1::GenerateRequest> MixedRequests(uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> exponent(std::log(5.0), std::log(2000.0));
  std::vector<v1::GenerateRequest> requests;
  for (int i = 0; i < kRequests; ++i) {
    const int tokens = i == 0 ? 5 : i == 1 ? 2000 : static_cast<int>(std::exp(exponent(random)));
    requests.push_back(IdRequest(CopyPrompt(tokens, random), kNewTokens, AtEos::kGoOn));
    requests.back().set_compression("full");
    requests.back().set_logprobs(2);
  }
  return requests;
}

std::vector<Generation> RunTogether(Daemon& daemon,
                                    const std::vector<v1::GenerateRequest>& requests) {
  std::vector<Generation> generations(requests.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < requests.size(); ++i) {
    threads.emplace_back([&, i] { generations[i] = Generate(daemon, requests[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  return generations;
}

bool IsNearTie(const v1::TokenLogprobs& step) {
  return step.top_size() < 2 || step.top(0).logprob() - step.top(1).logprob() < kNearTie;
}

struct Comparison {
  int requests = 0;
  int steps = 0;
  int ends = 0;
};

void Compare(const Generation& alone, const Generation& crowded, int prompt_tokens,
             Comparison* comparison) {
  ASSERT_TRUE(alone.ok()) << alone.Describe();
  ASSERT_TRUE(crowded.ok()) << crowded.Describe();
  ASSERT_EQ(alone.token_ids.size(), static_cast<size_t>(kNewTokens));
  ASSERT_EQ(crowded.token_ids.size(), static_cast<size_t>(kNewTokens));
  ASSERT_EQ(alone.logprobs.size(), alone.token_ids.size());
  ++comparison->requests;
  for (size_t i = 0; i < alone.token_ids.size(); ++i) {
    if (IsNearTie(alone.logprobs[i]) || IsNearTie(crowded.logprobs[i])) {
      ++comparison->ends;
      return;
    }
    ASSERT_EQ(alone.token_ids[i], crowded.token_ids[i])
        << "step " << i << " of a prompt of " << prompt_tokens << " tokens; alone the two best are "
        << alone.logprobs[i].ShortDebugString() << ", in the crowd "
        << crowded.logprobs[i].ShortDebugString();
    ++comparison->steps;
  }
}

TEST(Crowd, TokensAloneAndAmong64AreTheSame) {
  START_DAEMON(daemon, {.kv_cache_memory = "256MiB"});
  Comparison comparison;
  const uint32_t rounds = IsSoak() ? 8 : 1;
  for (uint32_t round = 0; round < rounds; ++round) {
    const std::vector<v1::GenerateRequest> requests = MixedRequests(100 + round);
    const std::vector<Generation> crowded = RunTogether(daemon, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      const Generation alone = Generate(daemon, requests[i]);
      Compare(alone, crowded[i], requests[i].token_ids().ids_size(), &comparison);
    }
  }
  std::printf("%d requests, %d steps compared, %d ended at a near-tie (%.1f %%)\n",
              comparison.requests, comparison.steps, comparison.ends,
              100.0 * comparison.ends / std::max(1, comparison.requests));
  EXPECT_LE(comparison.ends, MaxEndShare() * comparison.requests);

  // They really were a crowd: some decode step had more than half of them in its batch.
  const MetricSamples metrics = daemon.Metrics();
  const auto all = metrics.find("ziggurat_decode_batch_size_count");
  const auto small = metrics.find("ziggurat_decode_batch_size_bucket{le=\"32\"}");
  ASSERT_NE(all, metrics.end());
  ASSERT_NE(small, metrics.end());
  EXPECT_GT(all->second - small->second, 0) << "no decode step of more than 32 sequences";
  std::printf("%.0f decode steps of more than 32 sequences\n", all->second - small->second);
  EXPECT_EMPTY_CACHE(daemon);
}

}  // namespace
}  // namespace ziggurat::e2e

// Greedy text of `full` in f32, through the daemon, against the outputs of a float reference that
// lie beside four real checkpoints.
#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/e2e/testing.h"

namespace ziggurat::e2e {
namespace {

using nlohmann::json;

// Steps whose two best logits are nearer than this may go either way (docs/architecture.md, "Same
// answer"); the golden files state the smallest margin of every text.
constexpr double kNearTie = 1e-3;
constexpr double kLogitTolerance = 2e-3;

/// Steps of `golden` that have one right answer.
size_t ComparableSteps(const json& golden) {
  const size_t steps = golden["greedy_ids"].size();
  return golden["min_top1_margin"].get<double>() < kNearTie
             ? std::min(steps, golden["argmin"].get<size_t>())
             : steps;
}

/// The 20 best logits after the prompt. A logprob is its logit less a constant; that is known where
/// the golden file has all logits, and else taken from the best one.
void ExpectTopLogits(const v1::TokenLogprobs& actual, const std::vector<int>& ids,
                     const std::vector<double>& logits, double log_sum) {
  ASSERT_EQ(actual.top_size(), 20);
  double worst = 0;
  for (int i = 0; i < actual.top_size(); ++i) {
    const auto found = std::find(ids.begin(), ids.end(), actual.top(i).token_id());
    ASSERT_NE(found, ids.end()) << "token " << actual.top(i).token_id()
                                << " is not among the best of the reference";
    const double logit = logits[static_cast<size_t>(found - ids.begin())];
    worst = std::max(worst, std::abs(actual.top(i).logprob() - (logit - log_sum)));
  }
  EXPECT_LE(worst, kLogitTolerance) << "top-20 logits";
  std::printf("  top-20 logits: max|d| = %.2g\n", worst);
}

void ExpectFirstLogits(const json& golden, const json& all_logits, const Generation& generation) {
  ASSERT_FALSE(generation.logprobs.empty());
  const v1::TokenLogprobs& first = generation.logprobs.front();
  if (!all_logits.is_null()) {
    const auto logits = all_logits.get<std::vector<double>>();
    std::vector<int> ids(logits.size());
    double sum = 0;
    const double best = *std::max_element(logits.begin(), logits.end());
    for (size_t i = 0; i < logits.size(); ++i) {
      ids[i] = static_cast<int>(i);
      sum += std::exp(logits[i] - best);
    }
    ExpectTopLogits(first, ids, logits, best + std::log(sum));
  } else if (golden.contains("top20_ids")) {
    const auto logits = golden["top20_logits"].get<std::vector<double>>();
    ExpectTopLogits(first, golden["top20_ids"].get<std::vector<int>>(), logits,
                    logits[0] - first.top(0).logprob());
  }
}

void ExpectGoldenText(Daemon& daemon, const json& golden, const json& all_logits) {
  const auto expected = golden["greedy_ids"].get<std::vector<int32_t>>();
  v1::GenerateRequest request = TextRequest(golden["prompt"].get<std::string>(),
                                            static_cast<int>(expected.size()), AtEos::kGoOn);
  request.set_echo_prompt_token_ids(true);
  request.set_logprobs(20);
  const Generation generation = Generate(daemon, request);
  ASSERT_TRUE(generation.ok()) << generation.Describe();
  EXPECT_EQ(generation.prompt_token_ids, golden["prompt_ids"].get<std::vector<int32_t>>());
  ASSERT_EQ(generation.token_ids.size(), expected.size());
  const size_t steps = ComparableSteps(golden);
  for (size_t i = 0; i < steps; ++i) {
    ASSERT_EQ(generation.token_ids[i], expected[i]) << "step " << i << " of " << steps;
  }
  std::printf("  %zu of %zu steps compared\n", steps, expected.size());
  ExpectFirstLogits(golden, all_logits, generation);
}

void ExpectGoldenTexts(const std::filesystem::path& model) {
  if (!std::filesystem::exists(model / "golden.json")) {
    GTEST_SKIP() << model << " is absent";
  }
  START_DAEMON(daemon, {.model = model, .flags = {"--compression", "full"}});
  const json goldens = json::parse(ReadFile(model / "golden.json"));
  const auto& prompts = goldens["prompts"];
  ASSERT_FALSE(prompts.empty());
  for (size_t i = 0; i < prompts.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "prompt " << i);
    const bool has_all_logits = i == 0 && goldens.contains("logits_after_prompt0");
    ExpectGoldenText(daemon, prompts[i], has_all_logits ? goldens["logits_after_prompt0"] : json());
  }
  EXPECT_EMPTY_CACHE(daemon);
}

TEST(GoldenText, NeedleLlama) { ExpectGoldenTexts(NeedleLlama()); }
TEST(GoldenText, Stories260K) { ExpectGoldenTexts(SharedFolder() / "models" / "stories260K"); }
TEST(GoldenText, TinyStories656K) {
  ExpectGoldenTexts(SharedFolder() / "models" / "tinystories-656k");
}
TEST(GoldenText, TemplateGpt1M) { ExpectGoldenTexts(SharedFolder() / "models" / "templategpt-1m"); }

}  // namespace
}  // namespace ziggurat::e2e

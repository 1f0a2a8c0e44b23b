// The decoder with the policy `full` in f32, and in bf16, against outputs of float references that
// stand beside four real checkpoints.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/model/decoder_harness.h"
#include "tests/support/files.h"

namespace ziggurat::testing {
namespace {

constexpr double kNearTie = 1e-3;
constexpr double kLogitTolerance = 2e-4;  // 9e-6 to 3e-5 were measured

struct GoldenModel {
  const char* name;
  std::filesystem::path dir;
  double bf16_tolerance;  ///< of logits, relative to the largest: 2.5 times what was measured on
                          ///< one kind of CPU, since kernels of others round otherwise
};
void PrintTo(const GoldenModel& model, std::ostream* out) { *out << model.name; }

class DecoderGolden : public ::testing::TestWithParam<GoldenModel> {
 protected:
  void SetUp() override {
    dir_ = GetParam().dir;
    if (!std::filesystem::exists(dir_ / "golden.json")) {
      GTEST_SKIP() << "skipped: " << dir_ << " with its golden.json is not here";
    }
    golden_ = nlohmann::json::parse(ReadFile(dir_ / "golden.json"), nullptr, false);
    ASSERT_TRUE(golden_.is_object());
  }

  static DecoderOptions Options(ElementType element) {
    return {.element = element, .threads = 2, .max_prefill_tokens = 4096};
  }

  std::filesystem::path dir_;
  nlohmann::json golden_;
};

/// Steps that must agree: all, or those before a near-tie.
size_t StepsThatCount(const nlohmann::json& prompt) {
  const size_t all = prompt["greedy_ids"].size();
  if (prompt["min_top1_margin"].get<double>() >= kNearTie) return all;
  return std::min(all, prompt["argmin"].get<size_t>());
}

TEST_P(DecoderGolden, GreedyTextInF32IsThatOfTheFloatReference) {
  DecoderHarness harness(dir_, Options(ElementType::kF32), MakeBestBackend(2));
  const auto& prompts = golden_["prompts"];
  std::vector<TestSequence> sequences;
  std::vector<std::vector<int32_t>> generated;
  std::vector<int32_t> next;
  size_t steps = 0;
  for (const auto& prompt : prompts) steps = std::max(steps, prompt["greedy_ids"].size());
  for (const auto& prompt : prompts) {
    const auto ids = prompt["prompt_ids"].get<std::vector<int32_t>>();
    sequences.push_back(harness.NewSequence("full", ids.size(), steps));
    const Logits logits = harness.Prefill({&sequences.back()}, {ids})[0];
    next.push_back(ArgMax(logits));
    generated.push_back({next.back()});
  }
  // All prompts decode as one batch, as the daemon would run them.
  std::vector<TestSequence*> batch;
  for (TestSequence& sequence : sequences) batch.push_back(&sequence);
  for (size_t step = 1; step < steps; ++step) {
    const auto logits = harness.Decode(batch, next);
    for (size_t i = 0; i < batch.size(); ++i) {
      next[i] = ArgMax(logits[i]);
      generated[i].push_back(next[i]);
    }
  }

  size_t identical = 0, compared = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto expected = prompts[i]["greedy_ids"].get<std::vector<int32_t>>();
    const size_t first_difference =
        std::mismatch(expected.begin(), expected.end(), generated[i].begin()).first -
        expected.begin();
    identical += first_difference == expected.size();
    compared += StepsThatCount(prompts[i]);
    EXPECT_GE(first_difference, StepsThatCount(prompts[i])) << "prompt " << i;
  }
  std::printf("%s: %zu of %zu prompts identical to the end, %zu steps had to agree\n",
              GetParam().name, identical, prompts.size(), compared);
  EXPECT_GT(compared, 0u);
}

TEST_P(DecoderGolden, LogitsAfterThePromptAreThoseOfTheFloatReference) {
  DecoderHarness harness(dir_, Options(ElementType::kF32), MakeBestBackend(2));
  double worst = 0;
  size_t compared = 0;
  for (const auto& prompt : golden_["prompts"]) {
    const bool is_first = compared == 0;
    const bool has_top = prompt.contains("top20_ids");
    if (!has_top && !is_first) break;  // only the first prompt's logits are in the file
    const auto ids = prompt["prompt_ids"].get<std::vector<int32_t>>();
    TestSequence sequence = harness.NewSequence("full", ids.size(), 1);
    const Logits logits = harness.Prefill({&sequence}, {ids})[0];
    if (has_top) {
      const auto top = prompt["top20_ids"].get<std::vector<int32_t>>();
      for (size_t i = 0; i < top.size(); ++i) {
        const double difference =
            std::abs(logits[top[i]] - prompt["top20_logits"][i].get<double>());
        worst = std::max(worst, difference);
      }
    }
    if (is_first && golden_.contains("logits_after_prompt0")) {
      worst = std::max(worst, MaxDifference(logits, golden_["logits_after_prompt0"].get<Logits>()));
    }
    ++compared;
  }
  std::printf("%s: logits of %zu prompts within %.2e\n", GetParam().name, compared, worst);
  EXPECT_GT(compared, 0u);
  EXPECT_LE(worst, kLogitTolerance);
}

/// By how much the best logit is ahead of the second.
double Margin(const Logits& logits) {
  Logits best(2);
  std::partial_sort_copy(logits.begin(), logits.end(), best.begin(), best.end(), std::greater<>());
  return best[0] - best[1];
}

/// Logits of each step and prompt, [steps][prompts], while the texts are read.
std::vector<std::vector<Logits>> ReadTexts(const std::filesystem::path& dir, ElementType element,
                                           const std::vector<std::vector<int32_t>>& prompts,
                                           const std::vector<std::vector<int32_t>>& texts) {
  const DecoderOptions options = {.element = element, .max_prefill_tokens = 4096};
  DecoderHarness harness(dir, options, MakeBestBackend(1));
  const size_t steps = texts[0].size();
  std::vector<std::vector<Logits>> logits(1);
  std::vector<TestSequence> sequences;
  for (const auto& prompt : prompts) {
    sequences.push_back(harness.NewSequence("full", prompt.size(), steps));
    logits[0].push_back(harness.Prefill({&sequences.back()}, {prompt})[0]);
  }
  std::vector<TestSequence*> batch;
  for (TestSequence& sequence : sequences) batch.push_back(&sequence);
  for (size_t step = 0; step + 1 < steps; ++step) {
    std::vector<int32_t> tokens;
    for (const auto& text : texts) tokens.push_back(text[step]);
    logits.push_back(harness.Decode(batch, tokens));
  }
  return logits;
}

TEST_P(DecoderGolden, LogitsInBf16AreCloseToF32AndAgreeOnTheBestWhereItIsClear) {
  constexpr double kClear = 0.5;
  constexpr size_t kMostSteps = 32;
  std::vector<std::vector<int32_t>> prompts, texts;
  for (const auto& prompt : golden_["prompts"]) {
    prompts.push_back(prompt["prompt_ids"]);
    texts.push_back(prompt["greedy_ids"]);
  }
  size_t steps = kMostSteps;
  for (const auto& text : texts) steps = std::min(steps, text.size());
  for (auto& text : texts) text.resize(steps);
  const auto bf16 = ReadTexts(dir_, ElementType::kBf16, prompts, texts);
  const auto f32 = ReadTexts(dir_, ElementType::kF32, prompts, texts);

  size_t clear = 0, agreed = 0;
  double worst = 0;
  for (size_t step = 0; step < steps; ++step) {
    for (size_t i = 0; i < texts.size(); ++i) {
      worst = std::max(worst, RelativeDifference(bf16[step][i], f32[step][i]));
      if (Margin(f32[step][i]) < kClear) continue;
      ++clear;
      agreed += ArgMax(bf16[step][i]) == texts[i][step];
    }
  }
  std::printf("%s: bf16 logits of %zu steps within %.2e, the best the same in %zu of %zu clear\n",
              GetParam().name, steps * texts.size(), worst, agreed, clear);
  EXPECT_LE(worst, GetParam().bf16_tolerance);
  EXPECT_GT(worst, 1e-3) << "is this bf16 at all?";
  EXPECT_GT(clear, steps * texts.size() / 2);
  EXPECT_GE(agreed, clear - clear / 50);
}

INSTANTIATE_TEST_SUITE_P(
    Models, DecoderGolden,
    ::testing::Values(
        GoldenModel{"NeedleLlama", ZIGGURAT_SOURCE_DIR "/models/needle-llama", 3.5e-2},
        GoldenModel{"Stories260K", SharedFolder() / "models/stories260K", 4.5e-2},
        GoldenModel{"TinyStories656K", SharedFolder() / "models/tinystories-656k", 3e-2},
        GoldenModel{"TemplateGpt1M", SharedFolder() / "models/templategpt-1m", 1.6e-2}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace ziggurat::testing

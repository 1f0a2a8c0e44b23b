// A calibration of the bundled model, from text to groups.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "model/calibration/attention_similarity.h"
#include "model/calibration/sample_text.h"
#include "model/decoder/llama_decoder.h"

namespace ziggurat {
namespace {

const std::string kBundled = std::string(ZIGGURAT_SOURCE_DIR) + "/models/needle-llama";

std::unique_ptr<ModelRunner> LoadBundled(int threads, ElementType element) {
  DecoderOptions options;
  options.element = element;
  options.threads = threads;
  options.max_prefill_tokens = 256;
  options.warm_up = false;
  const auto level = DetectCpuLevel();
  auto backend = level.ok() ? *MakeCpuBackend(*level, threads) : MakeReferenceBackend();
  auto runner = LoadLlamaDecoder(kBundled, options, std::move(backend));
  return runner.ok() ? *std::move(runner) : nullptr;
}

std::vector<std::vector<int32_t>> Samples() {
  std::string text;
  for (int i = 0; i < 40; ++i) {
    text += " The passkey of Nora Hill is " + std::to_string(1000 + 37 * i % 977) +
            ". The old house stood near the river. Sam saw a lamp and a boat in Rome.";
  }
  const auto tokenizer = Tokenizer::Load(kBundled);
  const auto sampled =
      SampleText(**tokenizer, {{"text", false, {text}}}, {.count = 3, .length = 200});
  return sampled->samples;
}

LayerSimilarity Measure(ModelRunner& runner, int last) {
  SimilarityMeter meter(&runner, last);
  for (const auto& sample : Samples()) {
    const absl::Status status = meter.Add(sample);
    EXPECT_TRUE(status.ok()) << status;
  }
  return meter.Mean();
}

TEST(MeasuredModel, IsTheSameWithAnyNumberOfThreads) {
  const auto one = LoadBundled(1, ElementType::kF32), two = LoadBundled(2, ElementType::kF32);
  ASSERT_TRUE(one != nullptr && two != nullptr);
  const LayerSimilarity similarity = Measure(*one, 16);
  EXPECT_EQ(Measure(*one, 16).values, similarity.values);
  EXPECT_EQ(Measure(*two, 16).values, similarity.values);
  double least = 1;
  for (int head = 0; head < similarity.num_kv_heads; ++head) {
    for (int layer = 0; layer < similarity.num_layers; ++layer) {
      EXPECT_EQ(similarity.At(head, layer, layer), 1);
      for (int other = 0; other < layer; ++other) {
        const double value = similarity.At(head, layer, other);
        EXPECT_TRUE(value >= 0 && value < 1) << layer << ", " << other << ": " << value;
        EXPECT_EQ(value, similarity.At(head, other, layer));
        least = std::min(least, value);
      }
    }
  }
  EXPECT_LT(least, 0.5) << "the layers of a trained model do different things";
}

TEST(MeasuredModel, IsAboutTheSameInBf16) {
  const auto f32 = LoadBundled(2, ElementType::kF32), bf16 = LoadBundled(2, ElementType::kBf16);
  ASSERT_TRUE(f32 != nullptr && bf16 != nullptr);
  const LayerSimilarity a = Measure(*f32, 16), b = Measure(*bf16, 16);
  for (size_t i = 0; i < a.values.size(); ++i) EXPECT_NEAR(a.values[i], b.values[i], 0.02) << i;
}

TEST(MeasuredModel, ShowsItsAttentionOnlyBetweenAttendingAndFinishing) {
  const auto runner = LoadBundled(2, ElementType::kF32);
  ASSERT_TRUE(runner != nullptr);
  const std::vector<int32_t> ids = Samples()[0];
  CachePlan plan;
  plan.layers.resize(runner->shape().num_layers);
  plan.needs.window_rows = 4;
  const PrefillPrompt prompt{ids, &plan};
  std::vector<LayerMeasured> measured(1);
  std::vector<double> cosines(1);
  std::vector<float> attention(runner->shape().num_q_heads * 4 * ids.size());
  auto batch = runner->BeginPrefill(0, {&prompt, 1});
  ASSERT_TRUE(batch.ok());
  const auto code = [&](int of_prompt, int rows) {
    return (*batch)->LastAttention(of_prompt, rows, attention.data()).code();
  };
  EXPECT_EQ(code(0, 4), absl::StatusCode::kFailedPrecondition) << "not attended";
  ASSERT_TRUE((*batch)->AttendLayer(0, NeverPause, &measured).ok());
  EXPECT_EQ(code(1, 4), absl::StatusCode::kFailedPrecondition) << "no such prompt";
  EXPECT_EQ(code(0, 5), absl::StatusCode::kInvalidArgument) << "four rows are kept";
  EXPECT_EQ(code(0, 0), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(code(0, 4), absl::StatusCode::kOk);
  for (size_t row = 0; row < attention.size() / ids.size(); ++row) {
    double sum = 0;
    for (size_t t = 0; t < ids.size(); ++t) sum += attention[row * ids.size() + t];
    EXPECT_NEAR(sum, 1, 1e-4) << "row " << row;
  }
  const std::vector<LayerWrite> nothing(1);
  ASSERT_TRUE((*batch)->WriteLayer(0, nothing).ok());
  ASSERT_TRUE((*batch)->FinishLayer(0, NeverPause, &cosines).ok());
  EXPECT_EQ(code(0, 4), absl::StatusCode::kFailedPrecondition) << "finished";
}

}  // namespace
}  // namespace ziggurat

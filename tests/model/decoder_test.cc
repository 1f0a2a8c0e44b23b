// What must hold of the decoder whatever the weights: batches equal their members, chunks do not
// show, workspace bytes are those of the formula, and what is wrong is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <random>

#include "tests/model/decoder_harness.h"
#include "tests/model/plain_llama.h"

namespace ziggurat::testing {
namespace {

using ::testing::HasSubstr;

constexpr char kConfig[] = R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",
  "hidden_size":64,"intermediate_size":90,"num_hidden_layers":3,"num_attention_heads":4,
  "num_key_value_heads":2,"head_dim":16,"vocab_size":200,"max_position_embeddings":128,
  "rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":false})";

/// Batches change the order in which a product's rows are blocked, never the sums of a row by more
/// than rounding.
constexpr double kRounding = 2e-6;

class DecoderTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = std::filesystem::path(::testing::TempDir()) /
           ("ziggurat-decoder-" + std::to_string(getpid()));
    WriteTinyModel(dir_, kConfig, 11);
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(dir_); }

  static DecoderOptions F32(int chunk_tokens = 16) {
    return {.element = ElementType::kF32,
            .threads = 1,
            .max_prefill_tokens = 160,
            .max_window_rows = 32,
            .chunk_tokens = chunk_tokens};
  }
  static std::vector<int32_t> Ids(int count, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int32_t> ids(count);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 200);
    return ids;
  }
  static DecoderHarness Harness(const DecoderOptions& options = F32()) {
    return DecoderHarness(dir_, options, MakeBestBackend(1), 1 << 22);
  }
  /// Logits after the prompt and after each of `continuation`, one sequence by itself.
  static std::vector<Logits> Alone(DecoderHarness& harness, const std::string& policy,
                                   const std::vector<int32_t>& prompt,
                                   const std::vector<int32_t>& continuation) {
    TestSequence sequence = harness.NewSequence(policy, static_cast<int>(prompt.size()), 32);
    std::vector<Logits> logits = harness.Prefill({&sequence}, {prompt});
    for (const int32_t id : continuation) logits.push_back(harness.Decode({&sequence}, {id})[0]);
    return logits;
  }
  static absl::Status Load(const std::filesystem::path& dir) {
    return LoadLlamaDecoder(dir, F32(), MakeReferenceBackend()).status();
  }

  static std::filesystem::path dir_;
};
std::filesystem::path DecoderTest::dir_;

TEST_F(DecoderTest, PackedPromptsAndBatchedStepsEqualEachAlone) {
  DecoderHarness harness = Harness();
  const std::vector<std::string> policies = {"full", "streaming(sinks=2,recent=9)",
                                             "snapkv(budget=16,window=4)",
                                             "pyramidkv(budget=16,window=4,beta=4)", "full"};
  const std::vector<int> lengths = {33, 40, 29, 31, 1};
  const std::vector<int32_t> continuation = Ids(12, 99);
  std::vector<std::vector<int32_t>> prompts;
  std::vector<TestSequence> sequences;
  for (size_t i = 0; i < policies.size(); ++i) {
    prompts.push_back(Ids(lengths[i], static_cast<uint32_t>(i)));
    sequences.push_back(harness.NewSequence(policies[i], lengths[i], 32));
  }
  std::vector<TestSequence*> batch;
  for (TestSequence& sequence : sequences) batch.push_back(&sequence);
  std::vector<std::vector<Logits>> together = {harness.Prefill(batch, prompts)};
  for (const int32_t id : continuation) {
    together.push_back(harness.Decode(batch, std::vector<int32_t>(batch.size(), id)));
  }
  for (size_t i = 0; i < policies.size(); ++i) {
    const auto alone = Alone(harness, policies[i], prompts[i], continuation);
    for (size_t step = 0; step < alone.size(); ++step) {
      EXPECT_LE(RelativeDifference(together[step][i], alone[step]), kRounding)
          << policies[i] << ", step " << step;
    }
  }
  for (TestSequence& sequence : sequences) sequence.cache->Clear();
  EXPECT_EQ(harness.pool().used_blocks(), 0u);
}

TEST_F(DecoderTest, ChunkBordersDoNotShow) {
  DecoderHarness chunked = Harness(F32(16)), whole = Harness(F32(160));
  for (const int length : {1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 127}) {
    const auto prompt = Ids(length, 5);
    const auto a = Alone(chunked, "snapkv(budget=12,window=3)", prompt, {});
    const auto b = Alone(whole, "snapkv(budget=12,window=3)", prompt, {});
    EXPECT_LE(RelativeDifference(a[0], b[0]), kRounding) << length << " tokens";
  }
}

TEST_F(DecoderTest, ABatchOfManyPromptsGetsTheLogitsOfEach) {
  DecoderHarness harness = Harness();  // 40 prompts of one to four tokens: more rows than a chunk
  std::vector<std::vector<int32_t>> prompts;
  std::vector<TestSequence> sequences;
  std::vector<TestSequence*> batch;
  for (int i = 0; i < 40; ++i) {
    prompts.push_back(Ids(1 + i % 4, static_cast<uint32_t>(i)));
    sequences.push_back(harness.NewSequence("full", 1 + i % 4, 1));
  }
  for (TestSequence& sequence : sequences) batch.push_back(&sequence);
  const auto together = harness.Prefill(batch, prompts);
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_LE(RelativeDifference(together[i], Alone(harness, "full", prompts[i], {})[0]), kRounding)
        << i;
  }
}

TEST_F(DecoderTest, DecodingBetweenSlicesOfAPrefillDisturbsNeither) {
  DecoderHarness harness = Harness();
  const auto prompt = Ids(40, 1), other = Ids(25, 2), continuation = Ids(3, 3);
  const auto expected = Alone(harness, "full", prompt, {});
  const auto expected_other = Alone(harness, "full", other, continuation);
  TestSequence decoding = harness.NewSequence("full", 25, 8);
  harness.Prefill({&decoding}, {other});
  TestSequence prefilling = harness.NewSequence("full", 40, 8);
  const PrefillPrompt batch{prompt, 0};
  ASSERT_TRUE(harness.runner().BeginPrefill({&batch, 1}).ok());
  for (int layer = 0; layer < 3; ++layer) {
    const LayerWrite write = harness.PrepareWrite(prefilling, layer);
    ASSERT_TRUE(harness.runner().PrefillLayer(layer, {&write, 1}).ok());
    const auto logits = harness.Decode({&decoding}, {continuation[layer]});
    EXPECT_LE(RelativeDifference(logits[0], expected_other[layer + 1]), kRounding);
  }
  Logits logits(200);
  ASSERT_TRUE(harness.runner().FinishPrefill(logits.data()).ok());
  EXPECT_LE(RelativeDifference(logits, expected[0]), kRounding);
}

TEST_F(DecoderTest, ARequestThatIsGoneIsSkippedAndItsNeighbourUnharmed) {
  DecoderHarness harness = Harness();
  const auto gone = Ids(20, 1), stays = Ids(30, 2);
  TestSequence sequence = harness.NewSequence("full", 30, 8);
  const PrefillPrompt batch[] = {{gone, 0}, {stays, 0}};
  ASSERT_TRUE(harness.runner().BeginPrefill(batch).ok());
  for (int layer = 0; layer < 3; ++layer) {
    const LayerWrite writes[] = {{}, harness.PrepareWrite(sequence, layer)};
    ASSERT_TRUE(harness.runner().PrefillLayer(layer, writes).ok());
  }
  std::vector<float> logits(400);
  ASSERT_TRUE(harness.runner().FinishPrefill(logits.data()).ok());
  const auto expected = Alone(harness, "full", stays, {});
  EXPECT_LE(RelativeDifference(Logits(logits.begin() + 200, logits.end()), expected[0]), kRounding);
}

TEST_F(DecoderTest, Bf16IsCloseToF32) {
  DecoderOptions options = F32();
  options.element = ElementType::kBf16;
  DecoderHarness bf16 = Harness(options), f32 = Harness();
  const auto prompt = Ids(50, 8), continuation = Ids(5, 9);
  const auto rounded = Alone(bf16, "full", prompt, continuation);
  const auto exact = Alone(f32, "full", prompt, continuation);
  for (size_t i = 0; i < exact.size(); ++i) {
    EXPECT_LE(RelativeDifference(rounded[i], exact[i]), 4e-2) << i;
    EXPECT_GT(RelativeDifference(rounded[i], exact[i]), 1e-5) << "is this bf16 at all?";
  }
}

TEST_F(DecoderTest, WorkspaceOfABatchIsTheFormulaAndIsReported) {
  DecoderHarness harness = Harness();
  ModelRunner& runner = harness.runner();
  EXPECT_EQ(runner.workspace_high_water_bytes(), 0u) << "warming up does not count";
  EXPECT_EQ(runner.workspace_capacity_bytes(), runner.WorkspaceBytes(160, 32));
  Alone(harness, "snapkv(budget=16,window=4)", Ids(100, 1), {});
  EXPECT_EQ(runner.workspace_high_water_bytes(), runner.WorkspaceBytes(100, 4));
  Alone(harness, "full", Ids(50, 1), {});
  EXPECT_EQ(runner.workspace_high_water_bytes(), runner.WorkspaceBytes(100, 4));
  // n tokens: residual 4h, q 4HD, k and v 8GD, lse 4H, cos and sin 4D; one chunk: 4(h + 2f + f).
  const size_t per_token = 4 * 64 + 4 * 64 + 8 * 32 + 4 * 4 + 4 * 16;
  const size_t chunk = 16 * 4 * (64 + 2 * 90 + 90);
  EXPECT_EQ(runner.WorkspaceBytes(128, 0), 128 * per_token + chunk);
  EXPECT_EQ(runner.WorkspaceBytes(128, 8), 128 * per_token + chunk + 8 * 4 * 64 + 128 * 8 * 2);
}

TEST_F(DecoderTest, WrongPromptsAreRefusedAndTheRunnerStaysUsable) {
  DecoderHarness harness = Harness();
  ModelRunner& runner = harness.runner();
  const auto refusal = [&](const std::vector<int32_t>& ids, int window_rows = 0) {
    const PrefillPrompt prompt{ids, window_rows};
    return runner.BeginPrefill({&prompt, 1});
  };
  EXPECT_EQ(runner.BeginPrefill({}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal({}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal({3, 200}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refusal({3, -1}).message()), HasSubstr("-1"));
  EXPECT_EQ(refusal(Ids(129, 1)).code(), absl::StatusCode::kInvalidArgument) << "over the context";
  EXPECT_EQ(refusal(Ids(120, 1), 120).code(), absl::StatusCode::kOk) << "rows within the bytes";
  EXPECT_EQ(refusal({1}).code(), absl::StatusCode::kFailedPrecondition) << "one is under way";
  runner.AbandonPrefill();
  runner.AbandonPrefill();
  const auto ids = Ids(81, 1);
  const PrefillPrompt two[] = {{ids, 0}, {ids, 0}};
  EXPECT_EQ(runner.BeginPrefill(two).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(runner.FinishPrefill(nullptr).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(runner.PrefillLayer(0, {}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Alone(harness, "full", Ids(10, 1), {1}).size(), 2u);
}

TEST_F(DecoderTest, LayersOutOfOrderAreRefused) {
  DecoderHarness harness = Harness();
  const auto ids = Ids(8, 1);
  const PrefillPrompt prompt{ids, 0};
  ASSERT_TRUE(harness.runner().BeginPrefill({&prompt, 1}).ok());
  const LayerWrite skipped;
  EXPECT_EQ(harness.runner().PrefillLayer(1, {&skipped, 1}).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(harness.runner().FinishPrefill(nullptr).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(DecoderTest, WrongDecodeInputsAreRefused) {
  DecoderHarness harness = Harness();
  TestSequence sequence = harness.NewSequence("full", 4, 8);
  harness.Prefill({&sequence}, {Ids(4, 1)});
  std::vector<DecodeInput::Layer> layers;
  for (int i = 0; i < 3; ++i) {
    const int slot = *sequence.cache->layer(i).AppendSlot(0);
    layers.push_back({sequence.cache->layer(i).view(), 0, slot});
  }
  Logits logits(200);
  const auto decode = [&](DecodeInput input) {
    return harness.runner().Decode({&input, 1}, logits.data()).code();
  };
  EXPECT_EQ(decode({200, 4, layers}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(decode({-1, 4, layers}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(decode({1, 128, layers}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(decode({1, 4, absl::MakeSpan(layers).subspan(1)}), absl::StatusCode::kInternal);
  auto beyond = layers;
  beyond[1].slot = 5;
  EXPECT_EQ(decode({1, 4, beyond}), absl::StatusCode::kInternal);
  EXPECT_EQ(decode({1, 4, layers}), absl::StatusCode::kOk);
  EXPECT_TRUE(harness.runner().Decode({}, nullptr).ok());
}

TEST_F(DecoderTest, EditsThatItCannotDoAreNamed) {
  DecoderHarness harness = Harness();
  const auto ids = Ids(30, 1);
  const auto edit = [&](const LayerStatistic& statistic, const LayerEdit& what, int slots) {
    TestSequence sequence = harness.NewSequence("full", 30, 8);
    EXPECT_TRUE(sequence.cache->layer(0).Extend(0, slots).ok());
    const PrefillPrompt prompt{ids, 4};
    EXPECT_TRUE(harness.runner().BeginPrefill({&prompt, 1}).ok());
    const LayerWrite write{statistic, what, sequence.cache->layer(0).view()};
    const absl::Status status = harness.runner().PrefillLayer(0, {&write, 1});
    harness.runner().AbandonPrefill();
    return status;
  };
  EXPECT_TRUE(edit(WindowScoreStatistic{4, 1}, KeepBest{6, 4}, 10).ok());
  EXPECT_THAT(edit({}, KeepBest{6, 4}, 10).ToString(), HasSubstr("without a statistic"));
  EXPECT_THAT(edit(WindowScoreStatistic{8, 1}, KeepBest{6, 8}, 14).ToString(),
              HasSubstr("of which 4 are there"));
  EXPECT_THAT(edit(WindowScoreStatistic{4, 1}, KeepBest{6, 2}, 8).ToString(),
              HasSubstr("a window of 4"));
  EXPECT_THAT(edit({}, KeepAll{}, 29).ToString(), HasSubstr("has 29 slots"));
}

TEST_F(DecoderTest, WrongWeightsAreRefusedByName) {
  const auto dir = dir_ / "wrong";
  std::filesystem::create_directories(dir);
  std::filesystem::copy_file(dir_ / "config.json", dir / "config.json",
                             std::filesystem::copy_options::overwrite_existing);
  std::ifstream in(dir_ / "model.safetensors", std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const auto write = [&](const std::string& contents) {
    std::ofstream(dir / "model.safetensors", std::ios::binary) << contents;
  };
  std::string with_nan = bytes;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  with_nan.replace(with_nan.size() - 4, 4, reinterpret_cast<const char*>(&nan), 4);
  write(with_nan);
  EXPECT_THAT(Load(dir).ToString(), HasSubstr("lm_head.weight"));
  write(bytes.substr(0, bytes.size() / 2));
  EXPECT_EQ(Load(dir).code(), absl::StatusCode::kDataLoss);
  std::string renamed = bytes;
  renamed.replace(renamed.find("layers.1.mlp.up_proj"), 20, "layers.1.mlp.uq_proj");
  write(renamed);
  EXPECT_THAT(Load(dir).ToString(), HasSubstr("model.layers.1.mlp.up_proj.weight"));
  std::filesystem::remove(dir / "model.safetensors");
  EXPECT_EQ(Load(dir).code(), absl::StatusCode::kNotFound);
}

TEST_F(DecoderTest, OptionsOutOfRangeAreRefused) {
  for (const DecoderOptions& options :
       {DecoderOptions{.threads = 0}, DecoderOptions{.max_prefill_tokens = 0},
        DecoderOptions{.max_window_rows = -1}, DecoderOptions{.chunk_tokens = 8}}) {
    EXPECT_EQ(LoadLlamaDecoder(dir_, options, MakeReferenceBackend()).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace ziggurat::testing

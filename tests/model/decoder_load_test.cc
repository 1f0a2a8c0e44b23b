// Loading a model: what is wrong in a weight is named wherever it stands, and what is right warms
// up whatever its sizes.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/checkpoint/model_config.h"
#include "model/checkpoint/weights_layout.h"
#include "model/decoder/llama_weights.h"
#include "tests/model/checkpoint_files.h"
#include "tests/model/decoder_fixture.h"

namespace ziggurat::testing {
namespace {

using ::testing::HasSubstr;

/// Where a tensor's last number stands, f32.
struct LastNumber {
  std::filesystem::path file;
  size_t at = 0;
};

LastNumber FindLastNumber(const std::filesystem::path& dir, const std::string& tensor) {
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    if (entry.path().extension() != ".safetensors") continue;
    const std::string bytes = ReadFile(entry.path());
    const size_t name = bytes.find(absl::StrCat("\"", tensor, "\""));
    if (name == std::string::npos) continue;
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof header);
    size_t end = 0;
    const std::string offsets = "\"data_offsets\":[";
    std::sscanf(bytes.c_str() + bytes.find(offsets, name) + offsets.size(), "%*u,%zu", &end);
    return {entry.path(), sizeof header + header + end - sizeof(float)};
  }
  return {};
}

constexpr char kWithBiases[] = R"({"architectures":["Qwen2ForCausalLM"],"model_type":"qwen2",
  "hidden_size":64,"intermediate_size":90,"num_hidden_layers":2,"num_attention_heads":4,
  "num_key_value_heads":2,"vocab_size":70,"max_position_embeddings":128,
  "rms_norm_eps":1e-6,"rope_theta":10000.0,"tie_word_embeddings":true,
  "use_sliding_window":false})";

TEST_F(DecoderTest, WhateverWeightIsNotANumberIsNamedWithItsFile) {
  const std::filesystem::path dir = dir_ / "spoiled";
  for (const char* config : {kConfig, kWithBiases}) {
    std::filesystem::remove_all(dir);
    WriteTinyModel(dir, config, 5, {.shards = 3});
    ASSERT_EQ(Load(dir), absl::OkStatus());
    for (const WeightSpec& weight : ExpectedWeights(*LoadModelConfig(dir))) {
      const LastNumber last = FindLastNumber(dir, weight.name);
      ASSERT_GT(last.at, 0u) << weight.name;
      const std::string right = ReadFile(last.file);
      std::string wrong = right;
      const float nan = std::numeric_limits<float>::quiet_NaN();
      wrong.replace(last.at, sizeof nan, reinterpret_cast<const char*>(&nan), sizeof nan);
      WriteFile(last.file, wrong);
      const absl::Status status = Load(dir);
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << weight.name;
      EXPECT_THAT(status.ToString(),
                  HasSubstr(absl::StrCat(last.file.string(), ": tensor \"", weight.name, "\"")));
      WriteFile(last.file, right);
    }
  }
}

/// Keeps the matrices that it is given, or copies them; either way it notes what they held.
class NotingFactory final : public LinearFactory {
 public:
  struct Noted {
    const std::byte* at = nullptr;
    std::string bytes;
    WeightMatrix kept;
  };
  NotingFactory(bool keeps, std::vector<Noted>* noted) : keeps_(keeps), noted_(noted) {}

  absl::StatusOr<std::unique_ptr<Linear>> Make(const WeightMatrix& weight,
                                               const std::vector<float>&) override {
    noted_->push_back({weight.data(),
                       {reinterpret_cast<const char*>(weight.data()), weight.bytes()},
                       keeps_ ? weight : WeightMatrix()});
    return std::unique_ptr<Linear>();
  }

 private:
  bool keeps_;
  std::vector<Noted>* noted_;
};

TEST_F(DecoderTest, MatricesThatAreKeptStayAndOthersLeaveTheirRoomToTheNext) {
  const auto config = LoadModelConfig(dir_);
  const auto checkpoint = Checkpoint::Open(dir_);
  ASSERT_TRUE(config.ok() && checkpoint.ok());
  std::vector<NotingFactory::Noted> kept, copied;
  for (const bool keeps : {true, false}) {
    const auto weights =
        LlamaWeights::Load(*config, *checkpoint, ElementType::kF32,
                           std::make_unique<NotingFactory>(keeps, keeps ? &kept : &copied));
    ASSERT_EQ(weights.status(), absl::OkStatus());
  }
  ASSERT_EQ(kept.size(), 1u + 4u * 3u);  // the head, and each layer's
  ASSERT_EQ(copied.size(), kept.size());
  std::set<const std::byte*> places;
  for (size_t i = 0; i < kept.size(); ++i) {
    const WeightMatrix& matrix = kept[i].kept;
    EXPECT_EQ(std::memcmp(matrix.data(), kept[i].bytes.data(), matrix.bytes()), 0) << i;
    EXPECT_EQ(copied[i].bytes, kept[i].bytes) << i;
    places.insert(copied[i].at);
  }
  EXPECT_EQ(places.size(), 1u);
}

TEST_F(DecoderTest, ModelsWarmUpHoweverFewTokensTheyTake) {
  const std::filesystem::path dir = dir_ / "short";
  std::string config = kConfig;
  const std::string context = "\"max_position_embeddings\":128";
  for (const int tokens : {2, 16}) {
    std::string shorter = config;
    shorter.replace(shorter.find(context), context.size(),
                    absl::StrCat("\"max_position_embeddings\":", tokens));
    WriteTinyModel(dir, shorter, 5);
    EXPECT_EQ(Load(dir), absl::OkStatus()) << tokens;
    std::filesystem::remove_all(dir);
    DecoderOptions options = F32();
    options.max_prefill_tokens = tokens;
    EXPECT_EQ(LoadLlamaDecoder(dir_, options, MakeReferenceBackend()).status(), absl::OkStatus());
  }
}

TEST_F(DecoderTest, AnMlpNarrowerThanTheProjectionsLeavesTheseTheirRoom) {
  const std::filesystem::path dir = dir_ / "narrow";
  std::string config = kConfig;
  const std::string mlp = "\"intermediate_size\":90";
  config.replace(config.find(mlp), mlp.size(), "\"intermediate_size\":6");
  WriteTinyModel(dir, config, 5);
  const std::vector<int32_t> ids = Ids(40, 1);
  const std::vector<Logits> expected = PlainLlama(dir).Forward(ids);
  DecoderHarness harness(dir, F32(), MakeBestBackend(1), 1 << 22);
  // As the formula in decoder_test.cc, but that (H + 2G) D is more than 2f.
  const size_t per_token = 4 * 64 + 4 * 64 + 8 * 32 + 4 * 4 + 4 * 16;
  EXPECT_EQ(harness.runner().WorkspaceBytes(16), 16 * (per_token + 4 * (64 + 128 + 6 + 64)));
  const std::vector<int32_t> prompt(ids.begin(), ids.end() - 2);
  const std::vector<int32_t> rest(ids.end() - 2, ids.end());
  const std::vector<Logits> logits = Alone(harness, "full", prompt, rest);
  for (size_t i = 0; i < logits.size(); ++i) {
    EXPECT_LE(RelativeDifference(logits[i], expected[37 + i]), 1e-5) << i;
  }
}

TEST_F(DecoderTest, AfterWarmingUpThereIsNoPoolAndNothingHasBeenCounted) {
  const auto runner = LoadLlamaDecoder(dir_, F32(), MakeReferenceBackend());
  ASSERT_TRUE(runner.ok()) << runner.status();
  EXPECT_EQ((*runner)->EditCache({}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ((*runner)->attention_seconds(), 0);
  EXPECT_EQ((*runner)->workspace_high_water_bytes(), 0u);
  // Where nothing is written none is needed.
  const std::vector<int32_t> ids = Ids(4, 1);
  CachePlan plan;
  plan.layers.resize(3);
  const PrefillPrompt prompt{ids, &plan};
  const auto batch = (*runner)->BeginPrefill(0, {&prompt, 1});
  ASSERT_TRUE(batch.ok()) << batch.status();
  std::vector<LayerMeasured> measured(1);
  ASSERT_TRUE((*batch)->AttendLayer(0, NeverPause, &measured).ok());
  const LayerWrite nothing;
  EXPECT_EQ((*batch)->WriteLayer(0, {&nothing, 1}), absl::OkStatus());
}

TEST_F(DecoderTest, WritingMovingAndDecodingTakeAttentionSeconds) {
  DecoderHarness harness = Harness();
  ModelRunner& runner = harness.runner();
  TestSequence sequence = harness.NewSequence("full", 20, 8);
  double before = runner.attention_seconds();
  const auto expect_more = [&](const char* what) {
    EXPECT_GT(runner.attention_seconds(), before) << what;
    before = runner.attention_seconds();
  };
  harness.Prefill({&sequence}, {Ids(20, 1)});
  expect_more("prefill");
  harness.Decode({&sequence}, {1});
  expect_more("decode");
  const SegmentView* segment = &sequence.store->cache().layer(0).view()[0];
  const CacheEdit edit = CopyEdit{segment, 10, {}, 10, segment, 0};
  EXPECT_TRUE(runner.EditCache({&edit, 1}).ok());
  expect_more("an edit");
}

}  // namespace
}  // namespace ziggurat::testing

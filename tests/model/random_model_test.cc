#include "model/checkpoint/random_model.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/tensor_conversion.h"
#include "model/checkpoint/weights_layout.h"
#include "tests/model/checkpoint_files.h"

namespace ziggurat {
namespace {

using ::testing::HasSubstr;

void ExpectModel(const std::filesystem::path& dir) {
  const auto config = LoadModelConfig(dir);
  ASSERT_TRUE(config.ok()) << config.status();
  const auto checkpoint = Checkpoint::Open(dir);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const absl::Status status = CheckWeights(*config, *checkpoint);
  EXPECT_TRUE(status.ok()) << status;
}

std::vector<float> Values(const Checkpoint& checkpoint, const std::string& name) {
  const TensorView* tensor = checkpoint.Find(name);
  if (tensor == nullptr) return {};
  std::vector<float> values(static_cast<size_t>(tensor->num_elements()));
  EXPECT_TRUE(ConvertToF32(name, *tensor, absl::MakeSpan(values)).ok());
  return values;
}

TEST(WriteRandomModel, WritesAModelThatLoads) {
  TemporaryFolder dir;
  ASSERT_TRUE(WriteRandomModel({}, dir / "new").ok());
  ExpectModel(dir / "new");
}

TEST(WriteRandomModel, EveryShapeIsAModelWithFewerLayers) {
  for (const std::string_view shape : RandomModelShapes()) {
    TemporaryFolder dir;
    RandomModelOptions options;
    options.shape = std::string(shape);
    options.layers = 1;
    options.vocab_size = 300;
    if (shape == "llama-3-8b") options.intermediate_size = 64;
    ASSERT_TRUE(WriteRandomModel(options, dir.path()).ok()) << shape;
    ExpectModel(dir.path());
  }
}

TEST(WriteRandomModel, TakesEveryReplacement) {
  TemporaryFolder dir;
  RandomModelOptions options;
  options.layers = 3;
  options.hidden_size = 48;
  options.q_heads = 6;
  options.kv_heads = 3;
  options.head_dim = 16;
  options.intermediate_size = 40;
  options.vocab_size = 258;
  options.context_tokens = 99;
  options.tie_word_embeddings = true;
  options.dtype = "f32";
  ASSERT_TRUE(WriteRandomModel(options, dir.path()).ok());
  ExpectModel(dir.path());
  const auto config = LoadModelConfig(dir.path());
  EXPECT_EQ(config->num_layers, 3);
  EXPECT_EQ(config->q_size(), 96);
  EXPECT_EQ(config->kv_size(), 48);
  EXPECT_EQ(config->MaxContextTokens(), 99);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_EQ(Checkpoint::Open(dir.path())->Find("model.norm.weight")->dtype, DType::kF32);
}

TEST(WriteRandomModel, HeadSizeFollowsHiddenSize) {
  TemporaryFolder dir;
  RandomModelOptions options;
  options.hidden_size = 128;
  ASSERT_TRUE(WriteRandomModel(options, dir.path()).ok());
  EXPECT_EQ(LoadModelConfig(dir.path())->head_dim, 32);
}

TEST(WriteRandomModel, SameSeedSameBytes) {
  TemporaryFolder dir;
  RandomModelOptions options;
  ASSERT_TRUE(WriteRandomModel(options, dir / "a").ok());
  ASSERT_TRUE(WriteRandomModel(options, dir / "b").ok());
  options.seed = 1;
  ASSERT_TRUE(WriteRandomModel(options, dir / "c").ok());
  EXPECT_EQ(ReadFile(dir / "a/model.safetensors"), ReadFile(dir / "b/model.safetensors"));
  EXPECT_NE(ReadFile(dir / "a/model.safetensors"), ReadFile(dir / "c/model.safetensors"));
}

TEST(WriteRandomModel, ShardsHoldTheSameWeights) {
  TemporaryFolder dir;
  RandomModelOptions options;
  ASSERT_TRUE(WriteRandomModel(options, dir / "one").ok());
  options.max_shard_bytes = 30'000;
  ASSERT_TRUE(WriteRandomModel(options, dir / "many").ok());
  const auto one = Checkpoint::Open(dir / "one");
  const auto many = Checkpoint::Open(dir / "many");
  ASSERT_TRUE(many.ok()) << many.status();
  EXPECT_FALSE(std::filesystem::exists(dir / "many/model.safetensors"));
  ASSERT_EQ(one->Names(), many->Names());
  for (const std::string& name : one->Names()) {
    EXPECT_EQ(Values(*one, name), Values(*many, name)) << name;
  }
}

TEST(WriteRandomModel, WeightsHaveTheScaleThatKeepsActivations) {
  TemporaryFolder dir;
  RandomModelOptions options;
  options.hidden_size = 256;
  options.dtype = "f32";
  ASSERT_TRUE(WriteRandomModel(options, dir.path()).ok());
  const auto checkpoint = Checkpoint::Open(dir.path());
  const std::vector<float> values = Values(*checkpoint, "model.layers.0.self_attn.q_proj.weight");
  ASSERT_EQ(values.size(), 65536u);
  double sum = 0;
  double squares = 0;
  for (const float value : values) {
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  const double n = static_cast<double>(values.size());
  EXPECT_NEAR(sum / n, 0, 4.0 / 16 / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n) * 16, 1, 0.02);
  EXPECT_THAT(Values(*checkpoint, "model.norm.weight"), ::testing::Each(1.0f));
}

TEST(WriteRandomModel, TokenizerHasEveryByteOnce) {
  TemporaryFolder dir;
  ASSERT_TRUE(WriteRandomModel({}, dir.path()).ok());
  const nlohmann::json tokenizer = nlohmann::json::parse(ReadFile(dir / "tokenizer.json"));
  const nlohmann::json& vocabulary = tokenizer["model"]["vocab"];
  ASSERT_EQ(vocabulary.size(), 320u);
  std::vector<int> seen(320, 0);
  for (const auto& id : vocabulary) ++seen[id.get<size_t>()];
  EXPECT_THAT(seen, ::testing::Each(1));
  EXPECT_EQ(vocabulary["a"], 2 + 'a');
  EXPECT_EQ(vocabulary["\xC4\xA0"], 2 + ' ') << "a space is U+0120";
  EXPECT_EQ(vocabulary["\xC4\x8A"], 2 + '\n') << "a line feed is U+010A";
  EXPECT_EQ(vocabulary["\xC3\xBF"], 2 + 255);
  EXPECT_EQ(vocabulary["\xC4\xA0w300"], 300);
}

TEST(WriteRandomModel, OverwritesOnlyByForce) {
  TemporaryFolder dir;
  RandomModelOptions options;
  options.max_shard_bytes = 30'000;
  ASSERT_TRUE(WriteRandomModel(options, dir.path()).ok());
  WriteFile(dir / "notes.txt", "mine");
  EXPECT_EQ(WriteRandomModel({}, dir.path()).code(), absl::StatusCode::kAlreadyExists);
  options = {};
  options.force = true;
  ASSERT_TRUE(WriteRandomModel(options, dir.path()).ok());
  ExpectModel(dir.path());
  EXPECT_FALSE(std::filesystem::exists(dir / "model.safetensors.index.json"));
  EXPECT_FALSE(std::filesystem::exists(dir / "model-00001-of-00010.safetensors"));
  EXPECT_EQ(ReadFile(dir / "notes.txt"), "mine");
}

TEST(WriteRandomModel, RefusesWhatMakesNoModel) {
  TemporaryFolder dir;
  const auto refuses = [&](auto change, const char* named) {
    RandomModelOptions options;
    change(options);
    const absl::Status status = WriteRandomModel(options, dir / "x");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(named));
    EXPECT_FALSE(std::filesystem::exists(dir / "x"));
  };
  refuses([](auto& o) { o.shape = "llama-9t"; }, "llama-9t");
  refuses([](auto& o) { o.dtype = "f8"; }, "f8");
  refuses([](auto& o) { o.layers = 0; }, "num_hidden_layers");
  refuses([](auto& o) { o.kv_heads = 3; }, "num_key_value_heads");
  refuses([](auto& o) { o.vocab_size = 257; }, "258");
  refuses([](auto& o) { o.head_dim = 258; }, "head size (head_dim) is 258");
  refuses([](auto& o) { o.hidden_size = 65; }, "hidden_size");
  refuses([](auto& o) { o.context_tokens = -1; }, "max_position_embeddings");
}

TEST(WriteRandomModel, SaysWhereItCannotWrite) {
  TemporaryFolder dir;
  WriteFile(dir / "file", "x");
  EXPECT_EQ(WriteRandomModel({}, dir / "file").code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace ziggurat

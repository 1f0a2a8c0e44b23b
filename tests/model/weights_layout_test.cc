#include "model/checkpoint/weights_layout.h"

#include <nlohmann/json.hpp>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint/tensor_conversion.h"
#include "tests/model/checkpoint_files.h"

namespace ziggurat {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

ModelConfig SmallConfig() {
  ModelConfig config;
  config.num_layers = 1;
  config.hidden_size = 8;
  config.intermediate_size = 5;
  config.num_q_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 8;
  config.vocab_size = 3;
  return config;
}

/// Writes model.safetensors with these tensors, all zeros but for the last byte, and opens it.
Checkpoint Write(const TemporaryFolder& dir, const std::vector<WeightSpec>& specs,
                 const std::string& dtype = "F32", char last_byte = 0) {
  json header = json::object();
  size_t end = 0;
  for (const WeightSpec& spec : specs) {
    size_t bytes = dtype == "F32" ? 4 : 1;
    for (const int64_t size : spec.shape) bytes *= static_cast<size_t>(size);
    header[spec.name] = {
        {"dtype", dtype}, {"shape", spec.shape}, {"data_offsets", {end, end + bytes}}};
    end += bytes;
  }
  std::string numbers(end, '\0');
  numbers.back() = last_byte;
  WriteFile(dir / "model.safetensors", Safetensors(header.dump(), numbers));
  auto checkpoint = Checkpoint::Open(dir.path());
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  return *std::move(checkpoint);
}

std::string Complaint(const ModelConfig& config, const Checkpoint& checkpoint) {
  return std::string(CheckWeights(config, checkpoint).message());
}

TEST(ExpectedWeights, CountBiasesAndTheOutputHead) {
  ModelConfig config = SmallConfig();
  EXPECT_EQ(ExpectedWeights(config).size(), 9u + 3);
  config.tie_word_embeddings = true;
  EXPECT_EQ(ExpectedWeights(config).size(), 9u + 2);
  config.qkv_bias = true;
  EXPECT_EQ(ExpectedWeights(config).size(), 12u + 2);
  config.o_bias = config.mlp_bias = true;
  EXPECT_EQ(ExpectedWeights(config).size(), 16u + 2);
}

TEST(CheckWeights, AcceptsExactlyTheTensorsOfTheModel) {
  TemporaryFolder dir;
  const ModelConfig config = SmallConfig();
  std::vector<WeightSpec> specs = ExpectedWeights(config);
  EXPECT_EQ(Complaint(config, Write(dir, specs)), "");
  specs.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", {4}});
  EXPECT_EQ(Complaint(config, Write(dir, specs)), "") << "harmless";
  specs.push_back({"model.layers.0.self_attn.q_proj.bias", {16}});
  EXPECT_THAT(Complaint(config, Write(dir, specs)),
              HasSubstr("not part of this model: model.layers.0.self_attn.q_proj.bias"));
}

TEST(CheckWeights, NamesWhatIsMissing) {
  TemporaryFolder dir;
  const ModelConfig config = SmallConfig();
  std::vector<WeightSpec> specs = ExpectedWeights(config);
  std::erase_if(specs, [](const WeightSpec& spec) { return spec.name == "model.norm.weight"; });
  EXPECT_THAT(Complaint(config, Write(dir, specs)), HasSubstr("missing: model.norm.weight"));
  EXPECT_THAT(Complaint(config, Write(dir, {})), HasSubstr("and 7 more"));
}

TEST(CheckWeights, NamesExpectedAndFoundShapes) {
  TemporaryFolder dir;
  const ModelConfig config = SmallConfig();
  std::vector<WeightSpec> specs = ExpectedWeights(config);
  specs[2].shape = {8, 16};
  EXPECT_THAT(Complaint(config, Write(dir, specs)),
              HasSubstr("q_proj.weight has the shape [8, 16], config.json asks for [16, 8]"));
}

TEST(CheckWeights, RefusesDtypesThatAreNoWeights) {
  TemporaryFolder dir;
  const ModelConfig config = SmallConfig();
  EXPECT_THAT(Complaint(config, Write(dir, ExpectedWeights(config), "I8")),
              HasSubstr("has dtype I8"));
}

TEST(CheckWeights, FindsATiedEmbeddingUnderEitherName) {
  TemporaryFolder dir;
  ModelConfig config = SmallConfig();
  std::vector<WeightSpec> specs = ExpectedWeights(config);  // with lm_head.weight
  specs.erase(specs.begin());
  const Checkpoint checkpoint = Write(dir, specs);
  EXPECT_THAT(Complaint(config, checkpoint), HasSubstr("model.embed_tokens.weight"));
  config.tie_word_embeddings = true;
  EXPECT_EQ(Complaint(config, checkpoint), "");
  EXPECT_EQ(FindWeight(config, checkpoint, "model.embed_tokens.weight")->data,
            checkpoint.Find("lm_head.weight")->data);
  EXPECT_EQ(FindWeight(config, checkpoint, "model.x").status().code(), absl::StatusCode::kNotFound);
}

TEST(CheckWeights, AHeadBesideTiedEmbeddingsHasTheirShapeAndMayBeAnother) {
  TemporaryFolder dir;
  ModelConfig config = SmallConfig();
  std::vector<WeightSpec> specs = ExpectedWeights(config);             // with lm_head.weight
  EXPECT_FALSE(HasHeadOfItsOwn(config, Write(dir, specs, "F32", 1)));  // as it should be
  config.tie_word_embeddings = true;
  EXPECT_EQ(Complaint(config, Write(dir, specs)), "");
  EXPECT_FALSE(HasHeadOfItsOwn(config, Write(dir, specs)));
  EXPECT_TRUE(HasHeadOfItsOwn(config, Write(dir, specs, "F32", 1)));
  specs.back().shape[0] += 1;
  EXPECT_THAT(Complaint(config, Write(dir, specs)),
              AllOf(HasSubstr("lm_head.weight has the shape ["), HasSubstr("tie_word_embeddings")));
}

void ExpectLoads(const std::filesystem::path& dir) {
  const auto config = LoadModelConfig(dir);
  ASSERT_TRUE(config.ok()) << config.status();
  const auto checkpoint = Checkpoint::Open(dir);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const absl::Status status = CheckWeights(*config, *checkpoint);
  EXPECT_TRUE(status.ok()) << status;
  for (const WeightSpec& spec : ExpectedWeights(*config)) {
    const auto tensor = FindWeight(*config, *checkpoint, spec.name);
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    std::vector<float> numbers(tensor->num_elements());
    EXPECT_TRUE(ConvertToF32(spec.name, *tensor, absl::MakeSpan(numbers)).ok()) << spec.name;
  }
}

TEST(CheckWeights, AcceptsTheBundledModel) {
  ExpectLoads(std::filesystem::path(ZIGGURAT_SOURCE_DIR) / "models" / "needle-llama");
}

class SharedModels : public ::testing::TestWithParam<const char*> {};

TEST_P(SharedModels, Load) {
  const std::filesystem::path dir = SharedPath(std::string("models/") + GetParam());
  if (dir.empty()) GTEST_SKIP() << "../shared/models/" << GetParam() << " is not there";
  ExpectLoads(dir);
}

INSTANTIATE_TEST_SUITE_P(CheckWeights, SharedModels,
                         ::testing::Values("needle-llama", "stories260K", "tinystories-656k",
                                           "templategpt-1m"));

}  // namespace
}  // namespace ziggurat

// A tiny random model in a folder of its own, and sequences on it.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/model/decoder_harness.h"
#include "tests/model/plain_llama.h"
#include "tests/support/files.h"

namespace ziggurat::testing {

inline constexpr char kConfig[] = R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",
  "hidden_size":64,"intermediate_size":90,"num_hidden_layers":3,"num_attention_heads":4,
  "num_key_value_heads":2,"head_dim":16,"vocab_size":200,"max_position_embeddings":128,
  "rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":false})";

/// Batches change the order in which a product's rows are blocked, never the sums of a row by more
/// than rounding.
inline constexpr double kRounding = 2e-6;

class DecoderTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TemporaryFolder>();
    dir_ = folder_->path();
    WriteTinyModel(dir_, kConfig, 11);
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static DecoderOptions F32(int chunk_tokens = 16) {
    return {.element = ElementType::kF32,
            .threads = 1,
            .max_prefill_tokens = 160,
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

  inline static std::unique_ptr<TemporaryFolder> folder_;
  inline static std::filesystem::path dir_;
};

/// Layers 0 and 1 share keys in the one head, 1 and 2 in the other.
inline std::shared_ptr<const PodGroups> Groups() {
  auto groups = std::make_shared<PodGroups>();
  groups->name = "some";
  groups->num_layers = 3;
  groups->num_kv_heads = 2;
  groups->lowest = {0, 0, 0, 1, 2, 1};
  return groups;
}

}  // namespace ziggurat::testing

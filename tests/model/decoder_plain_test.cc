// The decoder against a plain model in double, on random models of every kind of shape; and what
// policies keep, against a plain computation that masks everything else.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <random>
#include <set>

#include "tests/model/decoder_harness.h"
#include "tests/model/plain_llama.h"

namespace ziggurat::testing {
namespace {

constexpr double kTolerance = 1e-5;

struct TinyModel {
  const char* name;
  const char* config;
};
void PrintTo(const TinyModel& model, std::ostream* out) { *out << model.name; }

const TinyModel kModels[] = {
    {"LlamaGrouped", R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",
      "hidden_size":48,"intermediate_size":100,"num_hidden_layers":3,"num_attention_heads":6,
      "num_key_value_heads":2,"head_dim":16,"vocab_size":97,"max_position_embeddings":256,
      "rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":false})"},
    {"LlamaTied", R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",
      "hidden_size":32,"intermediate_size":64,"num_hidden_layers":2,"num_attention_heads":4,
      "num_key_value_heads":4,"vocab_size":80,"max_position_embeddings":256,
      "rms_norm_eps":1e-6,"rope_theta":10000.0,"tie_word_embeddings":true})"},
    {"LlamaBiasesOddSizes", R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",
      "hidden_size":40,"intermediate_size":85,"num_hidden_layers":2,"num_attention_heads":2,
      "num_key_value_heads":1,"head_dim":24,"vocab_size":101,"max_position_embeddings":256,
      "attention_bias":true,"mlp_bias":true,
      "rms_norm_eps":1e-6,"rope_theta":500000.0,"tie_word_embeddings":false})"},
    {"Llama31Rope", R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",
      "hidden_size":64,"intermediate_size":96,"num_hidden_layers":2,"num_attention_heads":2,
      "num_key_value_heads":1,"head_dim":32,"vocab_size":64,"max_position_embeddings":512,
      "rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,
      "high_freq_factor":4.0,"original_max_position_embeddings":64},
      "rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":false})"},
    {"Qwen2", R"({"architectures":["Qwen2ForCausalLM"],"model_type":"qwen2",
      "hidden_size":56,"intermediate_size":120,"num_hidden_layers":2,"num_attention_heads":7,
      "num_key_value_heads":1,"vocab_size":90,"max_position_embeddings":256,
      "rms_norm_eps":1e-6,"rope_theta":1000000.0,"tie_word_embeddings":true,
      "use_sliding_window":false})"},
    {"Mistral", R"({"architectures":["MistralForCausalLM"],"model_type":"mistral",
      "hidden_size":64,"intermediate_size":112,"num_hidden_layers":2,"num_attention_heads":4,
      "num_key_value_heads":2,"vocab_size":70,"max_position_embeddings":256,
      "sliding_window":null,"rms_norm_eps":1e-5,"rope_theta":10000.0,
      "tie_word_embeddings":false})"},
};

std::filesystem::path TinyDir(const TinyModel& model) {
  const std::filesystem::path dir =
      std::filesystem::path(::testing::TempDir()) /
      ("ziggurat-plain-" + std::string(model.name) + "-" + std::to_string(getpid()));
  if (!std::filesystem::exists(dir)) WriteTinyModel(dir, model.config, 7);
  return dir;
}

std::vector<int32_t> RandomIds(int count, int vocab, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % vocab);
  return ids;
}

std::vector<int32_t> Head(const std::vector<int32_t>& ids, int count) {
  return {ids.begin(), ids.begin() + count};
}

class DecoderAgainstPlain : public ::testing::TestWithParam<TinyModel> {
 protected:
  void SetUp() override { dir_ = TinyDir(GetParam()); }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  /// Prefills the first `prompt` of `ids` under `policy`, then decodes the others one by one.
  std::vector<Logits> Run(DecoderHarness& harness, const std::string& policy,
                          const std::vector<int32_t>& ids, int prompt) {
    TestSequence sequence =
        harness.NewSequence(policy, prompt, static_cast<int>(ids.size()) - prompt + 1);
    std::vector<Logits> logits = harness.Prefill({&sequence}, {Head(ids, prompt)});
    for (size_t i = prompt; i < ids.size(); ++i) {
      logits.push_back(harness.Decode({&sequence}, {ids[i]})[0]);
    }
    EXPECT_TRUE(sequence.cache->CheckIntegrity().ok());
    return logits;
  }

  /// Runs `policy` with every backend and compares with rows prompt - 1, prompt, ... of `expected`.
  void ExpectRows(const std::string& policy, const std::vector<int32_t>& ids, int prompt,
                  const std::vector<Logits>& expected) {
    for (const std::string& backend : BackendNames()) {
      DecoderHarness harness(
          dir_, {.element = ElementType::kF32, .max_prefill_tokens = 256, .chunk_tokens = 16},
          MakeBackend(backend, 1), 1 << 22);
      const std::vector<Logits> logits = Run(harness, policy, ids, prompt);
      for (size_t i = 0; i < logits.size(); ++i) {
        EXPECT_LE(RelativeDifference(logits[i], expected[prompt - 1 + i]), kTolerance)
            << backend << ", " << policy << ", step " << i;
      }
    }
  }

  std::filesystem::path dir_;
};

TEST_P(DecoderAgainstPlain, PrefillAndDecodeGiveTheLogitsOfThePlainModel) {
  const PlainLlama plain(dir_);
  const auto ids = RandomIds(75, plain.config().vocab_size, 1);
  ExpectRows("full", ids, 61, plain.Forward(ids));
}

TEST_P(DecoderAgainstPlain, StreamingAttendsToSinksAndRecentTokensOnly) {
  constexpr int kSinks = 3, kRecent = 20;
  const PlainLlama plain(dir_);
  const auto ids = RandomIds(75, plain.config().vocab_size, 2);
  const auto expected = plain.Forward(ids, 50, nullptr, [](int, int, int query, int key) {
    return key < kSinks || key > query - kRecent;
  });
  ExpectRows("streaming(sinks=3,recent=20)", ids, 50, expected);
}

TEST_P(DecoderAgainstPlain, SnapKvAttendsToTheBestByWindowScoresAndWhatFollows) {
  constexpr int kPrompt = 60, kBudget = 20, kWindow = 6, kKernel = 3;
  const PlainLlama plain(dir_);
  const auto ids = RandomIds(70, plain.config().vocab_size, 3);
  const int group = plain.config().num_q_heads / plain.config().num_kv_heads;
  std::vector<std::vector<std::set<int>>> kept(plain.config().num_layers);  // [layer][KV head]

  const auto select = [&](int layer, const PlainLlama::Probabilities& attention) {
    kept[layer].resize(plain.config().num_kv_heads);
    for (int g = 0; g < plain.config().num_kv_heads; ++g) {
      const int candidates = kPrompt - kWindow;
      std::vector<double> scores(candidates, 0.0), pooled(candidates, 0.0);
      for (int h = g * group; h < (g + 1) * group; ++h) {
        for (int i = candidates; i < kPrompt; ++i) {
          for (int j = 0; j < candidates; ++j) scores[j] += attention[h][i][j] / (group * kWindow);
        }
      }
      for (int j = 0; j < candidates; ++j) {
        for (int o = j - kKernel / 2; o <= j + kKernel / 2; ++o) {
          if (o >= 0 && o < candidates) pooled[j] += scores[o] / kKernel;
        }
      }
      std::vector<int> order(candidates);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int a, int b) { return pooled[a] > pooled[b]; });
      kept[layer][g].insert(order.begin(), order.begin() + (kBudget - kWindow));
    }
  };
  const auto expected = plain.Forward(ids, kPrompt, select, [&](int layer, int head, int, int key) {
    return key >= kPrompt - kWindow || kept[layer][head].count(key) > 0;
  });
  ExpectRows("snapkv(budget=20,window=6,kernel=3,pool=avg)", ids, kPrompt, expected);
}

TEST_P(DecoderAgainstPlain, PoliciesThatKeepEverythingEqualFull) {
  const PlainLlama plain(dir_);
  const auto ids = RandomIds(40, plain.config().vocab_size, 4);
  const auto expected = plain.Forward(ids);
  ExpectRows("pyramidkv(budget=200,window=8)", ids, 30, expected);
  ExpectRows("streaming(sinks=4,recent=100)", ids, 30, expected);
}

INSTANTIATE_TEST_SUITE_P(Tiny, DecoderAgainstPlain, ::testing::ValuesIn(kModels),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace ziggurat::testing

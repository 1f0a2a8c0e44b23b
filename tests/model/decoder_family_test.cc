// Checkpoints of Qwen2 and Mistral as they are published. What is in them stands here, and not in
// the library's list of weights or what it reads of config.json: a bias or a size that these forget
// changes the logits.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/model/decoder_harness.h"
#include "tests/model/plain_llama.h"
#include "tests/support/files.h"

namespace ziggurat::testing {
namespace {

std::vector<WeightSpec> Weights(const ModelConfig& model, bool has_biases) {
  const int64_t hidden = model.hidden_size, mlp = model.intermediate_size;
  const int64_t q = int64_t{model.num_q_heads} * model.head_dim;
  const int64_t kv = int64_t{model.num_kv_heads} * model.head_dim;
  std::vector<WeightSpec> weights = {{"model.embed_tokens.weight", {model.vocab_size, hidden}},
                                     {"model.norm.weight", {hidden}}};
  if (!model.tie_word_embeddings) weights.push_back({"lm_head.weight", {model.vocab_size, hidden}});
  std::vector<WeightSpec> of_layer = {
      {"input_layernorm.weight", {hidden}},      {"post_attention_layernorm.weight", {hidden}},
      {"self_attn.q_proj.weight", {q, hidden}},  {"self_attn.k_proj.weight", {kv, hidden}},
      {"self_attn.v_proj.weight", {kv, hidden}}, {"self_attn.o_proj.weight", {hidden, q}},
      {"mlp.gate_proj.weight", {mlp, hidden}},   {"mlp.up_proj.weight", {mlp, hidden}},
      {"mlp.down_proj.weight", {hidden, mlp}}};
  if (has_biases) {
    of_layer.push_back({"self_attn.q_proj.bias", {q}});
    of_layer.push_back({"self_attn.k_proj.bias", {kv}});
    of_layer.push_back({"self_attn.v_proj.bias", {kv}});
  }
  for (int layer = 0; layer < model.num_layers; ++layer) {
    for (const WeightSpec& weight : of_layer) {
      weights.push_back({absl::StrCat("model.layers.", layer, ".", weight.name), weight.shape});
    }
  }
  return weights;
}

void ExpectLogitsOfThePlainModel(const ModelConfig& model, bool has_biases, const char* config) {
  const TemporaryFolder folder;
  const std::filesystem::path& dir = folder.path();
  WriteTinyModel(dir, config, Weights(model, has_biases), 3);
  const std::vector<int32_t> prompt = {5, 0, 17, 39, 2, 2, 31, 8, 23, 11, 4}, rest = {7, 30, 12};
  std::vector<int32_t> ids = prompt;
  ids.insert(ids.end(), rest.begin(), rest.end());
  const std::vector<Logits> expected = PlainLlama(model, dir).Forward(ids);

  DecoderHarness harness(dir, {.element = ElementType::kF32, .max_prefill_tokens = 64},
                         MakeBestBackend(1), 1 << 22);
  EXPECT_EQ(harness.shape().max_context_tokens, model.max_position_embeddings);
  const int length = static_cast<int>(prompt.size());
  TestSequence sequence = harness.NewSequence("full", length, 4);
  std::vector<Logits> logits = harness.Prefill({&sequence}, {prompt});
  for (const int32_t id : rest) logits.push_back(harness.Decode({&sequence}, {id})[0]);
  for (size_t i = 0; i < logits.size(); ++i) {
    EXPECT_LE(RelativeDifference(logits[i], expected[prompt.size() - 1 + i]), 1e-5) << "step " << i;
  }
}

TEST(DecoderFamily, Qwen2HasBiasesThatItsConfigDoesNotName) {
  ModelConfig model;
  model.num_layers = 2;
  model.hidden_size = 32;
  model.intermediate_size = 44;
  model.num_q_heads = 4;
  model.num_kv_heads = 2;
  model.head_dim = 8;
  model.vocab_size = 40;
  model.max_position_embeddings = 64;
  model.rms_norm_eps = 0.01;
  model.rope_theta = 1e6;
  model.tie_word_embeddings = true;
  ExpectLogitsOfThePlainModel(model, /*has_biases=*/true, R"({
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 32, "initializer_range": 0.02,
    "intermediate_size": 44, "max_position_embeddings": 64, "max_window_layers": 2,
    "model_type": "qwen2", "num_attention_heads": 4, "num_hidden_layers": 2,
    "num_key_value_heads": 2, "rms_norm_eps": 0.01, "rope_theta": 1000000.0, "sliding_window": 32,
    "tie_word_embeddings": true, "torch_dtype": "float32", "use_cache": true,
    "use_sliding_window": false, "vocab_size": 40})");
}

TEST(DecoderFamily, MistralHasHeadsOfASizeOfTheirOwn) {
  ModelConfig model;
  model.num_layers = 2;
  model.hidden_size = 40;
  model.intermediate_size = 56;
  model.num_q_heads = 5;
  model.num_kv_heads = 1;
  model.head_dim = 16;
  model.vocab_size = 40;
  model.max_position_embeddings = 64;
  model.rms_norm_eps = 0.01;
  model.rope_theta = 1e6;
  ExpectLogitsOfThePlainModel(model, /*has_biases=*/false, R"({
    "architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
    "eos_token_id": 2, "head_dim": 16, "hidden_act": "silu", "hidden_size": 40,
    "initializer_range": 0.02, "intermediate_size": 56, "max_position_embeddings": 64,
    "model_type": "mistral", "num_attention_heads": 5, "num_hidden_layers": 2,
    "num_key_value_heads": 1, "rms_norm_eps": 0.01, "rope_theta": 1000000.0,
    "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "float32",
    "use_cache": true, "vocab_size": 40})");
}

TEST(DecoderFamily, AHeadThatIsNotTheEmbeddingCountsThoughTheyAreSaidToBeTied) {
  constexpr char kTied[] = R"({
    "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 44,
    "max_position_embeddings": 64, "model_type": "llama", "num_attention_heads": 2,
    "num_hidden_layers": 1, "num_key_value_heads": 1, "rms_norm_eps": 0.01, "rope_theta": 10000.0,
    "tie_word_embeddings": true, "vocab_size": 40})";
  ModelConfig model = ParseModelConfig(kTied, "config.json").value();
  model.tie_word_embeddings = false;
  ExpectLogitsOfThePlainModel(model, /*has_biases=*/false, kTied);
}

}  // namespace
}  // namespace ziggurat::testing

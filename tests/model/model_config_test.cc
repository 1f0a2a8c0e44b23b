#include "model/checkpoint/model_config.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/model/checkpoint_files.h"

namespace ziggurat {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

json Llama() {
  return json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 320, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "eos_token_id": 2})");
}

json Of(const char* class_name, const char* model_type) {
  json config = Llama();
  config["architectures"] = json::array({class_name});
  config["model_type"] = model_type;
  return config;
}

absl::StatusOr<ModelConfig> Parse(const json& config) {
  return ParseModelConfig(config.dump(), "dir/config.json");
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(ModelConfig, ReadsALlama) {
  const auto config = Parse(Llama());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, Architecture::kLlama);
  EXPECT_EQ(config->num_layers, 2);
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->kv_size(), 32);
  EXPECT_FALSE(config->qkv_bias || config->o_bias || config->mlp_bias);
  EXPECT_FALSE(config->tie_word_embeddings);
  EXPECT_THAT(config->eos_token_ids, ElementsAre(2));
  EXPECT_EQ(config->MaxContextTokens(), 512);
  EXPECT_TRUE(CheckSupported(*config).ok());
}

TEST(ModelConfig, AbsentFieldsGetTheDefaultsOfTransformers) {
  json llama = Llama();
  for (const char* key : {"num_key_value_heads", "max_position_embeddings", "rms_norm_eps",
                          "rope_theta", "hidden_act", "eos_token_id"}) {
    llama.erase(key);
  }
  const auto config = Parse(llama);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->num_kv_heads, 4);
  EXPECT_EQ(config->max_position_embeddings, 2048);
  EXPECT_EQ(config->rms_norm_eps, 1e-6);
  EXPECT_EQ(config->rope_theta, 10000);
  EXPECT_TRUE(config->eos_token_ids.empty());

  json mistral = Of("MistralForCausalLM", "mistral");
  mistral.erase("num_key_value_heads");
  mistral["num_attention_heads"] = 16;
  EXPECT_EQ(Parse(mistral)->num_kv_heads, 8);
  mistral["num_key_value_heads"] = nullptr;
  EXPECT_EQ(Parse(mistral)->num_kv_heads, 16);
  mistral["sliding_window"] = nullptr;
  mistral.erase("max_position_embeddings");
  EXPECT_EQ(Parse(mistral)->max_position_embeddings, 131072);

  json qwen = Of("Qwen2ForCausalLM", "qwen2");
  qwen["hidden_size"] = 512;
  qwen["num_attention_heads"] = 64;
  qwen.erase("num_key_value_heads");
  qwen.erase("max_position_embeddings");
  EXPECT_EQ(Parse(qwen)->num_kv_heads, 32);
  EXPECT_EQ(Parse(qwen)->max_position_embeddings, 32768);
}

TEST(ModelConfig, HeadDimNeedNotBeHiddenSizeOverHeads) {
  json llama = Llama();
  llama["head_dim"] = 32;
  EXPECT_EQ(Parse(llama)->q_size(), 128);
  llama["head_dim"] = nullptr;
  EXPECT_EQ(Parse(llama)->head_dim, 16);
}

TEST(ModelConfig, BiasesFollowTheArchitecture) {
  json llama = Llama();
  llama["attention_bias"] = true;
  EXPECT_TRUE(Parse(llama)->qkv_bias && Parse(llama)->o_bias && !Parse(llama)->mlp_bias);
  llama["mlp_bias"] = true;
  EXPECT_TRUE(Parse(llama)->mlp_bias);
  const auto qwen = Parse(Of("Qwen2ForCausalLM", "qwen2"));
  EXPECT_TRUE(qwen->qkv_bias && !qwen->o_bias && !qwen->mlp_bias);
  json mistral = Of("MistralForCausalLM", "mistral");
  mistral["sliding_window"] = nullptr;
  EXPECT_FALSE(Parse(mistral)->qkv_bias);
  mistral["attention_bias"] = true;
  EXPECT_THAT(Message(Parse(mistral).status()), HasSubstr("attention_bias"));
  mistral.erase("attention_bias");
  for (json config : {mistral, Of("Qwen2ForCausalLM", "qwen2")}) {
    config["mlp_bias"] = true;
    EXPECT_EQ(Parse(config).status().code(), absl::StatusCode::kUnimplemented) << config;
    EXPECT_THAT(Message(Parse(config).status()), HasSubstr("\"mlp_bias\" is true"));
    config["mlp_bias"] = false;
    EXPECT_TRUE(Parse(config).ok()) << config;
  }
}

TEST(ModelConfig, ASlidingWindowLimitsTheContext) {
  json mistral = Of("MistralForCausalLM", "mistral");
  mistral["max_position_embeddings"] = 32768;
  EXPECT_EQ(Parse(mistral)->MaxContextTokens(), 4096) << "the default of the class slides";
  mistral["sliding_window"] = 1000;
  EXPECT_EQ(Parse(mistral)->MaxContextTokens(), 1000);
  EXPECT_THAT(Parse(mistral)->Describe(), HasSubstr("context 1000 (limited from 32768"));
  mistral["sliding_window"] = nullptr;
  EXPECT_EQ(Parse(mistral)->MaxContextTokens(), 32768);
  mistral["sliding_window"] = 40000;
  EXPECT_EQ(Parse(mistral)->MaxContextTokens(), 32768);

  json qwen = Of("Qwen2ForCausalLM", "qwen2");
  qwen["sliding_window"] = 256;
  EXPECT_EQ(Parse(qwen)->MaxContextTokens(), 512) << "not in use";
  qwen["use_sliding_window"] = true;
  EXPECT_EQ(Parse(qwen)->MaxContextTokens(), 512) << "layers slide from the 28th on";
  qwen["max_window_layers"] = 1;
  EXPECT_EQ(Parse(qwen)->MaxContextTokens(), 256);
  qwen["max_window_layers"] = Parse(qwen)->num_layers;
  EXPECT_EQ(Parse(qwen)->MaxContextTokens(), 512) << "no layer slides";
  qwen["layer_types"] = {"full_attention", "sliding_attention"};
  EXPECT_EQ(Parse(qwen)->MaxContextTokens(), 256) << "the list is what counts";
  qwen["max_window_layers"] = 0;
  qwen["layer_types"] = {"full_attention", "full_attention"};
  EXPECT_EQ(Parse(qwen)->MaxContextTokens(), 512);

  json llama = Llama();
  llama["sliding_window"] = 256;
  EXPECT_EQ(Parse(llama).status().code(), absl::StatusCode::kUnimplemented);
  llama["use_sliding_window"] = false;
  EXPECT_EQ(Parse(llama)->MaxContextTokens(), 512) << "left over";
  llama.erase("use_sliding_window");
  llama["sliding_window"] = 512;
  EXPECT_EQ(Parse(llama)->MaxContextTokens(), 512) << "it never slides";
  llama.erase("sliding_window");
  llama["use_sliding_window"] = true;
  EXPECT_EQ(Parse(llama).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(Message(Parse(llama).status()), HasSubstr("\"use_sliding_window\" is true"));
}

TEST(ModelConfig, LinearRopeMakesTheContextLonger) {
  json llama = Llama();
  llama["rope_scaling"] = {{"type", "linear"}, {"factor", 2.5}};
  EXPECT_EQ(Parse(llama)->MaxContextTokens(), 1280);
  EXPECT_THAT(Parse(llama)->Describe(), HasSubstr("context 1280 (512 by the factor"));
  llama["rope_scaling"]["factor"] = 1e6;
  EXPECT_EQ(Parse(llama)->MaxContextTokens(), 1 << 24);
}

TEST(ModelConfig, TokensThatTheVocabularyLacksAreLeftOut) {
  json llama = Llama();
  llama["eos_token_id"] = {2, 320, 128001};
  llama["bos_token_id"] = 128000;
  EXPECT_THAT(Parse(llama)->eos_token_ids, ElementsAre(2));
}

TEST(ModelConfig, AContextHoldsAPromptAndWhatFollowsIt) {
  json config = Of("MistralForCausalLM", "mistral");
  config["sliding_window"] = 1;
  EXPECT_EQ(Message(Parse(config).status()),
            "dir/config.json: \"sliding_window\" is 1; must be an integer in [2, 16777216]");
  config["sliding_window"] = 2;
  config["max_position_embeddings"] = 2;
  EXPECT_EQ(Parse(config)->MaxContextTokens(), 2);
}

TEST(ModelConfig, ReadsEverySpellingOfRope) {
  const json llama3 = {{"factor", 32.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}};
  json with_rope_type = llama3;
  with_rope_type["rope_type"] = "llama3";
  json config = Llama();
  config["rope_scaling"] = with_rope_type;
  const auto old_spelling = Parse(config);
  ASSERT_TRUE(old_spelling.ok()) << old_spelling.status();
  EXPECT_EQ(old_spelling->rope_scaling.kind, RopeScaling::Kind::kLlama3);
  EXPECT_EQ(old_spelling->rope_scaling.original_max_position_embeddings, 8192);

  config = Llama();
  config.erase("rope_theta");
  config["rope_parameters"] = with_rope_type;
  config["rope_parameters"]["rope_theta"] = 500000.0;
  const auto new_spelling = Parse(config);
  ASSERT_TRUE(new_spelling.ok()) << new_spelling.status();
  EXPECT_EQ(new_spelling->rope_scaling, old_spelling->rope_scaling);
  EXPECT_EQ(new_spelling->rope_theta, 500000);

  config = Llama();
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
  EXPECT_EQ(Parse(config)->rope_scaling.kind, RopeScaling::Kind::kLinear);
  config["rope_parameters"] = {{"rope_type", "default"}};
  EXPECT_THAT(Message(Parse(config).status()), HasSubstr("contradicts"));
}

TEST(ModelConfig, ReadsEverySpellingOfDtype) {
  json config = Llama();
  config["torch_dtype"] = "bfloat16";
  EXPECT_EQ(Parse(config)->dtype, "bfloat16");
  config.erase("torch_dtype");
  config["dtype"] = "float32";
  EXPECT_EQ(Parse(config)->dtype, "float32");
  config["torch_dtype"] = "bfloat16";
  EXPECT_EQ(Parse(config)->dtype, "float32") << "the newer spelling wins";
}

TEST(ModelConfig, RefusesKindsOfRopeByName) {
  for (const char* kind : {"yarn", "longrope", "su", "mrope"}) {
    json config = Llama();
    config["rope_scaling"] = {{"rope_type", kind}, {"factor", 4.0}};
    const auto parsed = Parse(config);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kUnimplemented) << kind;
    EXPECT_THAT(Message(parsed.status()), HasSubstr(kind));
  }
}

TEST(ModelConfig, DynamicRopeIsUnscaledWithinTheModelsPositions) {
  json config = Llama();
  const int positions = Parse(config)->MaxContextTokens();
  config["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 4.0}};
  const auto parsed = Parse(config);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->rope_scaling.kind, RopeScaling::Kind::kNone);
  EXPECT_EQ(parsed->MaxContextTokens(), positions);
  config["rope_scaling"]["factor"] = 0.5;
  EXPECT_THAT(Message(Parse(config).status()), HasSubstr("factor"));
}

TEST(ModelConfig, RefusesTwoTypesOfRopeThatContradict) {
  for (const char* where : {"rope_scaling", "rope_parameters"}) {
    json config = Llama();
    config[where] = {{"rope_type", "default"}, {"type", "linear"}, {"factor", 4.0}};
    EXPECT_EQ(Parse(config).status(),
              absl::InvalidArgumentError(std::string("dir/config.json: ") + where +
                                         ": \"type\" is \"linear\"; contradicts \"rope_type\" "
                                         "(default)"));
    config[where] = {{"rope_type", "linear"}, {"type", "linear"}, {"factor", 4.0}};
    EXPECT_EQ(Parse(config)->rope_scaling.kind, RopeScaling::Kind::kLinear);
    config[where]["type"] = 3;
    EXPECT_THAT(Message(Parse(config).status()), HasSubstr("\"type\" is 3; must be a string"));
  }
}

TEST(ModelConfig, RefusesTwoBasesOfRopeThatContradict) {
  for (const char* where : {"rope_scaling", "rope_parameters"}) {
    json config = Llama();
    config[where] = {{"rope_type", "default"}, {"rope_theta", 500000.0}};
    EXPECT_EQ(Parse(config).status().code(), absl::StatusCode::kInvalidArgument) << where;
    EXPECT_THAT(Message(Parse(config).status()),
                HasSubstr(std::string("contradicts the one in \"") + where + "\" (500000)"));
    config["rope_theta"] = 500000.0;
    EXPECT_EQ(Parse(config)->rope_theta, 500000) << where;
  }
}

TEST(ModelConfig, RefusesHeadsThatRopeTurnsInPartOnly) {
  json config = Llama();
  config["partial_rotary_factor"] = 0.5;
  EXPECT_EQ(Parse(config).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(Message(Parse(config).status()), HasSubstr("\"partial_rotary_factor\" is 0.5"));
  config["partial_rotary_factor"] = 1.0;
  EXPECT_TRUE(Parse(config).ok());
}

TEST(ModelConfig, RefusesScalingOfRopeWithoutAType) {
  for (const char* where : {"rope_scaling", "rope_parameters"}) {
    for (const char* scaling : {R"({"factor": 4.0})", R"({"type": null, "factor": 4.0})",
                                R"({"rope_type": null, "rope_theta": 10000.0, "factor": 4.0})"}) {
      json config = Llama();
      config[where] = json::parse(scaling);
      const absl::Status status = Parse(config).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << scaling;
      EXPECT_EQ(Message(status), std::string("dir/config.json: ") + where +
                                     ": \"rope_type\" is missing; must be default, linear, dynamic "
                                     "or llama3 where there is "
                                     "\"factor\"");
    }
    json config = Llama();
    config[where] = json::parse(R"({"full_attention": {"rope_type": "linear", "factor": 4.0}})");
    const absl::Status status = Parse(config).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(Message(status), HasSubstr(std::string(where) + ": \"full_attention\" is"));
    EXPECT_THAT(Message(status), HasSubstr("for each type of layer"));

    for (const char* plain :
         {"{}", R"({"rope_theta": 10000.0})", R"({"type": null, "factor": null})"}) {
      config[where] = json::parse(plain);
      EXPECT_EQ(Parse(config)->rope_scaling.kind, RopeScaling::Kind::kNone) << plain;
    }
  }
}

TEST(ModelConfig, RefusesOtherArchitecturesByName) {
  for (const char* name : {"GPT2LMHeadModel", "MixtralForCausalLM", "Qwen3ForCausalLM"}) {
    const auto parsed = Parse(Of(name, "x"));
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(Message(parsed.status()), HasSubstr(name));
  }
  json nameless = Llama();
  nameless.erase("architectures");
  EXPECT_TRUE(Parse(nameless).ok()) << "model_type says it as well";
  nameless.erase("model_type");
  EXPECT_FALSE(Parse(nameless).ok());
  EXPECT_FALSE(Parse(Of("LlamaForCausalLM", "llava")).ok());
}

TEST(ModelConfig, RefusesOtherActivations) {
  json config = Llama();
  config["hidden_act"] = "gelu";
  EXPECT_THAT(Message(Parse(config).status()), HasSubstr("\"hidden_act\" is \"gelu\""));
  config["hidden_act"] = "swish";
  EXPECT_TRUE(Parse(config).ok()) << "another name of silu";
}

struct WrongField {
  const char* key;
  const char* value;  // JSON
};

class WrongFields : public ::testing::TestWithParam<WrongField> {};

TEST_P(WrongFields, AreRefusedWithFileFieldAndValue) {
  json config = Llama();
  config[GetParam().key] = json::parse(GetParam().value);
  const auto parsed = Parse(config);
  ASSERT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << parsed.status();
  EXPECT_THAT(Message(parsed.status()), HasSubstr("dir/config.json: "));
  EXPECT_THAT(Message(parsed.status()), HasSubstr(GetParam().key));
}

INSTANTIATE_TEST_SUITE_P(
    ModelConfig, WrongFields,
    ::testing::Values(
        WrongField{"num_hidden_layers", "0"}, WrongField{"num_hidden_layers", "-3"},
        WrongField{"num_hidden_layers", "1000000000000000000000"},
        WrongField{"num_hidden_layers", "18446744073709551615"},
        WrongField{"num_hidden_layers", "2.5"}, WrongField{"num_hidden_layers", "\"2\""},
        WrongField{"num_hidden_layers", "null"}, WrongField{"num_hidden_layers", "[2]"},
        WrongField{"hidden_size", "65"}, WrongField{"hidden_size", "2000000000"},
        WrongField{"intermediate_size", "0"}, WrongField{"vocab_size", "-1"},
        WrongField{"vocab_size", "true"}, WrongField{"num_attention_heads", "0"},
        WrongField{"num_key_value_heads", "3"}, WrongField{"num_key_value_heads", "8"},
        WrongField{"head_dim", "15"}, WrongField{"head_dim", "0"},
        WrongField{"max_position_embeddings", "0"}, WrongField{"max_position_embeddings", "1"},
        WrongField{"rms_norm_eps", "\"NaN\""}, WrongField{"rms_norm_eps", "-1e-5"},
        WrongField{"rms_norm_eps", "0"}, WrongField{"rms_norm_eps", "2"},
        WrongField{"rope_theta", "0"}, WrongField{"rope_theta", "-10000"},
        WrongField{"rope_theta", "\"big\""}, WrongField{"rope_scaling", "4"},
        WrongField{"rope_scaling", "{\"type\": \"linear\"}"},
        WrongField{"rope_scaling", "{\"type\": \"linear\", \"factor\": 0}"},
        WrongField{"rope_scaling", "{\"type\": 3}"},
        WrongField{"rope_scaling",
                   "{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4,"
                   " \"high_freq_factor\": 4, \"original_max_position_embeddings\": 8192}"},
        WrongField{"tie_word_embeddings", "1"}, WrongField{"attention_bias", "\"yes\""},
        WrongField{"eos_token_id", "-2"}, WrongField{"eos_token_id", "[2, \"x\"]"},
        WrongField{"eos_token_id", "[[2]]"}, WrongField{"architectures", "\"LlamaForCausalLM\""},
        WrongField{"architectures", "[]"}, WrongField{"torch_dtype", "16"},
        WrongField{"quantization_config", "8"}));

TEST(ModelConfig, RefusesWhatIsNoJsonObject) {
  for (const char* text : {"", "{", "[]", "null", "{\"rms_norm_eps\": NaN}", "\xff\xfe",
                           "{\"rms_norm_eps\": 1e999}"}) {
    const auto parsed = ParseModelConfig(text, "dir/config.json");
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(Message(parsed.status()), HasSubstr("dir/config.json"));
  }
}

TEST(ModelConfig, RefusesWhatStandsBehindANul) {
  const auto parsed = ParseModelConfig(std::string("{}\0{", 4), "dir/config.json");
  EXPECT_THAT(Message(parsed.status()),
              HasSubstr("dir/config.json: not valid JSON: byte 3 is NUL"));
}

TEST(ModelConfig, RefusesWhatNestsDeeply) {
  const std::string brackets(1'000'000, '[');
  const std::string text = "{\"eos_token_id\": " + brackets + std::string(1'000'000, ']') + "}";
  const auto parsed = ParseModelConfig(text, "dir/config.json");
  EXPECT_THAT(Message(parsed.status()), HasSubstr("nests deeper than 64"));
}

TEST(ModelConfig, PadsHeadsToWhatKernelsTakeAndRefusesLargerOnes) {
  for (const auto& [head_dim, padded] :
       {std::pair(2, 8), std::pair(8, 8), std::pair(80, 80), std::pair(100, 104),
        std::pair(250, 256), std::pair(256, 256)}) {
    json config = Llama();
    config["head_dim"] = head_dim;
    EXPECT_TRUE(CheckSupported(*Parse(config)).ok()) << head_dim;
    EXPECT_EQ(Parse(config)->padded_head_dim(), padded);
    EXPECT_EQ(Parse(config)->q_size() % head_dim, 0) << "of the checkpoint";
  }
  for (const int head_dim : {258, 264, 512}) {
    json config = Llama();
    config["head_dim"] = head_dim;
    const absl::Status status = CheckSupported(*Parse(config));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(Message(status), HasSubstr(std::to_string(head_dim)));
  }
}

TEST(ModelConfig, RefusesQuantizedWeightsByName) {
  json config = Llama();
  config["quantization_config"] = {{"quant_method", "gptq"}, {"bits", 4}};
  const auto parsed = Parse(config);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(CheckSupported(*parsed).code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(Message(CheckSupported(*parsed)), HasSubstr("gptq"));

  config["quantization_config"] = {
      {"quant_method", "bitsandbytes"}, {"load_in_8bit", false}, {"load_in_4bit", false}};
  EXPECT_TRUE(CheckSupported(*Parse(config)).ok()) << "these weights are plain";
}

TEST(ModelConfig, StopTokensOfGenerationConfigWin) {
  TemporaryFolder dir;
  json config = Llama();
  config["eos_token_id"] = {7, 2, -1};
  WriteFile(dir / "config.json", config.dump());
  EXPECT_THAT(LoadModelConfig(dir.path())->eos_token_ids, ElementsAre(2, 7));
  WriteFile(dir / "generation_config.json", R"({"eos_token_id": [300, 9]})");
  EXPECT_THAT(LoadModelConfig(dir.path())->eos_token_ids, ElementsAre(9, 300));
  WriteFile(dir / "generation_config.json", R"({"eos_token_id": 3})");
  EXPECT_THAT(LoadModelConfig(dir.path())->eos_token_ids, ElementsAre(3));
  WriteFile(dir / "generation_config.json", R"({"do_sample": true})");
  EXPECT_THAT(LoadModelConfig(dir.path())->eos_token_ids, ElementsAre(2, 7));
  WriteFile(dir / "generation_config.json", R"({"eos_token_id": [2, true]})");
  EXPECT_THAT(Message(LoadModelConfig(dir.path()).status()), HasSubstr("generation_config.json"));
}

TEST(ModelConfig, AFolderWithoutConfigIsNotFound) {
  TemporaryFolder dir;
  const auto config = LoadModelConfig(dir.path());
  EXPECT_EQ(config.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(config.status()), HasSubstr("config.json"));
}

TEST(ModelConfig, ReadsTheBundledModel) {
  const auto config =
      LoadModelConfig(std::filesystem::path(ZIGGURAT_SOURCE_DIR) / "models" / "needle-llama");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->num_layers, 8);
  EXPECT_EQ(config->head_dim, 32);
  EXPECT_THAT(config->eos_token_ids, ElementsAre(1));
}

absl::StatusOr<ModelConfig> ParseShared(const std::string& name) {
  return ParseModelConfig(ReadFile(SharedFolder() / "configs" / name), name);
}

TEST(ModelConfig, ReadsTheFamiliesInShared) {
  if (SharedPath("configs").empty()) GTEST_SKIP() << "../shared/configs is not there";
  const auto llama3 = ParseShared("llama-3-8b.json");
  ASSERT_TRUE(llama3.ok()) << llama3.status();
  EXPECT_EQ(llama3->num_kv_heads, 8);
  EXPECT_EQ(llama3->head_dim, 128);
  EXPECT_EQ(llama3->rope_theta, 500000);
  EXPECT_TRUE(CheckSupported(*llama3).ok());

  const auto mistral = ParseShared("mistral-7b-instruct-v0.3.json");
  ASSERT_TRUE(mistral.ok()) << mistral.status();
  EXPECT_EQ(mistral->architecture, Architecture::kMistral);
  EXPECT_EQ(mistral->MaxContextTokens(), 32768);
  EXPECT_EQ(mistral->head_dim, 128);

  const auto qwen = ParseShared("qwen2.5-0.5b-instruct.json");
  ASSERT_TRUE(qwen.ok()) << qwen.status();
  EXPECT_TRUE(qwen->qkv_bias && !qwen->o_bias && qwen->tie_word_embeddings);
  EXPECT_EQ(qwen->MaxContextTokens(), 32768);
  EXPECT_EQ(qwen->rms_norm_eps, 1e-6);

  const auto tinyllama = ParseShared("tinyllama-1.1b-chat-v1.0.json");
  ASSERT_TRUE(tinyllama.ok()) << tinyllama.status();
  EXPECT_EQ(tinyllama->num_layers, 22);
  EXPECT_EQ(tinyllama->dtype, "float32");
}

TEST(ModelConfig, RefusesTheQuantizedFinetuneInShared) {
  if (SharedPath("configs").empty()) GTEST_SKIP() << "../shared/configs is not there";
  const auto config = ParseShared("llama-3.2-1b-finetune.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope_scaling.kind, RopeScaling::Kind::kLlama3);
  EXPECT_EQ(config->rope_scaling.factor, 32);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_EQ(config->MaxContextTokens(), 131072);
  EXPECT_EQ(config->quantization, "bitsandbytes, 8 bits");

  TemporaryFolder dir;
  std::filesystem::copy_file(SharedPath("configs/llama-3.2-1b-finetune.json"), dir / "config.json");
  const auto loaded = LoadModelConfig(dir.path());
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(Message(loaded.status()), HasSubstr("bitsandbytes, 8 bits"));
}

TEST(RopeInverseFrequencies, ArePowersOfTheta) {
  ModelConfig config;
  config.head_dim = 8;
  config.rope_theta = 10000;
  EXPECT_THAT(RopeInverseFrequencies(config), ElementsAre(1.0f, 0.1f, 0.01f, 0.001f));
  config.rope_scaling.kind = RopeScaling::Kind::kLinear;
  config.rope_scaling.factor = 4;
  EXPECT_THAT(RopeInverseFrequencies(config), ElementsAre(0.25f, 0.025f, 0.0025f, 0.00025f));
  config.head_dim = 4;  // and four of padding
  EXPECT_THAT(RopeInverseFrequencies(config), ElementsAre(0.25f, 0.0025f, 0.0f, 0.0f));
}

TEST(ModelConfig, RefusesAttentionToLaterTokens) {
  json config = Llama();
  config["is_causal"] = true;
  EXPECT_TRUE(Parse(config).ok());
  config["is_causal"] = false;
  EXPECT_EQ(Parse(config).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(Message(Parse(config).status()), HasSubstr("is_causal"));
}

TEST(RopeInverseFrequencies, OfLlama32AgreeWithTheFormulaOfTransformers) {
  ModelConfig config;
  config.head_dim = 64;
  config.rope_theta = 500000;
  config.rope_scaling = {RopeScaling::Kind::kLlama3, 32, 1, 4, 8192};
  const std::vector<float> frequencies = RopeInverseFrequencies(config);
  ASSERT_EQ(frequencies.size(), 32u);
  // Computed in double from wavelengths, as modeling_rope_utils.py does: 0..14 stay, 15..17 are
  // blended, 18.. are divided by 32.
  const std::vector<std::pair<size_t, double>> expected = {{0, 1.0},
                                                           {1, 0.6636012376960885},
                                                           {14, 0.0032114459947525913},
                                                           {15, 0.001290547928209264},
                                                           {16, 0.00042955679655936815},
                                                           {17, 9.70828780262767e-05},
                                                           {18, 1.9461638184831125e-05},
                                                           {31, 9.418306725434909e-08}};
  for (const auto& [i, value] : expected) {
    EXPECT_NEAR(frequencies[i], value, 1e-7 * value) << "entry " << i;
  }
}

}  // namespace
}  // namespace ziggurat

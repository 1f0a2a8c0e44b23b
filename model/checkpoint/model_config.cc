#include "model/checkpoint/model_config.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/absl_view.h"
#include "model/checkpoint/json_fields.h"
#include "model/input_file.h"

namespace ziggurat {

namespace {

// Bounds that no real model comes near: a value beyond them is a broken file.
constexpr int kMaxLayers = 1024;
constexpr int kMaxHidden = 1 << 17;
constexpr int kMaxIntermediate = 1 << 20;
constexpr int kMaxHeads = 1024;
constexpr int kMaxPlausibleHeadDim = 4096;
constexpr int kMaxVocab = 1 << 22;
constexpr int kMaxPositions = 1 << 24;
constexpr int kMinPositions = 2;  // a prompt of one token, and the one that follows it
constexpr size_t kMaxConfigBytes = size_t{16} << 20;

/// What distinguishes the families, and the defaults of their Transformers classes.
struct Family {
  Architecture architecture;
  std::string_view class_name;
  std::string_view model_type;
  int default_kv_heads;  ///< 0: as many as query heads
  int default_positions;
};

constexpr std::array<Family, 3> kFamilies = {{
    {Architecture::kLlama, "LlamaForCausalLM", "llama", 0, 2048},
    {Architecture::kMistral, "MistralForCausalLM", "mistral", 8, 131072},
    {Architecture::kQwen2, "Qwen2ForCausalLM", "qwen2", 32, 32768},
}};

constexpr absl::string_view kSupportedFamilies =
    "supported are LlamaForCausalLM, MistralForCausalLM and Qwen2ForCausalLM";

/// The family by "architectures", or by "model_type" where a file has only that.
const Family* ReadFamily(FieldReader& fields) {
  const std::string model_type = fields.String("model_type", "");
  std::string class_name;
  if (fields.Has("architectures")) {
    const nlohmann::json& list = fields.Value("architectures");
    if (!list.is_array() || list.size() != 1 || !list[0].is_string()) {
      fields.Fail("architectures", "must be a list of one string");
      return nullptr;
    }
    class_name = list[0].get<std::string>();
  }
  for (const Family& family : kFamilies) {
    if (class_name.empty() ? family.model_type != model_type : family.class_name != class_name) {
      continue;
    }
    if (!model_type.empty() && family.model_type != model_type) {
      fields.Fail("model_type", absl::StrCat("does not go with ", class_name),
                  absl::StatusCode::kUnimplemented);
    }
    return &family;
  }
  fields.Fail(class_name.empty() ? "model_type" : "architectures", kSupportedFamilies,
              absl::StatusCode::kUnimplemented);
  return nullptr;
}

void ReadSizes(const Family& family, FieldReader& fields, ModelConfig& config) {
  config.num_layers = fields.Int("num_hidden_layers", 1, kMaxLayers);
  config.hidden_size = fields.Int("hidden_size", 1, kMaxHidden);
  config.intermediate_size = fields.Int("intermediate_size", 1, kMaxIntermediate);
  config.vocab_size = fields.Int("vocab_size", 1, kMaxVocab);
  config.num_q_heads = fields.Int("num_attention_heads", 1, kMaxHeads);
  // An explicit null means as many as query heads in every family, an absent key the default of
  // the family's class.
  const bool class_default = family.default_kv_heads > 0 && !fields.Contains("num_key_value_heads");
  config.num_kv_heads = fields.Int("num_key_value_heads", 1, kMaxHeads,
                                   class_default ? family.default_kv_heads : config.num_q_heads);
  config.max_position_embeddings =
      fields.Int("max_position_embeddings", kMinPositions, kMaxPositions, family.default_positions);
  if (fields.status().ok() && config.num_q_heads % config.num_kv_heads != 0) {
    fields.Fail("num_key_value_heads",
                absl::StrCat("must divide \"num_attention_heads\" (", config.num_q_heads, ")"));
  }
  if (fields.Has("head_dim")) {
    config.head_dim = fields.Int("head_dim", 2, kMaxPlausibleHeadDim);
  } else if (fields.status().ok()) {
    config.head_dim = config.hidden_size / config.num_q_heads;
    if (config.head_dim * config.num_q_heads != config.hidden_size) {
      fields.Fail("hidden_size", absl::StrCat("must be a multiple of \"num_attention_heads\" (",
                                              config.num_q_heads, ") where there is no head_dim"));
    }
  }
  if (fields.status().ok() && config.head_dim % 2 != 0) {
    fields.Fail("head_dim", absl::StrCat("the head size is ", config.head_dim,
                                         ", but RoPE turns pairs: it must be even"));
  }
}

/// Without a type there is no scaling, so whatever would scale is a mistake: most likely the type
/// was left out, or the object holds one set of parameters for each type of layer.
void CheckUnscaled(FieldReader& fields) {
  for (const std::string& key : fields.Keys()) {
    if (key == "rope_type" || key == "type" || key == "rope_theta" ||
        key == "partial_rotary_factor" || !fields.Has(key.c_str())) {
      continue;
    }
    if (fields.Value(key.c_str()).is_object()) {
      fields.Fail(key.c_str(), "parameters for each type of layer are not supported",
                  absl::StatusCode::kUnimplemented);
    }
    fields.Fail(
        "rope_type",
        absl::StrCat("must be default, linear, dynamic or llama3 where there is \"", key, "\""));
  }
}

/// "rope_scaling", or "rope_parameters" of newer files, which holds rope_theta as well.
RopeScaling ReadRopeScaling(FieldReader& fields) {
  RopeScaling scaling;
  const char* key = fields.Has("rope_type") ? "rope_type" : "type";
  const std::string type = fields.String(key, "default");
  if (!fields.Has(key)) CheckUnscaled(fields);
  // Versions of Transformers differ in which of the two they go by.
  if (fields.String("type", type) != type) {
    fields.Fail("type", absl::StrCat("contradicts \"rope_type\" (", type, ")"));
  }
  if (type == "linear") {
    scaling.kind = RopeScaling::Kind::kLinear;
    scaling.factor = fields.Number("factor", 1, 1e6);
  } else if (type == "llama3") {
    scaling.kind = RopeScaling::Kind::kLlama3;
    scaling.factor = fields.Number("factor", 1, 1e6);
    scaling.low_freq_factor = fields.Number("low_freq_factor", 1e-6, 1e6);
    scaling.high_freq_factor = fields.Number("high_freq_factor", 1e-6, 1e6);
    scaling.original_max_position_embeddings =
        fields.Int("original_max_position_embeddings", 1, kMaxPositions);
    if (fields.status().ok() && scaling.high_freq_factor <= scaling.low_freq_factor) {
      fields.Fail("high_freq_factor", absl::StrCat("must be greater than \"low_freq_factor\" (",
                                                   scaling.low_freq_factor, ")"));
    }
  } else if (type == "dynamic") {
    // Within the model's positions, which are all that is served, Transformers scales nothing.
    fields.Number("factor", 1, 1e6);
  } else if (type != "default") {
    fields.Fail(key, "supported are default, linear, dynamic and llama3",
                absl::StatusCode::kUnimplemented);
  }
  if (fields.Number("partial_rotary_factor", 0, 1, 1) != 1) {
    fields.Fail("partial_rotary_factor", "only 1 is supported", absl::StatusCode::kUnimplemented);
  }
  return scaling;
}

absl::Status ReadRope(FieldReader& fields, ModelConfig& config) {
  constexpr double kMinTheta = 1;
  constexpr double kMaxTheta = 1e12;
  config.rope_theta = fields.Number("rope_theta", kMinTheta, kMaxTheta, config.rope_theta);
  if (fields.Number("partial_rotary_factor", 0, 1, 1) != 1) {
    fields.Fail("partial_rotary_factor", "only 1 is supported", absl::StatusCode::kUnimplemented);
  }
  std::optional<RopeScaling> first;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!fields.Has(key)) continue;
    if (!fields.Value(key).is_object()) {
      fields.Fail(key, "must be an object or null");
      break;
    }
    FieldReader rope(fields.Value(key), absl::StrCat(fields.where(), ": ", key));
    config.rope_scaling = ReadRopeScaling(rope);
    const double theta = rope.Number("rope_theta", kMinTheta, kMaxTheta, config.rope_theta);
    if (!rope.status().ok()) return rope.status();
    if (fields.Has("rope_theta") && theta != config.rope_theta) {
      fields.Fail("rope_theta", absl::StrCat("contradicts the one in \"", key, "\" (", theta, ")"));
    }
    config.rope_theta = theta;
    if (first && *first != config.rope_scaling) fields.Fail(key, "contradicts \"rope_scaling\"");
    first = config.rope_scaling;
  }
  return fields.status();
}

/// Qwen2: whether any layer slides where a window is in use.
bool AnyLayerSlides(FieldReader& fields, int num_layers) {
  constexpr int kClassDefault = 28;
  // Layers from this one on, unless each is listed.
  const int first = fields.Int("max_window_layers", 0, kMaxLayers, kClassDefault);
  if (!fields.Has("layer_types")) return first < num_layers;
  const nlohmann::json& types = fields.Value("layer_types");
  return !types.is_array() ||
         std::find(types.begin(), types.end(), "sliding_attention") != types.end();
}

/// Mistral: every layer slides where a window is given; 4096 is the default of its class, and only
/// null switches it off. Qwen2: some layers, where use_sliding_window is set. Llama has none.
void ReadSlidingWindow(FieldReader& fields, ModelConfig& config) {
  constexpr int kClassDefault = 4096;
  const int window = fields.Int("sliding_window", kMinPositions, kMaxPositions, kClassDefault);
  const bool is_null = fields.Contains("sliding_window") && !fields.Has("sliding_window");
  bool slides = false;
  if (config.architecture == Architecture::kMistral) {
    slides = !is_null;
  } else if (config.architecture == Architecture::kQwen2) {
    slides = fields.Bool("use_sliding_window", false) && !is_null &&
             AnyLayerSlides(fields, config.num_layers);
  } else if (const bool uses = fields.Bool("use_sliding_window", false);
             uses || (fields.Has("sliding_window") && !fields.Has("use_sliding_window") &&
                      window < config.max_position_embeddings)) {
    fields.Fail(fields.Has("sliding_window") ? "sliding_window" : "use_sliding_window",
                "LlamaForCausalLM has no sliding window", absl::StatusCode::kUnimplemented);
  }
  if (slides) config.sliding_window = window;
}

void ReadBiases(FieldReader& fields, ModelConfig& config) {
  const bool attention_bias = fields.Bool("attention_bias", false);
  const bool mlp_bias = fields.Bool("mlp_bias", false);
  switch (config.architecture) {
    case Architecture::kLlama:
      config.qkv_bias = config.o_bias = attention_bias;
      config.mlp_bias = mlp_bias;
      return;
    case Architecture::kQwen2:  // always has them; Transformers does not read attention_bias here
      config.qkv_bias = true;
      break;
    case Architecture::kMistral:
      if (attention_bias) {
        fields.Fail("attention_bias", "MistralForCausalLM has no biases",
                    absl::StatusCode::kUnimplemented);
      }
      break;
  }
  if (mlp_bias) {
    fields.Fail("mlp_bias",
                absl::StrCat(AbslView(ArchitectureName(config.architecture)), " has none"),
                absl::StatusCode::kUnimplemented);
  }
}

void ReadQuantization(FieldReader& fields, ModelConfig& config) {
  if (!fields.Has("quantization_config")) return;
  if (!fields.Value("quantization_config").is_object()) {
    fields.Fail("quantization_config", "must be an object or null");
    return;
  }
  FieldReader quantization(fields.Value("quantization_config"), "");
  const std::string method = quantization.String("quant_method", "unnamed");
  const bool in_8bit = quantization.Bool("load_in_8bit", false);
  const bool in_4bit = quantization.Bool("load_in_4bit", false);
  if (method == "bitsandbytes" && quantization.status().ok()) {
    // bitsandbytes leaves its section behind when both switches are off: such weights are plain.
    if (!in_8bit && !in_4bit) return;
    config.quantization = in_8bit ? "bitsandbytes, 8 bits" : "bitsandbytes, 4 bits";
    return;
  }
  config.quantization = method;
}

void ReadTokens(FieldReader& fields, ModelConfig& config) {
  config.eos_token_ids = fields.Ids("eos_token_id", config.vocab_size - 1);
  std::sort(config.eos_token_ids.begin(), config.eos_token_ids.end());
}

}  // namespace

std::string_view ArchitectureName(Architecture architecture) {
  return kFamilies[static_cast<size_t>(architecture)].class_name;
}

int ModelConfig::MaxContextTokens() const {
  double positions = max_position_embeddings;
  if (rope_scaling.kind == RopeScaling::Kind::kLinear) positions *= rope_scaling.factor;
  const int most = static_cast<int>(std::min<double>(positions, kMaxPositions));
  return std::min(most, sliding_window.value_or(most));
}

std::string ModelConfig::Describe() const {
  std::string text = absl::StrCat(
      AbslView(ArchitectureName(architecture)), ": ", num_layers, " layers, hidden size ",
      hidden_size, ", ", num_q_heads, " heads over ", num_kv_heads, " KV heads of size ", head_dim,
      padded_head_dim() == head_dim ? "" : absl::StrCat(" (padded to ", padded_head_dim(), ")"),
      ", FFN ", intermediate_size, ", vocabulary ", vocab_size, ", context ", MaxContextTokens());
  if (MaxContextTokens() < max_position_embeddings) {
    absl::StrAppend(&text, " (limited from ", max_position_embeddings, " to the sliding window)");
  } else if (MaxContextTokens() > max_position_embeddings) {
    absl::StrAppend(&text, " (", max_position_embeddings, " by the factor of linear RoPE)");
  }
  return text;
}

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view json, std::string_view file) {
  absl::StatusOr<nlohmann::json> object = ParseJsonObject(json, file);
  if (!object.ok()) return object.status();
  FieldReader fields(*object, std::string(file));
  const Family* family = ReadFamily(fields);
  if (!fields.status().ok()) return fields.status();

  ModelConfig config;
  config.architecture = family->architecture;
  ReadSizes(*family, fields, config);
  ReadSlidingWindow(fields, config);
  ReadBiases(fields, config);
  ReadQuantization(fields, config);
  config.rms_norm_eps = fields.Number("rms_norm_eps", 1e-30, 0.1, config.rms_norm_eps);
  config.tie_word_embeddings = fields.Bool("tie_word_embeddings", false);
  config.dtype = fields.String(fields.Has("dtype") ? "dtype" : "torch_dtype", "");
  // "swish" is another name of the same function.
  const std::string activation = fields.String("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") {
    fields.Fail("hidden_act", "supported is silu", absl::StatusCode::kUnimplemented);
  }
  if (!fields.Bool("is_causal", true)) {  // of models that embed texts
    fields.Fail("is_causal", "supported is attention to earlier tokens only",
                absl::StatusCode::kUnimplemented);
  }
  if (!fields.status().ok()) return fields.status();
  ReadTokens(fields, config);
  if (absl::Status status = ReadRope(fields, config); !status.ok()) return status;
  return config;
}

absl::Status ApplyGenerationConfig(std::string_view json, std::string_view file,
                                   ModelConfig& config) {
  absl::StatusOr<nlohmann::json> object = ParseJsonObject(json, file);
  if (!object.ok()) return object.status();
  FieldReader fields(*object, std::string(file));
  std::vector<int32_t> ids = fields.Ids("eos_token_id", config.vocab_size - 1);
  if (!fields.status().ok()) return fields.status();
  std::sort(ids.begin(), ids.end());
  if (!ids.empty()) config.eos_token_ids = std::move(ids);
  return absl::OkStatus();
}

absl::Status CheckSupported(const ModelConfig& config) {
  if (!config.quantization.empty()) {
    return absl::UnimplementedError(
        absl::StrCat("the weights are quantized (quantization_config: ", config.quantization,
                     "); supported are plain weights in f32, f16 or bf16"));
  }
  if (config.head_dim > kMaxHeadDim) {
    return absl::UnimplementedError(absl::StrCat("the head size (head_dim) is ", config.head_dim,
                                                 "; supported is up to ", kMaxHeadDim));
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> LoadModelConfig(const std::filesystem::path& dir) {
  const std::filesystem::path file = dir / "config.json";
  absl::StatusOr<std::string> text = ReadInputFile(file, kMaxConfigBytes);
  if (!text.ok()) return text.status();
  absl::StatusOr<ModelConfig> config = ParseModelConfig(*text, file.string());
  if (!config.ok()) return config.status();
  if (absl::Status status = CheckSupported(*config); !status.ok()) {
    return InFile(file, status);
  }
  const std::filesystem::path generation = dir / "generation_config.json";
  if (absl::StatusOr<std::string> more = ReadInputFile(generation, kMaxConfigBytes); more.ok()) {
    absl::Status status = ApplyGenerationConfig(*more, generation.string(), *config);
    if (!status.ok()) return status;
  } else if (!absl::IsNotFound(more.status())) {
    return more.status();
  }
  return config;
}

}  // namespace ziggurat

// A model's hyperparameters, from the config.json of a Hugging Face folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/head_dim.h"

namespace ziggurat {

enum class Architecture : uint8_t { kLlama, kMistral, kQwen2 };

/// "LlamaForCausalLM", ...
std::string_view ArchitectureName(Architecture architecture);

/// How the frequencies of the rotary embedding are stretched for contexts longer than those of the
/// first training.
struct RopeScaling {
  enum class Kind : uint8_t {
    kNone,
    kLinear,  ///< all frequencies divided by `factor`
    kLlama3,  ///< low ones divided by `factor`, high ones kept, a ramp in between (Llama 3.1)
  };
  Kind kind = Kind::kNone;
  double factor = 1;
  double low_freq_factor = 1;                ///< kLlama3
  double high_freq_factor = 4;               ///< kLlama3
  int original_max_position_embeddings = 0;  ///< kLlama3, in tokens

  bool operator==(const RopeScaling&) const = default;
};

/// A decoder of the Llama family: RMSNorm, RoPE (rotate-half), grouped-query attention, SwiGLU.
/// Every field has been range-checked when it comes from one of the functions below.
struct ModelConfig {
  Architecture architecture = Architecture::kLlama;
  int num_layers = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_q_heads = 0;
  int num_kv_heads = 0;  ///< divides num_q_heads
  int head_dim = 0;      ///< num_q_heads * head_dim need not be hidden_size
  int vocab_size = 0;
  int max_position_embeddings = 0;    ///< as the file has it, in tokens; see MaxContextTokens
  std::optional<int> sliding_window;  ///< tokens; set where layers may attend to a window only
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  bool qkv_bias = false;  ///< q_proj, k_proj, v_proj
  bool o_bias = false;    ///< o_proj
  bool mlp_bias = false;  ///< gate_proj, up_proj, down_proj
  bool tie_word_embeddings = false;
  std::vector<int32_t> eos_token_ids;  ///< stop tokens; ascending, may be empty
  std::string dtype;                   ///< what the file claims, for display: the tensors decide
  std::string quantization;  ///< how the weights are quantized; empty where they are plain

  /// Outputs of q_proj, and of k_proj and v_proj, in the checkpoint.
  int q_size() const { return num_q_heads * head_dim; }
  int kv_size() const { return num_kv_heads * head_dim; }
  /// Channels of a head as it is computed and cached. Those that the model does not have are zero
  /// (model/decoder/head_padding.h).
  int padded_head_dim() const {
    return (head_dim + kHeadDimStep - 1) / kHeadDimStep * kHeadDimStep;
  }

  /// The longest context served, prompt and output. A sliding window is honoured by this limit:
  /// query i sees the keys j with i - j < window, so in a context of at most `window` tokens the
  /// window never hides a key.
  int MaxContextTokens() const;

  /// One line for the log: architecture, sizes, context and what limits it.
  std::string Describe() const;
};

/// Reads `dir`/config.json and, where it is, `dir`/generation_config.json, and refuses what
/// CheckSupported refuses. Stop tokens are those of generation_config.json; where it names none,
/// those of config.json. (Where neither does, the server takes EOS of the tokenizer.)
///
/// NOT_FOUND: no config.json. INVALID_ARGUMENT: a field of wrong type or range; names file, field,
/// value and what is allowed. UNIMPLEMENTED: a well-formed model of a kind that is not supported.
absl::StatusOr<ModelConfig> LoadModelConfig(const std::filesystem::path& dir);

/// The same from text, without CheckSupported. `file` stands in the messages. Values that are
/// absent get the defaults of the Transformers library. Both spellings are read where Transformers
/// changed its mind: torch_dtype and dtype; rope_theta with rope_scaling (rope_type or type) and
/// rope_parameters.
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view json, std::string_view file);

/// Replaces the stop tokens of `config` by those of a generation_config.json, if it names any.
absl::Status ApplyGenerationConfig(std::string_view json, std::string_view file,
                                   ModelConfig& config);

/// UNIMPLEMENTED for quantized weights and for heads that are larger than attention kernels take.
absl::Status CheckSupported(const ModelConfig& config);

/// Radians per position of the rotary embedding, [padded_head_dim / 2]: theta^(-2i / head_dim),
/// scaled as `rope_scaling` says, and 0 for channels of padding. Entry i turns the pair (x[i],
/// x[i + padded_head_dim / 2]).
std::vector<float> RopeInverseFrequencies(const ModelConfig& config);

}  // namespace ziggurat

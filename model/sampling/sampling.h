// From logits to the next token.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace ziggurat {

/// How tokens are drawn. The defaults are greedy.
struct SamplingParameters {
  float temperature = 0;         ///< 0: greedy; at most 100
  int top_k = 0;                 ///< 0: off
  float top_p = 1;               ///< (0, 1]
  float min_p = 0;               ///< [0, 1]: relative to the most probable token
  float repetition_penalty = 1;  ///< (0, 10]; over prompt and output (Keskar et al., 2019)
  float presence_penalty = 0;    ///< [-2, 2]; over the output
  float frequency_penalty = 0;   ///< [-2, 2]; over the output
  std::optional<uint64_t> seed;  ///< same seed, same text; absent: drawn at random
  int logprobs = -1;             ///< -1: none; n: the chosen token's and the n best (at most 20)
};

/// INVALID_ARGUMENT names the parameter, its value and the allowed range (NaN and infinity included).
absl::Status Validate(const SamplingParameters& parameters);

struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0;
};

struct SampledToken {
  int32_t token_id = 0;
  float logprob = 0;              ///< of the model's distribution before temperature and filters
  std::vector<TokenLogprob> top;  ///< best first; empty unless asked for
};

/// Draws the tokens of one sequence. Not thread-safe; the outcome depends on nothing but the
/// parameters, the seed and the logits given so far.
class Sampler {
 public:
  /// `parameters` must be valid. `prompt` is read for the repetition penalty only.
  Sampler(const SamplingParameters& parameters, absl::Span<const int32_t> prompt, int vocab_size);

  /// `logits` [vocab_size] is scratch afterwards. Tokens in `forbidden` are not drawn (stop tokens
  /// before the minimum length).
  SampledToken Sample(absl::Span<float> logits, absl::Span<const int32_t> forbidden);

 private:
  SamplingParameters parameters_;
  std::mt19937_64 random_;
  std::unordered_map<int32_t, int> output_counts_;
  std::unordered_map<int32_t, bool> prompt_tokens_;
  std::vector<std::pair<float, int32_t>> scratch_;
};

}  // namespace ziggurat

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
  std::optional<uint64_t> seed = std::nullopt;  ///< same seed, same text; absent: drawn at random
  int logprobs = -1;                            ///< -1: none; n: the chosen token's and the n best
  static constexpr int kMostLogprobs = 20;
};

/// INVALID_ARGUMENT names the parameter, its value and the allowed range (NaN and infinity
/// included).
absl::Status Validate(const SamplingParameters& parameters);

struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0;
};

struct SampledToken {
  int32_t token_id = 0;
  /// Of the model's distribution before penalties, temperature and filters. Only where logprobs
  /// were asked for, else 0: it costs a pass over the vocabulary.
  float logprob = 0;
  std::vector<TokenLogprob> top;  ///< best first; empty unless asked for
  bool is_arbitrary = false;      ///< no logit was above minus infinity: something is wrong
};

/// Draws the tokens of one sequence. Not thread-safe. The outcome depends on nothing but the
/// parameters, the seed and the logits given so far, bit for bit on every machine: the random
/// numbers and the exponential are computed here, not by the platform's library.
///
/// The steps, in this order: forbidden tokens are taken out; repetition, then presence and
/// frequency penalties; the highest logit wins if greedy (ties: the lowest id); else temperature,
/// top-k (exactly k; ties: the lower ids), top-p (the fewest best tokens whose share of what top-k
/// left reaches it), min-p, and a draw from what is left.
///
/// A NaN logit counts as minus infinity, plus infinity as the largest float. Where no logit is
/// above minus infinity, the lowest token that is not forbidden is drawn, with logprob minus
/// infinity if logprobs were asked for.
class Sampler {
 public:
  /// `parameters` must be valid. `prompt` is read for the repetition penalty only; ids outside the
  /// vocabulary are passed over.
  Sampler(const SamplingParameters& parameters, absl::Span<const int32_t> prompt, int vocab_size);

  /// `logits` [vocab_size] is scratch afterwards. Tokens in `forbidden` are not drawn (stop tokens
  /// before the minimum length).
  SampledToken Sample(absl::Span<float> logits, absl::Span<const int32_t> forbidden);

  // For those who draw by the same rules elsewhere, on a GPU: what a draw takes, and then what it
  // gave.

  /// A token that penalties concern.
  struct Seen {
    int32_t id = 0;
    int output_count = 0;  ///< times that it was drawn; 0: of the prompt alone
  };
  const SamplingParameters& parameters() const { return parameters_; }
  bool penalizes() const;
  /// Each once, in no order; nothing unless it penalizes.
  std::vector<Seen> seen() const;
  int num_seen() const { return static_cast<int>(prompt_ids_.size()) + num_new_; }
  /// Tokens taken so far, where it penalizes: what was seen changes with it alone.
  int num_taken() const { return num_taken_; }
  /// The random number of the next draw, in [0, 1); 0 where it is greedy and takes none.
  double DrawNumber() { return parameters_.temperature == 0 ? 0 : Uniform(); }
  void Took(int32_t token_id);

 private:
  void Penalize(absl::Span<float> logits) const;
  bool InPrompt(int32_t token_id) const;  ///< as far as penalties are concerned
  int32_t Draw(absl::Span<const float> logits);
  int32_t DrawFromAll(absl::Span<const float> logits, float best);
  int32_t DrawFromBest(absl::Span<const float> logits, float best);
  double Uniform();

  SamplingParameters parameters_;
  int vocab_size_;
  std::mt19937_64 random_;
  std::unordered_map<int32_t, int> output_counts_;  ///< kept only for penalties
  std::vector<int32_t> prompt_ids_;                 ///< distinct; only for the repetition penalty
  int num_new_ = 0;                                 ///< of the output's, distinct, not the prompt's
  int num_taken_ = 0;
};

}  // namespace ziggurat

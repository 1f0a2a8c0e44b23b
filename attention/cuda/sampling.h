// From logits to the next tokens, on the device: what model/sampling/sampling.h says, for all
// sequences of a step at once, with one small record of each for the host.
//
// The steps and their order are those of Sampler. Random numbers come from the host, which draws
// them before it knows the logits, so a seed gives the same text whatever else is in the batch.
// Weights are summed as integers of 2^-40 of the best token's, in no order and yet always to the
// same sum. Where a draw falls within rounding of the border of two tokens it may differ from that
// of the CPU's sampler.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/cuda/stream.h"

namespace ziggurat::cuda {

constexpr int kMaxLogprobs = 20;

/// A token that a sequence has had, in its prompt or its output, for penalties.
struct SeenToken {
  int32_t id = 0;
  int32_t output_count = 0;  ///< times that it was generated
  float raw_logit = 0;       ///< scratch
};

/// What one sequence asks for; as SamplingParameters, validated. The lists are on the device, with
/// ids inside the vocabulary, each at most once. `seen` is null where nothing is penalized; else it
/// has room for one more, and the token that is drawn is counted in: it is the list of the next
/// step.
struct SamplingRequest {
  float temperature = 0;
  int32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  int32_t logprobs = -1;  ///< -1: none; n: the chosen token's and the n best
  double uniform = 0;     ///< in [0, 1)
  SeenToken* seen = nullptr;
  const int32_t* forbidden = nullptr;
  int32_t num_seen = 0;
  int32_t num_forbidden = 0;
};

/// What the host reads of one sequence.
struct SampledRecord {
  int32_t token_id = 0;
  float logprob = 0;         ///< 0 unless asked for
  int32_t num_top = 0;       ///< fewer than asked for where fewer are above -infinity
  int32_t is_arbitrary = 0;  ///< 1 where none is (SampledToken)
  int32_t top_ids[kMaxLogprobs] = {};
  float top_logprobs[kMaxLogprobs] = {};
};

/// Draws a token for each of `count` sequences.
///   logits    [count, vocab_size] f32; scratch afterwards
///   requests  [count];   records  [count]
void LaunchSample(float* logits, int vocab_size, const SamplingRequest* requests, int count,
                  SampledRecord* records, cudaStream_t stream);

}  // namespace ziggurat::cuda

#include "model/sampling/sampling.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "model/sampling/logit_math.h"

namespace ziggurat {

namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

/// With as many digits as tell the value from its neighbours.
template <class Number>
absl::Status Refuse(const char* parameter, Number value, const std::string& range) {
  char digits[32];
  const char* end = std::to_chars(digits, std::end(digits), value).ptr;
  return absl::InvalidArgumentError(
      absl::StrCat(parameter, " is ", std::string(digits, end - digits), ", must be ", range));
}

/// Of the draw at hand. One for each thread, not for each sequence: the next draw finds it in
/// cache.
struct Scratch {
  std::vector<float> raw_logits;
  std::vector<float> weights;
  std::vector<double> block_sums;
  std::vector<int32_t> candidates;
};
thread_local Scratch scratch;

/// Not subnormal: a thread may have been told to take that for 0.
float DivisorOf(float temperature) {
  return std::max(temperature, std::numeric_limits<float>::min());
}

uint64_t FreshSeed() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

bool InVocabulary(int32_t id, absl::Span<const float> logits) {
  return id >= 0 && static_cast<size_t>(id) < logits.size();
}

/// The draw where no logit says anything.
int32_t LowestAllowed(size_t vocab_size, absl::Span<const int32_t> forbidden) {
  for (size_t id = 0; id < vocab_size; ++id) {
    if (std::find(forbidden.begin(), forbidden.end(), static_cast<int32_t>(id)) ==
        forbidden.end()) {
      return static_cast<int32_t>(id);
    }
  }
  return 0;
}

}  // namespace

absl::Status Validate(const SamplingParameters& p) {
  // Written so that a NaN fails every test.
  if (!(p.temperature >= 0 && p.temperature <= 100)) {
    return Refuse("temperature", p.temperature, "in [0, 100]");
  }
  if (p.top_k < 0) return Refuse("top_k", p.top_k, "at least 0 (0: off)");
  if (!(p.top_p > 0 && p.top_p <= 1)) return Refuse("top_p", p.top_p, "in (0, 1]");
  if (!(p.min_p >= 0 && p.min_p <= 1)) return Refuse("min_p", p.min_p, "in [0, 1]");
  if (!(p.repetition_penalty > 0 && p.repetition_penalty <= 10)) {
    return Refuse("repetition_penalty", p.repetition_penalty, "in (0, 10]");
  }
  if (!(p.presence_penalty >= -2 && p.presence_penalty <= 2)) {
    return Refuse("presence_penalty", p.presence_penalty, "in [-2, 2]");
  }
  if (!(p.frequency_penalty >= -2 && p.frequency_penalty <= 2)) {
    return Refuse("frequency_penalty", p.frequency_penalty, "in [-2, 2]");
  }
  if (p.logprobs < -1 || p.logprobs > SamplingParameters::kMostLogprobs) {
    return Refuse("logprobs", p.logprobs,
                  absl::StrCat("in [0, ", SamplingParameters::kMostLogprobs, "]"));
  }
  return absl::OkStatus();
}

Sampler::Sampler(const SamplingParameters& parameters, absl::Span<const int32_t> prompt,
                 int vocab_size)
    : parameters_(parameters),
      vocab_size_(vocab_size),
      random_(parameters.seed ? *parameters.seed : FreshSeed()) {
  if (parameters_.repetition_penalty == 1) return;
  prompt_ids_.assign(prompt.begin(), prompt.end());
  std::sort(prompt_ids_.begin(), prompt_ids_.end());
  prompt_ids_.erase(std::unique(prompt_ids_.begin(), prompt_ids_.end()), prompt_ids_.end());
  std::erase_if(prompt_ids_, [vocab_size](int32_t id) { return id < 0 || id >= vocab_size; });
}

bool Sampler::penalizes() const {
  return parameters_.repetition_penalty != 1 || parameters_.presence_penalty != 0 ||
         parameters_.frequency_penalty != 0;
}

void Sampler::Penalize(absl::Span<float> logits) const {
  const float repetition = parameters_.repetition_penalty;
  const auto repeated = [&](int32_t id) {
    float& logit = logits[static_cast<size_t>(id)];
    logit = logit > 0 ? logit / repetition : logit * repetition;
  };
  for (const int32_t id : prompt_ids_) repeated(id);
  for (const auto& [id, count] : output_counts_) {
    if (repetition != 1 && !InPrompt(id)) repeated(id);
    logits[static_cast<size_t>(id)] -=
        parameters_.presence_penalty + parameters_.frequency_penalty * static_cast<float>(count);
  }
}

SampledToken Sampler::Sample(absl::Span<float> logits, absl::Span<const int32_t> forbidden) {
  const bool wants_logprobs = parameters_.logprobs >= 0;
  std::vector<float>& raw_logits = scratch.raw_logits;
  if (wants_logprobs) raw_logits.assign(logits.begin(), logits.end());
  for (const int32_t id : forbidden) {
    if (InVocabulary(id, logits)) logits[static_cast<size_t>(id)] = kLowest;
  }
  if (penalizes()) Penalize(logits);

  SampledToken sampled;
  sampled.token_id = Draw(logits);
  if (sampled.token_id < 0) {
    sampled.is_arbitrary = true;
    sampled.token_id = LowestAllowed(logits.size(), forbidden);
  }
  Took(sampled.token_id);
  if (!wants_logprobs) return sampled;

  // log softmax(x)_i = x_i - max - log sum exp(x - max)
  const float best = LargestLogit(raw_logits);
  if (best == kLowest) {
    sampled.logprob = kLowest;
    return sampled;
  }
  FillWeights(raw_logits, best, /*temperature=*/1, /*least=*/0, scratch.weights);
  const double log_sum = std::log(SumWeights(scratch.weights, scratch.block_sums));
  const auto logprob = [&](int32_t id) {
    const float logit =
        std::min(raw_logits[static_cast<size_t>(id)], std::numeric_limits<float>::max());
    return std::isnan(logit) ? kLowest
                             : static_cast<float>(static_cast<double>(logit) - best - log_sum);
  };
  sampled.logprob = logprob(sampled.token_id);
  for (const int32_t id : BestTokens(raw_logits, static_cast<size_t>(parameters_.logprobs))) {
    sampled.top.push_back({id, logprob(id)});
  }
  return sampled;
}

void Sampler::Took(int32_t token_id) {
  if (!penalizes()) return;
  ++num_taken_;
  if (++output_counts_[token_id] == 1 && !InPrompt(token_id)) ++num_new_;
}

bool Sampler::InPrompt(int32_t token_id) const {
  return std::binary_search(prompt_ids_.begin(), prompt_ids_.end(), token_id);
}

std::vector<Sampler::Seen> Sampler::seen() const {
  std::vector<Seen> all;
  all.reserve(num_seen());
  for (const auto& [id, count] : output_counts_) all.push_back({id, count});
  for (const int32_t id : prompt_ids_) {
    if (!output_counts_.contains(id)) all.push_back({id, 0});
  }
  return all;
}

int32_t Sampler::Draw(absl::Span<const float> logits) {
  if (parameters_.temperature == 0) return BestToken(logits);
  const float best = LargestLogit(logits);
  if (best == kLowest) return -1;
  const bool top_k = parameters_.top_k > 0 && parameters_.top_k < vocab_size_;
  return top_k ? DrawFromBest(logits, best) : DrawFromAll(logits, best);
}

/// Without top-k: no order is needed, and sums over blocks make the search short.
int32_t Sampler::DrawFromAll(absl::Span<const float> logits, float best) {
  const float temperature = DivisorOf(parameters_.temperature);
  std::vector<float>& weights = scratch.weights;
  std::vector<double>& block_sums = scratch.block_sums;
  // min-p compares with the best token alone and top-p keeps the best tokens, so what both leave
  // is the same whichever comes first; but top-p's share is of everything.
  const bool top_p = parameters_.top_p < 1;
  FillWeights(logits, best, temperature, top_p ? 0 : parameters_.min_p, weights);
  double total = SumWeights(weights, block_sums);
  if (top_p) {
    KeepBestMass(logits, best, temperature, total, static_cast<double>(parameters_.top_p) * total,
                 weights, scratch.candidates);
    for (const int32_t id : scratch.candidates) {
      float& weight = weights[static_cast<size_t>(id)];
      if (weight < parameters_.min_p) weight = 0;
    }
    total = SumWeights(weights, block_sums);
  }

  double left = Uniform() * total;
  size_t block = 0;
  while (block + 1 < block_sums.size() && left >= block_sums[block]) left -= block_sums[block++];
  for (size_t id = block * kWeightBlock; id < weights.size(); ++id) {
    left -= static_cast<double>(weights[id]);
    if (left < 0 && weights[id] > 0) return static_cast<int32_t>(id);
  }
  // Rounding carried the search past the end: the last token that can be drawn.
  size_t last = weights.size() - 1;
  while (last > 0 && !(weights[last] > 0)) --last;
  return static_cast<int32_t>(last);
}

/// With top-k: its tokens in order.
int32_t Sampler::DrawFromBest(absl::Span<const float> logits, float best) {
  const std::vector<int32_t> tokens = BestTokens(logits, static_cast<size_t>(parameters_.top_k));
  const float temperature = DivisorOf(parameters_.temperature);
  std::vector<double> weights;
  double total = 0;
  for (const int32_t id : tokens) {
    weights.push_back(
        static_cast<double>(Weight(logits[static_cast<size_t>(id)], best, temperature)));
    total += weights.back();
  }
  const double wanted = static_cast<double>(parameters_.top_p) * total;
  double kept = 0;
  size_t end = 0;
  for (; end < weights.size() && (parameters_.top_p >= 1 || kept < wanted); ++end) {
    if (weights[end] < static_cast<double>(parameters_.min_p)) break;
    kept += weights[end];
  }
  double left = Uniform() * kept;
  for (size_t i = 0; i < end; ++i) {
    left -= weights[i];
    if (left < 0) return tokens[i];
  }
  return tokens[end - 1];
}

/// In [0, 1), on a grid of 2^-53. The standard library's distributions differ between platforms.
double Sampler::Uniform() { return static_cast<double>(random_() >> 11) * 0x1.0p-53; }

}  // namespace ziggurat

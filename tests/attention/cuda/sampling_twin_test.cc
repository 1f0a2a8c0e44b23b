// Sampling on the device against the CPU's sampler.

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "attention/cuda/sampling.h"
#include "gtest/gtest.h"
#include "model/sampling/sampling.h"
#include "tests/attention/cuda/device_memory.h"

namespace ziggurat::cuda {
namespace {

/// One sequence: what it asks for, and what it has had.
struct Sequence {
  SamplingParameters parameters;
  std::vector<int32_t> prompt;
  std::vector<int32_t> forbidden;
};

/// Steps of several sequences, on the CPU and on the device, from the same logits.
class Twins {
 public:
  Twins(std::vector<Sequence> sequences, int vocab_size)
      : sequences_(std::move(sequences)), vocab_size_(vocab_size) {
    for (const Sequence& s : sequences_) {
      samplers_.emplace_back(s.parameters, s.prompt, vocab_size);
      randoms_.emplace_back(*s.parameters.seed);
      outputs_.emplace_back();
    }
  }

  void ExpectSame(const std::vector<std::vector<float>>& logits, const std::string& what) {
    const std::vector<SampledRecord> records = OnTheDevice(logits);
    for (size_t i = 0; i < sequences_.size(); ++i) {
      std::vector<float> scratch = logits[i];
      const SampledToken expected =
          samplers_[i].Sample(absl::MakeSpan(scratch), sequences_[i].forbidden);
      const std::string where = what + " sequence " + std::to_string(i);
      EXPECT_EQ(records[i].token_id, expected.token_id) << where;
      EXPECT_EQ(records[i].is_arbitrary != 0, expected.is_arbitrary) << where;
      ExpectNear(records[i].logprob, expected.logprob, where);
      ASSERT_EQ(records[i].num_top, static_cast<int>(expected.top.size())) << where;
      for (size_t n = 0; n < expected.top.size(); ++n) {
        EXPECT_EQ(records[i].top_ids[n], expected.top[n].token_id) << where << " top " << n;
        ExpectNear(records[i].top_logprobs[n], expected.top[n].logprob, where);
      }
      ++outputs_[i][expected.token_id];
      if (seen_[i] != nullptr) {
        EXPECT_EQ(SeenOnTheDevice(i), SeenBy(i)) << where;
      }
    }
  }

 private:
  static void ExpectNear(float actual, float expected, const std::string& where) {
    if (std::isinf(expected)) {
      EXPECT_EQ(actual, expected) << where;
    } else {
      EXPECT_NEAR(actual, expected, 1e-5) << where;
    }
  }

  /// How often each token that penalties concern was drawn.
  std::map<int32_t, int> SeenBy(size_t i) const {
    std::map<int32_t, int> seen = outputs_[i];
    if (sequences_[i].parameters.repetition_penalty == 1) return seen;
    for (int32_t id : sequences_[i].prompt) {
      if (id >= 0 && id < vocab_size_) seen.emplace(id, 0);
    }
    return seen;
  }

  std::map<int32_t, int> SeenOnTheDevice(size_t i) const {
    std::vector<SeenToken> list(SeenBy(i).size() + 1);
    seen_[i]->CopyTo(list.data());
    list.pop_back();
    std::map<int32_t, int> seen;
    for (const SeenToken& token : list) seen.emplace(token.id, token.output_count);
    return seen;
  }

  /// The list of seen tokens, with room for one more; null where nothing is penalized.
  std::unique_ptr<OnDevice> ListFor(size_t i) const {
    if (!samplers_[i].penalizes()) return nullptr;
    std::vector<SeenToken> list;
    for (const auto& [id, count] : SeenBy(i)) list.push_back({id, count, 0});
    list.emplace_back();
    return std::make_unique<OnDevice>(list.data(), list.size() * sizeof(SeenToken));
  }

  std::vector<SampledRecord> OnTheDevice(const std::vector<std::vector<float>>& logits) {
    std::vector<float> packed;
    std::vector<SamplingRequest> requests;
    std::vector<std::unique_ptr<OnDevice>> lists;
    seen_.clear();
    for (size_t i = 0; i < sequences_.size(); ++i) {
      const Sequence& s = sequences_[i];
      const SamplingParameters& p = s.parameters;
      packed.insert(packed.end(), logits[i].begin(), logits[i].end());
      seen_.push_back(ListFor(i));
      const bool penalizes = seen_.back() != nullptr;
      lists.push_back(std::make_unique<OnDevice>(s.forbidden.data(), s.forbidden.size() * 4));
      // The sampler draws a number only where it needs one.
      const double uniform =
          p.temperature == 0 ? 0 : static_cast<double>(randoms_[i]() >> 11) * 0x1.0p-53;
      requests.push_back({p.temperature, p.top_k, p.top_p, p.min_p, p.repetition_penalty,
                          p.presence_penalty, p.frequency_penalty, p.logprobs, uniform,
                          penalizes ? seen_.back()->get<SeenToken>() : nullptr,
                          lists.back()->get<const int32_t>(),
                          penalizes ? static_cast<int32_t>(SeenBy(i).size()) : 0,
                          static_cast<int32_t>(s.forbidden.size())});
    }
    OnDevice device_logits(packed.data(), packed.size() * sizeof(float));
    OnDevice device_requests(requests.data(), requests.size() * sizeof(SamplingRequest));
    OnDevice device_records(requests.size() * sizeof(SampledRecord));
    LaunchSample(device_logits.get<float>(), vocab_size_, device_requests.get<SamplingRequest>(),
                 static_cast<int>(requests.size()), device_records.get<SampledRecord>(),
                 TestStream().get());
    std::vector<SampledRecord> records(requests.size());
    device_records.CopyTo(records.data());
    return records;
  }

  std::vector<Sequence> sequences_;
  int vocab_size_;
  std::vector<Sampler> samplers_;
  std::vector<std::mt19937_64> randoms_;
  std::vector<std::map<int32_t, int>> outputs_;
  std::vector<std::unique_ptr<OnDevice>> seen_;  ///< of the last step
};

/// Logits in steps of 1/8, so that many are equal; in some rows NaN and infinities.
std::vector<float> RandomLogits(int vocab_size, std::mt19937& random, bool odd) {
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(vocab_size);
  for (float& x : logits) x = std::round(8 * normal(random)) / 8;
  if (!odd) return logits;
  logits[random() % vocab_size] = NAN;
  logits[random() % vocab_size] = -INFINITY;
  logits[random() % vocab_size] = -NAN;
  return logits;
}

SamplingParameters Parameters(float temperature, int top_k, float top_p, float min_p,
                              uint64_t seed) {
  SamplingParameters p;
  p.temperature = temperature;
  p.top_k = top_k;
  p.top_p = top_p;
  p.min_p = min_p;
  p.seed = seed;
  return p;
}

std::vector<Sequence> AllKinds() {
  std::vector<Sequence> sequences;
  uint64_t seed = 0;
  for (float temperature : {0.0f, 0.7f, 1.5f}) {
    for (int top_k : {0, 1, 7, 40}) {
      for (auto [top_p, min_p] :
           {std::pair{1.0f, 0.0f}, {0.9f, 0.0f}, {1.0f, 0.1f}, {0.5f, 0.2f}}) {
        Sequence& s = sequences.emplace_back();
        s.parameters = Parameters(temperature, top_k, top_p, min_p, ++seed);
        s.parameters.logprobs = static_cast<int>(seed % 5) - 1;
        if (seed % 3 == 1) s.parameters.repetition_penalty = 1.3f;
        if (seed % 3 == 2) s.parameters.presence_penalty = 0.5f;
        if (seed % 4 == 3) s.parameters.frequency_penalty = 0.25f;
        s.prompt = {3, 3, 17, 900000, -1};
        if (seed % 2 == 0) s.forbidden = {5, 11};
      }
    }
  }
  return sequences;
}

TEST(CudaSampling, DrawsWhatTheSamplerDraws) {
  std::mt19937 random(1);
  for (int vocab_size : {50, 257, 1000}) {
    const std::vector<Sequence> sequences = AllKinds();
    Twins twins(sequences, vocab_size);
    for (int step = 0; step < 6; ++step) {
      std::vector<std::vector<float>> logits;
      for (size_t i = 0; i < sequences.size(); ++i) {
        logits.push_back(RandomLogits(vocab_size, random, step % 2 == 1));
      }
      twins.ExpectSame(
          logits, "vocabulary " + std::to_string(vocab_size) + " step " + std::to_string(step));
    }
  }
}

/// Logits that spread in ways that few models' do.
std::map<std::string, std::vector<float>> OddSpreads(int vocab_size) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::map<std::string, std::vector<float>> spreads;
  for (int i = 0; i < vocab_size; ++i) {
    const float x = normal(random);
    spreads["flat"].push_back(2);
    spreads["two values"].push_back(i % 3 == 0 ? 1.5f : 0.25f);
    spreads["one far above"].push_back(i == 77 ? 1e6f : x);
    spreads["as far as floats go"].push_back(i % 2 == 0 ? std::numeric_limits<float>::max()
                                                        : std::numeric_limits<float>::lowest());
    spreads["next to 0"].push_back(x * 1e-38f);
    spreads["wide"].push_back(20 * x);
    spreads["falling"].push_back(static_cast<float>(-i) / 64);
    spreads["few live"].push_back(i % 1000 == 3 ? x : -INFINITY);
  }
  return spreads;
}

/// Top-k and top-p, alone and together, with penalties; the best five where there is no top-p.
std::vector<Sequence> Filters() {
  std::vector<Sequence> sequences;
  for (int top_k : {0, 40, 1200}) {
    for (float top_p : {1.0f, 0.3f, 0.95f}) {
      Sequence& s = sequences.emplace_back();
      s.parameters = Parameters(0.7f, top_k, top_p, 0, 11 + sequences.size());
      s.parameters.logprobs = top_p == 1 ? 5 : -1;
      s.parameters.presence_penalty = 0.5f;
      s.parameters.repetition_penalty = 1.2f;
      s.prompt = {1, 5, 77};
      s.forbidden = {5, 78};
    }
  }
  return sequences;
}

TEST(CudaSampling, DrawsTheSameHoweverLogitsSpread) {
  constexpr int kVocabSize = 1500;
  for (const auto& [name, logits] : OddSpreads(kVocabSize)) {
    Twins twins(Filters(), kVocabSize);
    twins.ExpectSame(std::vector(Filters().size(), logits), name);
  }
}

TEST(CudaSampling, DrawsTheSameOfALargeVocabulary) {
  constexpr int kVocabSize = 40003;
  for (const auto& [name, logits] : OddSpreads(kVocabSize)) {
    Twins twins(Filters(), kVocabSize);
    twins.ExpectSame(std::vector(Filters().size(), logits), name);
  }
}

TEST(CudaSampling, DrawsTheSameWithParametersAtTheirEnds) {
  std::mt19937 random(5);
  for (int vocab_size : {1, 2, 31, 33, 1025}) {
    std::vector<Sequence> sequences;
    for (float temperature : {1e-30f, 1.0f, 100.0f}) {
      for (int top_k : {0, 1, vocab_size, vocab_size + 7}) {
        for (auto [top_p, min_p] : {std::pair{1.0f, 1.0f}, {1e-30f, 0.0f}, {0.999f, 0.5f}}) {
          Sequence& s = sequences.emplace_back();
          s.parameters = Parameters(temperature, top_k, top_p, min_p, sequences.size());
        }
      }
    }
    std::vector<std::vector<float>> logits;
    for (size_t i = 0; i < sequences.size(); ++i) {
      logits.push_back(RandomLogits(vocab_size, random, false));
      if (i % 3 == 0) {  // one live token
        const float kept = logits.back()[i % vocab_size];
        std::fill(logits.back().begin(), logits.back().end(), -INFINITY);
        logits.back()[i % vocab_size] = kept;
      }
    }
    Twins twins(sequences, vocab_size);
    twins.ExpectSame(logits, "vocabulary " + std::to_string(vocab_size));
  }
}

TEST(CudaSampling, SaysSomethingWhereNoLogitDoes) {
  std::vector<Sequence> sequences(2);
  for (Sequence& s : sequences) s.parameters = Parameters(1, 0, 0.9f, 0, 4);
  sequences[1].parameters.logprobs = 2;
  sequences[1].forbidden = {0, 1};
  Twins twins(sequences, 40);
  twins.ExpectSame({std::vector<float>(40, -INFINITY), std::vector<float>(40, NAN)},
                   "nothing is possible");
}

TEST(CudaSampling, GivesTheBestTwentyAndTheInfiniteOne) {
  Sequence s;
  s.parameters = Parameters(0, 0, 1, 0, 4);
  s.parameters.logprobs = 20;
  std::mt19937 random(2);
  std::vector<float> logits = RandomLogits(700, random, false), infinite = logits;
  infinite[300] = INFINITY;
  Twins twins({s, s}, 700);
  twins.ExpectSame({logits, infinite}, "twenty");
}

}  // namespace
}  // namespace ziggurat::cuda

#include "model/sampling/sampling.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/sampling/logit_math.h"

namespace ziggurat {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

SamplingParameters Seeded(uint64_t seed = 1) {
  SamplingParameters parameters;
  parameters.temperature = 1;
  parameters.seed = seed;
  return parameters;
}

int32_t SampleOnce(Sampler& sampler, std::vector<float> logits,
                   std::vector<int32_t> forbidden = {}) {
  return sampler.Sample(absl::MakeSpan(logits), forbidden).token_id;
}

int32_t Greedy(std::vector<float> logits, std::vector<int32_t> forbidden = {}) {
  Sampler sampler({}, {}, static_cast<int>(logits.size()));
  return SampleOnce(sampler, std::move(logits), std::move(forbidden));
}

/// How often each token is drawn.
std::vector<int> Draws(const SamplingParameters& parameters, const std::vector<float>& logits,
                       int count) {
  Sampler sampler(parameters, {}, static_cast<int>(logits.size()));
  std::vector<int> draws(logits.size(), 0);
  for (int i = 0; i < count; ++i) ++draws[static_cast<size_t>(SampleOnce(sampler, logits))];
  return draws;
}

std::set<int> Drawn(const SamplingParameters& parameters, const std::vector<float>& logits) {
  const std::vector<int> draws = Draws(parameters, logits, 4000);
  std::set<int> drawn;
  for (size_t id = 0; id < draws.size(); ++id) {
    if (draws[id] > 0) drawn.insert(static_cast<int>(id));
  }
  return drawn;
}

/// Logits of these probabilities, up to a constant.
std::vector<float> Logits(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p) + 3));
  return logits;
}

/// Pearson's chi-square of draws against probabilities, divided by its degrees of freedom.
double ChiSquarePerDegree(const std::vector<int>& draws, const std::vector<double>& probabilities) {
  const double total = std::accumulate(draws.begin(), draws.end(), 0.0);
  double sum = 0;
  int degrees = -1;
  for (size_t i = 0; i < draws.size(); ++i) {
    const double expected = total * probabilities[i];
    if (expected == 0) {
      EXPECT_EQ(draws[i], 0) << "token " << i << " has no probability";
      continue;
    }
    sum += (draws[i] - expected) * (draws[i] - expected) / expected;
    ++degrees;
  }
  return sum / degrees;
}

TEST(Validate, AcceptsTheLimits) {
  SamplingParameters p;
  EXPECT_TRUE(Validate(p).ok());
  p = {.temperature = 100,
       .top_k = 1 << 30,
       .top_p = 1,
       .min_p = 1,
       .repetition_penalty = 10,
       .presence_penalty = 2,
       .frequency_penalty = -2,
       .seed = 0,
       .logprobs = 20};
  EXPECT_TRUE(Validate(p).ok());
}

TEST(Validate, NamesParameterValueAndRange) {
  const auto refuses = [](SamplingParameters p, const char* name, const char* value) {
    const absl::Status status = Validate(p);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name << " " << value;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(name) + " is " + value));
    EXPECT_THAT(std::string(status.message()), HasSubstr("must be"));
  };
  for (const auto& [bad, text] : std::vector<std::pair<float, const char*>>{
           {kNaN, "nan"}, {kInfinity, "inf"}, {-kInfinity, "-inf"}, {-3, "-3"}}) {
    refuses({.temperature = bad}, "temperature", text);
    refuses({.top_p = bad}, "top_p", text);
    refuses({.min_p = bad}, "min_p", text);
    refuses({.repetition_penalty = bad}, "repetition_penalty", text);
    refuses({.presence_penalty = bad}, "presence_penalty", text);
    refuses({.frequency_penalty = bad}, "frequency_penalty", text);
  }
  refuses({.temperature = 100.5}, "temperature", "100.5");
  refuses({.top_k = -1}, "top_k", "-1");
  refuses({.top_k = -123456789}, "top_k", "-123456789");
  refuses({.top_p = 1.0000001f}, "top_p", "1.0000001");
  refuses({.top_p = 0}, "top_p", "0");
  refuses({.top_p = 1.5}, "top_p", "1.5");
  refuses({.min_p = 1.5}, "min_p", "1.5");
  refuses({.repetition_penalty = 0}, "repetition_penalty", "0");
  refuses({.repetition_penalty = 11}, "repetition_penalty", "11");
  refuses({.logprobs = 21}, "logprobs", "21");
  refuses({.logprobs = -2}, "logprobs", "-2");
}

TEST(Greedy, TakesTheHighestAndOfEqualsTheLowest) {
  EXPECT_EQ(Greedy({1, 3, 2}), 1);
  EXPECT_EQ(Greedy({-1, -3, -0.5, -0.5}), 2);
  for (const size_t size : {1u, 15u, 16u, 17u, 1000u}) {
    for (size_t best = 0; best < size; ++best) {
      std::vector<float> logits(size, -5);
      logits[best] = -4;
      if (best + 1 < size) logits[size - 1] = -4;
      ASSERT_EQ(Greedy(logits), static_cast<int32_t>(best)) << size;
    }
  }
}

TEST(Greedy, LeavesForbiddenTokensOut) {
  EXPECT_EQ(Greedy({1, 3, 2}, {1}), 2);
  EXPECT_EQ(Greedy({1, 3, 2}, {1, 2, -7, 99}), 0);
}

TEST(Greedy, SurvivesLogitsThatAreNotNumbers) {
  EXPECT_EQ(Greedy({kNaN, 1, kNaN, 2}), 3);
  EXPECT_EQ(Greedy({1, kInfinity, kInfinity}), 1);
  EXPECT_EQ(Greedy({kNaN, kNaN}), 0);
  EXPECT_EQ(Greedy({-kInfinity, -kInfinity, -kInfinity}, {0}), 1);
  EXPECT_EQ(Greedy({1, 2}, {0, 1}), 0) << "everything forbidden: some token all the same";
}

TEST(Sampling, SurvivesLogitsThatAreNotNumbers) {
  for (const int top_k : {0, 2}) {
    for (const float top_p : {1.0f, 0.5f}) {
      for (const float temperature : {1.0f, 1e-40f, 100.0f}) {
        SamplingParameters p = Seeded();
        p.top_k = top_k;
        p.top_p = top_p;
        p.temperature = temperature;
        Sampler sampler(p, {}, 4);
        EXPECT_EQ(SampleOnce(sampler, {kNaN, 5, kNaN, -kInfinity}), 1);
        EXPECT_EQ(SampleOnce(sampler, {kNaN, kNaN, kNaN, kNaN}), 0);
        EXPECT_EQ(SampleOnce(sampler, {0, 0, kInfinity, 0}), 2);
        EXPECT_EQ(SampleOnce(sampler, {-kInfinity, -kInfinity, -3e38f, -kInfinity}), 2);
        EXPECT_EQ(SampleOnce(sampler, {3, 3, 3, 3}, {0, 1, 2}), 3);
      }
    }
  }
}

TEST(Sampling, FollowsTheDistribution) {
  std::vector<double> probabilities;
  for (int i = 0; i < 600; ++i) probabilities.push_back(1.0 + (i * 37) % 101);
  const double total = std::accumulate(probabilities.begin(), probabilities.end(), 0.0);
  for (double& p : probabilities) p /= total;
  const double chi =
      ChiSquarePerDegree(Draws(Seeded(), Logits(probabilities), 60000), probabilities);
  // 599 degrees of freedom: mean 1, deviation sqrt(2 / 599) = 0.058; four deviations.
  EXPECT_NEAR(chi, 1, 0.24);
}

TEST(Sampling, TemperatureIsAnExponent) {
  const std::vector<double> probabilities = {0.5, 0.3, 0.2};
  SamplingParameters p = Seeded();
  p.temperature = 0.5;
  std::vector<double> squares = {0.25 / 0.38, 0.09 / 0.38, 0.04 / 0.38};
  EXPECT_LT(ChiSquarePerDegree(Draws(p, Logits(probabilities), 20000), squares), 6);
  p.temperature = 1e-6f;
  EXPECT_EQ(Draws(p, Logits(probabilities), 1000)[0], 1000);
}

TEST(Sampling, FiltersKeepExactlyWhatTheySay) {
  const std::vector<float> logits = Logits({0.05, 0.4, 0.1, 0.25, 0.2});
  SamplingParameters p = Seeded();
  p.top_k = 2;
  EXPECT_EQ(Drawn(p, logits), (std::set<int>{1, 3}));
  p = Seeded();
  p.top_p = 0.6f;
  EXPECT_EQ(Drawn(p, logits), (std::set<int>{1, 3})) << "0.4 + 0.25 is the first to reach 0.6";
  p.top_p = 0.7f;
  EXPECT_EQ(Drawn(p, logits), (std::set<int>{1, 3, 4}));
  p.top_p = 1e-6f;
  EXPECT_EQ(Drawn(p, logits), (std::set<int>{1}));
  p = Seeded();
  p.min_p = 0.45f;
  EXPECT_EQ(Drawn(p, logits), (std::set<int>{1, 3, 4})) << "at least 0.18";
  p.min_p = 1;
  EXPECT_EQ(Drawn(p, logits), (std::set<int>{1}));
  p = Seeded();
  p.top_k = 3;
  p.top_p = 0.7f;
  EXPECT_EQ(Drawn(p, logits), (std::set<int>{1, 3})) << "of 0.85 that top-k leaves, 0.65 is 0.76";
  p.top_p = 0.8f;
  p.min_p = 0.55f;
  EXPECT_EQ(Drawn(p, logits), (std::set<int>{1, 3}));
  p = Seeded();
  p.top_p = 0.95f;
  p.min_p = 0.3f;
  EXPECT_EQ(Drawn(p, logits), (std::set<int>{1, 3, 4}));
}

TEST(Sampling, OfEqualTokensTopKAndTopPKeepTheLowest) {
  SamplingParameters p = Seeded();
  p.top_k = 3;
  EXPECT_EQ(Drawn(p, std::vector<float>(8, 1.0f)), (std::set<int>{0, 1, 2}));
  p = Seeded();
  p.top_p = 0.5f;
  EXPECT_EQ(Drawn(p, std::vector<float>(8, 1.0f)), (std::set<int>{0, 1, 2, 3}));
}

TEST(Sampling, FiltersThatAreMetExactlyKeepWhatMeetsThem) {
  SamplingParameters p = Seeded();
  p.top_k = 8;
  p.top_p = 0.5f;
  EXPECT_EQ(Drawn(p, std::vector<float>(9, 1.0f)), (std::set<int>{0, 1, 2, 3}))
      << "four of eight are the half";
  p = Seeded();
  p.top_k = 3;
  p.min_p = 1;
  EXPECT_EQ(Drawn(p, std::vector<float>(9, 1.0f)), (std::set<int>{0, 1, 2}))
      << "all are as probable as the best";
  p = Seeded();
  p.top_k = 3;
  EXPECT_EQ(Drawn(p, {1, 0, 1, 1}), (std::set<int>{0, 2, 3})) << "one less than the vocabulary";
}

TEST(Sampling, WhatAFilterLeavesKeepsItsProportions) {
  const std::vector<float> logits = Logits({0.05, 0.4, 0.1, 0.25, 0.2});
  SamplingParameters p = Seeded();
  p.top_k = 3;
  const std::vector<double> expected = {0, 0.4 / 0.85, 0, 0.25 / 0.85, 0.2 / 0.85};
  EXPECT_LT(ChiSquarePerDegree(Draws(p, logits, 20000), expected), 6);
  p = Seeded();
  p.top_p = 0.8f;
  EXPECT_LT(ChiSquarePerDegree(Draws(p, logits, 20000), expected), 6);
  p = Seeded();
  p.min_p = 0.4f;
  EXPECT_LT(ChiSquarePerDegree(Draws(p, logits, 20000), expected), 6);
}

TEST(Sampling, TopPOfALargeVocabularyEqualsASort) {
  std::mt19937 random(5);
  const size_t vocab = 5003;
  for (const float scale : {0.01f, 1.0f, 10.0f, 60.0f}) {
    std::vector<float> logits(vocab);
    for (float& logit : logits) logit = scale * static_cast<float>(random() % 2000) / 1000;
    logits[17] = NAN;
    logits[18] = -kInfinity;
    std::vector<float> all;
    std::vector<double> sums;
    const float best = LargestLogit(logits);
    FillWeights(logits, best, 1, 0, all);
    const double total = SumWeights(all, sums);
    std::vector<size_t> order(vocab);
    std::iota(order.begin(), order.end(), size_t{0});
    const auto key = [&](size_t id) { return std::isnan(logits[id]) ? -kInfinity : logits[id]; };
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return key(a) > key(b); });
    for (const double share : {0.01, 0.77, 0.999}) {
      const double wanted = share * total;
      std::set<size_t> expected;
      double sum = 0;
      for (size_t i = 0; sum < wanted; ++i) {
        expected.insert(order[i]);
        sum += static_cast<double>(all[order[i]]);
      }
      std::vector<float> weights = all;
      std::vector<int32_t> candidates;
      KeepBestMass(logits, best, 1, total, wanted, weights, candidates);
      std::set<size_t> kept;
      for (size_t id = 0; id < vocab; ++id) {
        if (weights[id] == 0) continue;
        ASSERT_EQ(weights[id], all[id]);
        kept.insert(id);
      }
      EXPECT_EQ(kept, expected) << "scale " << scale << ", share " << share;
    }
  }
}

TEST(Sampling, TopPOfEverythingKeepsEverything) {
  const std::vector<float> logits = {1, -20, 0, -10, 0.5f};
  std::vector<float> weights;
  std::vector<double> sums;
  FillWeights(logits, 1, 1, 0, weights);
  const std::vector<float> all = weights;
  const double total = SumWeights(weights, sums);
  std::vector<int32_t> candidates;
  KeepBestMass(logits, 1, 1, total, total, weights, candidates);
  EXPECT_EQ(weights, all);
}

// What the width of vectors must not change: one token at a time, in the order that is prescribed.
TEST(Sampling, WeightsAndSumsAreTheSameBitsAsOneAtATime) {
  std::mt19937 random(11);
  for (const size_t vocab : {1u, 7u, 16u, 255u, 256u, 257u, 4001u}) {
    std::vector<float> logits(vocab);
    for (float& logit : logits) logit = static_cast<float>(random() % 100000) / 1000 - 90;
    if (vocab > 7) logits[7] = NAN;
    logits[vocab / 2] = kInfinity;
    const float best = LargestLogit(logits);
    ASSERT_EQ(best, std::numeric_limits<float>::max());
    logits[vocab / 2] = 10;
    for (const float temperature : {0.3f, 1.0f, 7.0f}) {
      std::vector<float> weights;
      std::vector<double> sums;
      FillWeights(logits, 10, temperature, 1e-9f, weights);
      for (size_t id = 0; id < vocab; ++id) {
        const float weight = Weight(logits[id], 10, temperature);
        ASSERT_EQ(weights[id], weight >= 1e-9f ? weight : 0) << id;
      }
      const double total = SumWeights(weights, sums);
      double expected_total = 0;
      for (size_t block = 0; block * kWeightBlock < vocab; ++block) {
        double lanes[8] = {}, expected = 0;
        for (size_t i = block * kWeightBlock; i < std::min(vocab, (block + 1) * kWeightBlock);
             ++i) {
          lanes[i % 8] += static_cast<double>(weights[i]);
        }
        for (const double lane : lanes) expected += lane;
        ASSERT_EQ(sums[block], expected) << block;
        expected_total += expected;
      }
      ASSERT_EQ(total, expected_total);
    }
  }
}

TEST(Sampling, KeepAtLeastDropsTheRest) {
  std::vector<float> weights(1000, 0.25f);
  weights[3] = 0;
  weights[4] = kNaN;
  weights[500] = 0.5f;
  weights[970] = 0.75f;
  std::vector<float> expected(1000, 0.0f);
  expected[500] = 0.5f;
  expected[970] = 0.75f;
  std::vector<int32_t> kept(7);
  KeepAtLeast(0.5f, absl::MakeSpan(weights), kept);
  EXPECT_EQ(kept, (std::vector<int32_t>{500, 970}));
  EXPECT_EQ(weights, expected);
  KeepAtLeast(0, absl::MakeSpan(weights), kept);
  EXPECT_EQ(kept, (std::vector<int32_t>{500, 970})) << "no zeros";
  EXPECT_EQ(weights, expected);
}

/// FNV-1a over the bits of what comes.
class BitHash {
 public:
  template <class T>
  void Add(T value) {
    unsigned char bytes[sizeof(value)];
    std::memcpy(bytes, &value, sizeof(value));
    for (const unsigned char byte : bytes) hash_ = (hash_ ^ byte) * 0x100000001b3ULL;
  }
  uint64_t hash() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325ULL;
};

// The same seed gives the same text on every machine, and with every version: these are the bits
// that vectors of four lanes gave and those of eight.
TEST(Sampling, BitsAreTheSameOnEveryMachine) {
  std::mt19937 random(21);
  std::vector<float> logits(5003);
  for (float& logit : logits) logit = static_cast<float>(random() % 400000) / 10000 - 30;
  BitHash weights_hash;
  for (const float temperature : {0.3f, 1.0f, 7.0f}) {
    std::vector<float> weights;
    std::vector<double> sums;
    FillWeights(logits, LargestLogit(logits), temperature, 0, weights);
    weights_hash.Add(SumWeights(weights, sums));
    for (const float weight : weights) weights_hash.Add(weight);
    for (const double sum : sums) weights_hash.Add(sum);
  }
  EXPECT_EQ(weights_hash.hash(), 11524640386515618716ULL);

  BitHash tokens_hash;
  for (int kind = 0; kind < 5; ++kind) {
    SamplingParameters how = Seeded(static_cast<uint64_t>(kind));
    how.temperature = 2;
    if (kind == 1 || kind == 4) how.top_p = 0.9f;
    if (kind == 2 || kind == 4) how.min_p = 0.02f;
    if (kind == 3) how.top_k = 40;
    Sampler sampler(how, {}, static_cast<int>(logits.size()));
    for (int i = 0; i < 50; ++i) tokens_hash.Add(SampleOnce(sampler, logits));
  }
  EXPECT_EQ(tokens_hash.hash(), 15363927485659528870ULL);
}

TEST(Sampling, SameSeedSameTokens) {
  std::mt19937 random(7);
  std::vector<std::vector<float>> steps(200, std::vector<float>(1000));
  for (auto& logits : steps) {
    for (float& logit : logits) logit = static_cast<float>(random() % 4000) / 1000;
  }
  const auto text = [&](uint64_t seed, float top_p) {
    SamplingParameters p = Seeded(seed);
    p.top_p = top_p;
    p.repetition_penalty = 1.1f;
    Sampler sampler(p, std::vector<int32_t>{1, 2, 3}, 1000);
    std::vector<int32_t> tokens;
    for (const auto& logits : steps) tokens.push_back(SampleOnce(sampler, logits));
    return tokens;
  };
  EXPECT_EQ(text(42, 1), text(42, 1));
  EXPECT_EQ(text(42, 0.9f), text(42, 0.9f));
  EXPECT_NE(text(42, 1), text(43, 1));
}

TEST(Sampling, TokensOfASeedAreFixedForAllTime) {
  // Eight equal weights: the draw is the top three bits of the generator, which is specified to the
  // bit, so these tokens are the same with every compiler and on every machine.
  const std::vector<float> logits(8, 0.0f);
  Sampler sampler(Seeded(1), {}, 8);
  std::mt19937_64 random(1);
  for (int i = 0; i < 100; ++i) {
    const int32_t expected = static_cast<int32_t>(random() >> 61);
    ASSERT_EQ(SampleOnce(sampler, logits), expected) << i;
  }
}

TEST(Sampling, NumbersOfADrawAreOnAGridOfTheFinestThatADoubleHasBelowOne) {
  Sampler sampler(Seeded(7), {}, 2);
  std::mt19937_64 random(7);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(sampler.DrawNumber(), static_cast<double>(random() >> 11) * 0x1p-53) << i;
  }
}

TEST(Sampling, WithoutASeedTwoSequencesDiffer) {
  SamplingParameters p;
  p.temperature = 1;
  const std::vector<float> flat(1000, 0.0f);
  EXPECT_NE(Draws(p, flat, 50), Draws(p, flat, 50));
}

TEST(Penalties, RepetitionDividesPositiveAndMultipliesNegativeLogitsOfPromptAndOutput) {
  SamplingParameters p;
  p.repetition_penalty = 2;
  Sampler sampler(p, std::vector<int32_t>{0, 0, 0, -5, 77}, 4);
  EXPECT_EQ(SampleOnce(sampler, {3, 2, 1, 0}), 1) << "3 / 2, once for all occurrences";
  EXPECT_EQ(SampleOnce(sampler, {3, 2.5, 1.6f, 0}), 2) << "the output counts as well";
  EXPECT_EQ(SampleOnce(sampler, {-1, -1.5f, -2, -1.9f}), 3) << "-2, -3, -4 and untouched";
}

TEST(Penalties, RepetitionCountsATokenOfBothOnce) {
  SamplingParameters p;
  p.repetition_penalty = 2;
  Sampler sampler(p, std::vector<int32_t>{0}, 2);
  EXPECT_EQ(SampleOnce(sampler, {9, 1}), 0);
  EXPECT_EQ(SampleOnce(sampler, {9, 4}), 0) << "4.5, of prompt and output; twice would be 2.25";
  EXPECT_EQ(SampleOnce(sampler, {9, 5}), 1);
}

TEST(Penalties, SeenAreTheTokensThatTheyConcern) {
  const std::vector<int32_t> prompt = {2, 0, 2};
  const auto seen = [](const Sampler& sampler) {
    std::map<int, int> counts;
    for (const Sampler::Seen& of : sampler.seen()) counts[of.id] = of.output_count;
    EXPECT_EQ(sampler.num_seen(), static_cast<int>(counts.size()));
    return counts;
  };
  SamplingParameters p;
  p.repetition_penalty = 2;
  Sampler repetition(p, prompt, 4);
  EXPECT_EQ(seen(repetition), (std::map<int, int>{{0, 0}, {2, 0}}));
  for (const int32_t id : {2, 3, 3}) repetition.Took(id);
  EXPECT_EQ(seen(repetition), (std::map<int, int>{{0, 0}, {2, 1}, {3, 2}}));
  p = {};
  p.presence_penalty = 1;
  Sampler presence(p, prompt, 4);
  EXPECT_EQ(seen(presence), (std::map<int, int>{})) << "the prompt does not count";
  for (const int32_t id : {2, 3, 3}) presence.Took(id);
  EXPECT_EQ(seen(presence), (std::map<int, int>{{2, 1}, {3, 2}}));
}

TEST(Penalties, RepetitionGoesBeforePresenceAndFrequency) {
  SamplingParameters presence;
  presence.presence_penalty = 1;
  SamplingParameters frequency;
  frequency.frequency_penalty = 1;
  for (SamplingParameters p : {presence, frequency}) {
    p.repetition_penalty = 2;
    Sampler sampler(p, {}, 2);
    EXPECT_EQ(SampleOnce(sampler, {4, 0}), 0);
    EXPECT_EQ(SampleOnce(sampler, {4, 1.2f}), 1) << "4 / 2 - 1, not (4 - 1) / 2";
  }
}

TEST(Penalties, PresenceAndFrequencyCountTheOutputOnly) {
  SamplingParameters p;
  p.presence_penalty = 1;
  Sampler presence(p, std::vector<int32_t>{0}, 2);
  EXPECT_EQ(SampleOnce(presence, {2, 1.5f}), 0) << "the prompt does not count";
  EXPECT_EQ(SampleOnce(presence, {2, 1.5f}), 1);
  EXPECT_EQ(SampleOnce(presence, {2, 1.5f}), 0) << "both once: no more than 1 each";
  EXPECT_EQ(SampleOnce(presence, {2, 1.5f}), 0);

  p = {};
  p.frequency_penalty = 0.4f;
  Sampler frequency(p, {}, 2);
  EXPECT_EQ(SampleOnce(frequency, {2, 1}), 0);
  EXPECT_EQ(SampleOnce(frequency, {2, 1}), 0) << "1.6";
  EXPECT_EQ(SampleOnce(frequency, {2, 1}), 0) << "1.2";
  EXPECT_EQ(SampleOnce(frequency, {2, 1}), 1) << "0.8";
}

TEST(Logprobs, AreOfTheDistributionBeforeEverything) {
  SamplingParameters p = Seeded();
  p.temperature = 0.3f;
  p.top_k = 1;
  p.repetition_penalty = 5;
  p.logprobs = 3;
  const std::vector<double> probabilities = {0.1, 0.5, 0.15, 0.25};
  std::vector<float> logits = Logits(probabilities);
  Sampler sampler(p, std::vector<int32_t>{1}, 4);
  const SampledToken token = sampler.Sample(absl::MakeSpan(logits), std::vector<int32_t>{3});
  EXPECT_EQ(token.token_id, 2);
  EXPECT_NEAR(token.logprob, std::log(0.15), 1e-5);
  ASSERT_EQ(token.top.size(), 3u);
  EXPECT_EQ(token.top[0].token_id, 1);
  EXPECT_EQ(token.top[1].token_id, 3);
  EXPECT_EQ(token.top[2].token_id, 2);
  for (const TokenLogprob& top : token.top) {
    EXPECT_NEAR(top.logprob, std::log(probabilities[static_cast<size_t>(top.token_id)]), 1e-5);
  }
}

TEST(Logprobs, OfGreedyAndOfSmallVocabularies) {
  SamplingParameters p;
  p.logprobs = 0;
  std::vector<float> logits = Logits({0.25, 0.75});
  SampledToken token = Sampler(p, {}, 2).Sample(absl::MakeSpan(logits), {});
  EXPECT_EQ(token.token_id, 1);
  EXPECT_NEAR(token.logprob, std::log(0.75), 1e-6);
  EXPECT_TRUE(token.top.empty());
  p.logprobs = 20;
  logits = {kNaN, 1};
  token = Sampler(p, {}, 2).Sample(absl::MakeSpan(logits), {});
  ASSERT_EQ(token.top.size(), 1u) << "NaN is no candidate";
  EXPECT_NEAR(token.top[0].logprob, 0, 1e-6);
  logits = {kNaN, kNaN};
  token = Sampler(p, {}, 2).Sample(absl::MakeSpan(logits), {});
  EXPECT_EQ(token.logprob, -kInfinity);
  logits = {1, kNaN};
  token = Sampler(p, {}, 2).Sample(absl::MakeSpan(logits), std::vector<int32_t>{0});
  EXPECT_EQ(token.token_id, 1) << "the only one that is allowed";
  EXPECT_EQ(token.logprob, -kInfinity);
  logits = {1, kInfinity};
  token = Sampler(p, {}, 2).Sample(absl::MakeSpan(logits), {});
  EXPECT_EQ(token.token_id, 1);
  EXPECT_EQ(token.logprob, 0) << "it counts as the largest number";
}

}  // namespace
}  // namespace ziggurat

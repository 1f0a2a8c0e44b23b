// Divergences against plain formulas, and what a meter makes of attention that is known.
#include "model/calibration/attention_similarity.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/stub_model.h"

namespace ziggurat {
namespace {

using Distribution = std::vector<float>;

Distribution RandomDistribution(size_t size, double sharpness, std::mt19937& random) {
  std::normal_distribution<double> normal(0, sharpness);
  std::vector<double> shares;
  double sum = 0;
  for (size_t i = 0; i < size; ++i) sum += shares.emplace_back(std::exp(normal(random)));
  Distribution distribution;
  for (const double share : shares) distribution.push_back(static_cast<float>(share / sum));
  return distribution;
}

/// (KL(p || m) + KL(q || m)) / 2 with m = (p + q) / 2, base 2.
double PlainDivergence(const Distribution& p, const Distribution& q) {
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double mean = (static_cast<double>(p[i]) + q[i]) / 2;
    if (p[i] > 0) sum += p[i] * std::log(p[i] / mean) / 2;
    if (q[i] > 0) sum += q[i] * std::log(q[i] / mean) / 2;
  }
  return sum / std::log(2.0);
}

TEST(JsDivergence, IsThatOfThePlainFormula) {
  std::mt19937 random(1);
  double least = 1, most = 0;
  for (int round = 0; round < 500; ++round) {
    const size_t size = 1 + random() % 2000;
    const double sharpness = 0.01 + 0.01 * static_cast<double>(random() % 800);
    Distribution p = RandomDistribution(size, sharpness, random);
    Distribution q = RandomDistribution(size, sharpness, random);
    const double plain = PlainDivergence(p, q);
    EXPECT_NEAR(JsDivergence(p, q), plain, 2e-6) << size << " tokens";
    EXPECT_EQ(JsDivergence(p, q), JsDivergence(q, p));
    least = std::min(least, plain);
    most = std::max(most, plain);
  }
  EXPECT_LT(least, 0.01);
  EXPECT_GT(most, 0.8);
}

TEST(JsDivergence, IsNothingBetweenEqualsAndOneBitBetweenStrangers) {
  std::mt19937 random(2);
  for (int round = 0; round < 100; ++round) {
    const Distribution p = RandomDistribution(1 + random() % 3000, 3, random);
    EXPECT_EQ(JsDivergence(p, p), 0);
    Distribution before(p), after(p.size());
    before.resize(2 * p.size());
    after.insert(after.end(), p.begin(), p.end());
    EXPECT_NEAR(JsDivergence(before, after), 1, 2e-6);
  }
  // By hand: 1 - H((3/4, 1/4)) + ... of a coin that falls on one side and a fair one.
  EXPECT_NEAR(JsDivergence({1, 0}, {0.5, 0.5}), 0.31127812, 1e-6);
}

/// A model whose attention a test says: of layer, query head and row, over tokens 0 .. row.
class KnownModel : public StubModel {
 public:
  using Attention = std::function<Distribution(int layer, int head, int sees)>;
  KnownModel(const StubModelOptions& options, Attention attention)
      : StubModel(options), attention_(std::move(attention)) {
    AttachPool({&block_, 1});  // the stub wants one; nothing is written
  }

  absl::StatusOr<std::unique_ptr<PromptBatch>> BeginPrefill(
      int lane, absl::Span<const PrefillPrompt> prompts) override {
    auto stub = StubModel::BeginPrefill(lane, prompts);
    if (!stub.ok()) return stub.status();
    return std::make_unique<Batch>(this, static_cast<int>(prompts[0].token_ids.size()),
                                   *std::move(stub));
  }

 private:
  class Batch final : public PromptBatch {
   public:
    Batch(const KnownModel* model, int tokens, std::unique_ptr<PromptBatch> stub)
        : model_(*model), tokens_(tokens), stub_(std::move(stub)) {}
    void Drop(int prompt) override { stub_->Drop(prompt); }
    absl::StatusOr<bool> AttendLayer(int layer, PauseTest pause,
                                     std::vector<LayerMeasured>* measured) override {
      layer_ = layer;
      return stub_->AttendLayer(layer, pause, measured);
    }
    absl::Status WriteLayer(int layer, absl::Span<const LayerWrite> writes) override {
      return stub_->WriteLayer(layer, writes);
    }
    absl::StatusOr<bool> FinishLayer(int layer, PauseTest pause,
                                     std::vector<double>* cosines) override {
      return stub_->FinishLayer(layer, pause, cosines);
    }
    absl::Status SelectStored(int prompt, int layer, const KeepBest& edit,
                              std::vector<int32_t>* kept) override {
      return stub_->SelectStored(prompt, layer, edit, kept);
    }
    absl::Status LastLogits(float* logits) override { return stub_->LastLogits(logits); }
    absl::Status LastAttention(int prompt, int rows, float* attention) override {
      EXPECT_EQ(prompt, 0);
      for (int head = 0; head < model_.shape().num_q_heads; ++head) {
        for (int row = 0; row < rows; ++row, attention += tokens_) {
          const Distribution of_row = model_.attention_(layer_, head, tokens_ - rows + row + 1);
          std::fill_n(attention, tokens_, 0.0f);
          std::copy(of_row.begin(), of_row.end(), attention);
        }
      }
      return absl::OkStatus();
    }

   private:
    const KnownModel& model_;
    const int tokens_;
    std::unique_ptr<PromptBatch> stub_;
    int layer_ = 0;
  };

  Attention attention_;
  std::byte block_{};
};

const StubModelOptions kOptions;  // 4 layers, 4 query heads, 2 KV heads

TEST(SimilarityMeter, AveragesOverTokensQueryHeadsAndSamples) {
  // The attention of a layer, head and number of tokens: the same whenever it is asked for.
  std::map<std::vector<int>, Distribution> known;
  std::mt19937 random(4);
  const auto attention = [&](int layer, int head, int sees) {
    Distribution& of = known[{layer, head, sees}];
    if (of.empty()) of = RandomDistribution(sees, 0.5 * (layer + 1), random);
    return of;
  };
  KnownModel model(kOptions, attention);
  constexpr int kLast = 5;
  SimilarityMeter meter(&model, kLast);
  const std::vector<int> lengths = {40, 3, 17};
  for (const int length : lengths) {
    const std::vector<int32_t> ids(length, 7);
    ASSERT_TRUE(meter.Add(ids).ok());
  }
  EXPECT_EQ(meter.samples(), 3);
  const LayerSimilarity mean = meter.Mean();
  ASSERT_EQ(mean.num_layers, 4);
  ASSERT_EQ(mean.num_kv_heads, 2);
  for (int kv_head = 0; kv_head < 2; ++kv_head) {
    for (int layer = 0; layer < 4; ++layer) {
      for (int other = 0; other < 4; ++other) {
        double expected = 0;
        for (const int length : lengths) {
          const int rows = std::min(kLast, length);  // the second sample has fewer
          double of_sample = 0;
          for (int head = 2 * kv_head; head < 2 * kv_head + 2; ++head) {
            for (int sees = length - rows + 1; sees <= length; ++sees) {
              of_sample +=
                  1 - PlainDivergence(attention(layer, head, sees), attention(other, head, sees));
            }
          }
          expected += of_sample / (2 * rows) / static_cast<double>(lengths.size());
        }
        EXPECT_NEAR(mean.At(kv_head, layer, other), expected, 2e-6)
            << "head " << kv_head << ", layers " << layer << " and " << other;
        EXPECT_EQ(mean.At(kv_head, layer, other), mean.At(kv_head, other, layer));
      }
    }
  }
}

TEST(SimilarityMeter, LayersThatAttendAlikeAreOneGroup) {
  KnownModel model(kOptions, [](int, int head, int sees) {
    std::mt19937 random(100 * head + sees);
    return RandomDistribution(sees, 2, random);
  });
  SimilarityMeter meter(&model, 8);
  const std::vector<int32_t> ids(30, 7);
  ASSERT_TRUE(meter.Add(ids).ok());
  const LayerSimilarity mean = meter.Mean();
  for (const double value : mean.values) EXPECT_EQ(value, 1);
  EXPECT_EQ(GroupLayers(mean, 1).lowest, std::vector<int>(8, 0));
}

TEST(SimilarityMeter, WhatDoesNotQuiteSumToOneIsMadeTo) {
  const auto attention = [](double scale) {
    return [scale](int layer, int head, int sees) {
      std::mt19937 random(1000 * layer + 100 * head + sees);
      Distribution distribution = RandomDistribution(sees, 1, random);
      for (float& share : distribution) share = static_cast<float>(share * scale);
      return distribution;
    };
  };
  KnownModel exact(kOptions, attention(1)), rounded(kOptions, attention(1.004));
  SimilarityMeter of_exact(&exact, 8), of_rounded(&rounded, 8);
  const std::vector<int32_t> ids(30, 7);
  ASSERT_TRUE(of_exact.Add(ids).ok());
  ASSERT_TRUE(of_rounded.Add(ids).ok());
  const LayerSimilarity a = of_exact.Mean(), b = of_rounded.Mean();
  for (size_t i = 0; i < a.values.size(); ++i) EXPECT_NEAR(a.values[i], b.values[i], 2e-6);
}

TEST(SimilarityMeter, AFailedSampleDoesNotCount) {
  bool is_broken = true;
  KnownModel model(kOptions, [&](int layer, int, int sees) {
    return Distribution(sees, is_broken && layer == 2 ? NAN : 1.0f / static_cast<float>(sees));
  });
  SimilarityMeter meter(&model, 8);
  const std::vector<int32_t> ids(30, 7);
  const absl::Status broken = meter.Add(ids);
  EXPECT_EQ(broken.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(broken.message()), testing::HasSubstr("is not a number"));
  EXPECT_EQ(meter.samples(), 0);
  is_broken = false;
  ASSERT_TRUE(meter.Add(ids).ok()) << "the failed sample must not be left behind in the model";
  EXPECT_EQ(meter.samples(), 1);
  for (const double value : meter.Mean().values) EXPECT_EQ(value, 1);
}

TEST(SimilarityMeter, PassesOnThatAModelDoesNotShowItsAttention) {
  StubModel model(kOptions);
  std::byte block{};
  model.AttachPool({&block, 1});
  SimilarityMeter meter(&model, 8);
  const std::vector<int32_t> ids(30, 7);
  EXPECT_EQ(meter.Add(ids).code(), absl::StatusCode::kUnimplemented);
}

TEST(SimilarityMeter, TheMemoryOfASampleIsItsAttentionInAllLayers) {
  EXPECT_EQ(SimilarityMeter::AttentionBytes(kOptions.shape, 8, 100), 4u * 4 * 4 * 8 * 100);
  EXPECT_EQ(SimilarityMeter::AttentionBytes(kOptions.shape, 8, 5), 4u * 4 * 4 * 5 * 5);
}

}  // namespace
}  // namespace ziggurat

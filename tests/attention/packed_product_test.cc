#include "attention/packed_product.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "attention/bfloat16.h"
#include "tests/attention/test_cache.h"

namespace ziggurat::testing {
namespace {

/// [rows, columns] bf16
std::vector<uint16_t> RandomRows(int rows, int columns, std::mt19937* random) {
  std::normal_distribution<float> normal(0, 1);
  std::vector<uint16_t> values(size_t{1} * rows * columns);
  for (uint16_t& value : values) value = FloatToBf16(normal(*random));
  return values;
}

struct Weights {
  Weights(int in_features, int out_features, std::mt19937* random)
      : in(in_features), out(out_features), plain(RandomRows(out, in, random)) {
    view.in_features = in;
    view.out_features = out;
    packed.assign(size_t{1} * view.panels() * view.rows() * 2 * PackedWeights::kPanel, 0);
    for (int o = 0; o < out; ++o) {
      for (int i = 0; i < in; ++i) {
        const size_t row = size_t{1} * (o / PackedWeights::kPanel) * view.rows() + i / 2;
        packed[(row * PackedWeights::kPanel + o % PackedWeights::kPanel) * 2 + i % 2] = At(o, i);
      }
    }
    view.data = reinterpret_cast<const std::byte*>(packed.data());
  }
  uint16_t At(int o, int i) const { return plain[size_t{1} * o * in + i]; }

  int in, out;
  std::vector<uint16_t> plain, packed;
  PackedWeights view;
};

/// Largest error of `y` against plain sums, by the size of the products that they add up.
double Deviation(const Weights& weights, const std::vector<uint16_t>& x, int rows,
                 const std::vector<float>& before, const float* bias, ElementType element,
                 const std::byte* y) {
  double worst = 0;
  for (int r = 0; r < rows; ++r) {
    for (int o = 0; o < weights.out; ++o) {
      double sum = bias == nullptr ? 0 : bias[o];
      if (!before.empty()) sum += before[size_t{1} * r * weights.out + o];
      double size = 1 + std::abs(sum);
      for (int i = 0; i < weights.in; ++i) {
        const double product =
            double{Bf16ToFloat(x[size_t{1} * r * weights.in + i])} * Bf16ToFloat(weights.At(o, i));
        sum += product;
        size += std::abs(product);
      }
      const size_t at = size_t{1} * r * weights.out + o;
      const double actual = element == ElementType::kF32
                                ? reinterpret_cast<const float*>(y)[at]
                                : Bf16ToFloat(reinterpret_cast<const uint16_t*>(y)[at]);
      worst = std::max(worst, std::abs(actual - sum) / size);
    }
  }
  return worst;
}

TEST(PackWeights, WritesEveryPanelPaddingIncluded) {
  std::mt19937 random(1);
  for (const auto& [in, out] : {std::pair{2, 1}, {32, 64}, {34, 65}, {126, 63}, {480, 200}}) {
    const Weights weights(in, out, &random);
    std::vector<uint16_t> packed(weights.view.bytes() / sizeof(uint16_t), 0xABCD);
    PackWeights(weights.plain.data(), in, out, reinterpret_cast<std::byte*>(packed.data()));
    EXPECT_EQ(packed, weights.packed) << in << " to " << out;
  }
}

class PackedProductTwins : public ::testing::TestWithParam<CpuLevel> {
 protected:
  void Check(int in, int out, int rows, bool has_bias) {
    const Weights weights(in, out, &random_);
    const std::vector<uint16_t> x = RandomRows(rows, in, &random_);
    std::normal_distribution<float> normal(0, 1);
    std::vector<float> bias(out), before(size_t{1} * rows * out);
    for (float& value : bias) value = normal(random_);
    for (float& value : before) value = normal(random_);
    PackedWeights view = weights.view;
    view.bias = has_bias ? bias.data() : nullptr;
    for (const ElementType element : {ElementType::kF32, ElementType::kBf16}) {
      // What stands behind the result must stay.
      std::vector<std::byte> y(before.size() * ElementBytes(element) + 64, std::byte{0x5a});
      product_->Run(view, x.data(), rows, element, false, y.data());
      EXPECT_LE(Deviation(weights, x, rows, {}, view.bias, element, y.data()),
                element == ElementType::kF32 ? 1e-6 : 4e-3)
          << rows << " rows of " << in << " by " << out;
      for (size_t i = y.size() - 64; i < y.size(); ++i) EXPECT_EQ(y[i], std::byte{0x5a});
    }
    std::vector<float> y = before;
    product_->Run(view, x.data(), rows, ElementType::kF32, true, y.data());
    EXPECT_LE(Deviation(weights, x, rows, before, view.bias, ElementType::kF32,
                        reinterpret_cast<const std::byte*>(y.data())),
              1e-6)
        << rows << " rows of " << in << " by " << out << ", added";
  }

  const std::unique_ptr<PackedProduct> product_ = MakePackedProduct(GetParam());
  std::mt19937 random_{5};
};

TEST_P(PackedProductTwins, AgreeForEveryNumberOfRows) {
  for (int rows = 1; rows <= 33; ++rows) Check(96, 80, rows, rows % 2 == 0);
  for (const int rows : {63, 64, 65, 71, 128, 131}) Check(70, 130, rows, rows % 2 == 0);
}

TEST_P(PackedProductTwins, AgreeForOddSizes) {
  for (const int in : {2, 30, 32, 34, 66, 2048, 2050, 4100}) {
    for (const int out : {1, 15, 16, 17, 63, 64, 65, 200}) {
      for (const int rows : {1, 3, 10, 16, 29}) Check(in, out, rows, out % 2 == 0);
    }
  }
  for (const int rows : {48, 71, 128}) Check(2050, 65, rows, true);
  // More panels than are taken at once, and weights of a whole near part and some rows.
  for (const int in : {36, 200, 2050}) {
    for (const int rows : {1, 2, 8}) Check(in, 700, rows, true);
  }
}

TEST_P(PackedProductTwins, GivesARowTheSameBitsWhateverOthersThereAre) {
  if (GetParam() == CpuLevel::kAvx512Bf16) GTEST_SKIP() << "not promised (PackedProduct::Run)";
  constexpr int kIn = 2050, kOut = 130;
  const int most = std::min(131, product_->max_rows());
  const Weights weights(kIn, kOut, &random_);
  const std::vector<uint16_t> x = RandomRows(most, kIn, &random_);
  const auto run = [&](int first, int rows) {
    std::vector<float> y(size_t{1} * rows * kOut);
    product_->Run(weights.view, &x[size_t{1} * first * kIn], rows, ElementType::kF32, false,
                  y.data());
    return y;
  };
  const std::vector<float> all = run(0, most);
  for (int rows = 1; rows <= most; rows += rows < 34 ? 1 : 16) {
    const int first = most - rows;
    EXPECT_EQ(run(first, rows), std::vector<float>(all.begin() + first * kOut, all.end()))
        << "the last " << rows << " rows of " << most;
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, PackedProductTwins, ::testing::ValuesIn(SupportedCpuLevels()));

}  // namespace
}  // namespace ziggurat::testing

// The best of many logits, and the exponential.
#include "model/sampling/logit_math.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace ziggurat {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

TEST(BestToken, IsTheFirstOfTheLargestWhereverItStands) {
  const float inf = std::numeric_limits<float>::infinity();
  const float largest = std::numeric_limits<float>::max();
  for (const size_t vocab : {1, 5, 1023, 1024, 1025, 3000, 32000}) {
    for (const size_t at : {size_t{0}, vocab / 2, vocab - 1}) {
      std::vector<float> logits(vocab, -1.0f);
      logits[at] = 2;
      logits[vocab - 1] = std::max(logits[vocab - 1], 1.5f);
      EXPECT_EQ(BestToken(logits), static_cast<int32_t>(at)) << vocab;
      logits[vocab - 1] = 2;  // as large, later
      EXPECT_EQ(BestToken(logits), static_cast<int32_t>(at)) << vocab;
      logits[vocab - 1] = at == vocab - 1 ? inf : largest;
      logits[at] = inf;  // counts as the largest number
      EXPECT_EQ(BestToken(logits), static_cast<int32_t>(at)) << vocab;
      for (size_t i = 0; i < at; ++i) logits[i] = i % 2 == 0 ? NAN : -inf;
      EXPECT_EQ(BestToken(logits), static_cast<int32_t>(at)) << vocab;
    }
  }
  EXPECT_EQ(BestToken(std::vector<float>(2000, -inf)), -1);
  EXPECT_EQ(BestToken(std::vector<float>(2000, NAN)), -1);
  EXPECT_EQ(BestToken({}), -1);
}

TEST(BestTokens, EqualsASort) {
  std::mt19937 random(3);
  for (const size_t vocab : {1u, 70u, 3000u}) {
    std::vector<float> logits(vocab);
    for (float& logit : logits) logit = static_cast<float>(random() % 50);  // many ties
    std::vector<int32_t> order(vocab);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    for (const size_t count : {0u, 1u, 5u, 64u, 1000u, 5000u}) {
      const std::vector<int32_t> expected(
          order.begin(), order.begin() + static_cast<std::ptrdiff_t>(std::min(count, vocab)));
      EXPECT_EQ(BestTokens(logits, count), expected) << vocab << ", " << count;
    }
  }
}

TEST(Weight, IsTheExponentialToSixDigits) {
  EXPECT_EQ(Weight(3, 3, 0.7f), 1.0f);
  EXPECT_EQ(Weight(-200, 0, 1), 0.0f);
  EXPECT_EQ(Weight(kNaN, 0, 1), 0.0f);
  for (float x = 0; x > -86.9f; x -= 0.0137f) {
    const double expected = std::exp(static_cast<double>(x));
    ASSERT_NEAR(Weight(x, 0, 1), expected, 1e-6 * expected) << x;
  }
}

}  // namespace
}  // namespace ziggurat

#include "tests/model/linear_checks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "attention/bfloat16.h"

namespace ziggurat::testing {
namespace {

/// Numbers in an element type, and what they are.
struct Numbers {
  std::vector<std::byte> stored;
  std::vector<float> values;
};

Numbers Random(size_t count, ElementType element, std::mt19937* random) {
  std::normal_distribution<float> normal(0, 1);
  Numbers numbers{std::vector<std::byte>(count * ElementBytes(element)), {}};
  for (size_t i = 0; i < count; ++i) {
    float value = normal(*random);
    std::byte* to = numbers.stored.data() + i * ElementBytes(element);
    if (element == ElementType::kBf16) {
      const uint16_t bits = FloatToBf16(value);
      value = Bf16ToFloat(bits);
      std::memcpy(to, &bits, sizeof(bits));
    } else {
      std::memcpy(to, &value, sizeof(value));
    }
    numbers.values.push_back(value);
  }
  return numbers;
}

/// x W^T + b
std::vector<double> Expected(const LinearCase& of, const std::vector<float>& weight,
                             const std::vector<float>& bias, const std::vector<float>& x) {
  const size_t rows = x.size() / of.in;
  std::vector<double> y;
  for (size_t row = 0; row < rows; ++row) {
    for (int o = 0; o < of.out; ++o) {
      double sum = bias.empty() ? 0 : bias[o];
      for (int i = 0; i < of.in; ++i) {
        sum += double{x[row * of.in + i]} * weight[size_t{1} * o * of.in + i];
      }
      y.push_back(sum);
    }
  }
  return y;
}

/// The largest difference, relative to the largest number expected; NaN where one is.
double Error(const std::vector<float>& got, const std::vector<double>& expected) {
  double difference = 0, largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!std::isfinite(got[i])) return NAN;
    difference = std::max(difference, std::abs(got[i] - expected[i]));
    largest = std::max(largest, std::abs(expected[i]));
  }
  return difference / largest;
}

}  // namespace

std::vector<LinearCase> LinearCases(ElementType element) {
  std::vector<LinearCase> cases;
  for (const bool has_bias : {false, true}) {
    for (const auto& [in, out] : {std::pair{64, 192}, std::pair{341, 128}, std::pair{128, 682},
                                  std::pair{7, 1}, std::pair{1, 33}, std::pair{768, 130}}) {
      cases.push_back({element, has_bias, in, out});
    }
  }
  return cases;
}

std::string LinearCaseName(const ::testing::TestParamInfo<LinearCase>& info) {
  const LinearCase& of = info.param;
  return absl::StrCat(of.element == ElementType::kF32 ? "F32" : "Bf16", of.has_bias ? "Bias" : "",
                      of.in, "To", of.out);
}

void CheckProducts(LinearFactory& factory, const LinearCase& of, double tolerance) {
  std::mt19937 random(3);
  const Numbers weights = Random(size_t{1} * of.out * of.in, of.element, &random);
  WeightMatrix matrix(of.out, of.in, of.element);
  std::memcpy(matrix.data(), weights.stored.data(), matrix.bytes());
  // bf16 numbers, so that an implementation may hold the bias in either type.
  std::vector<float> bias;
  if (of.has_bias) bias = Random(of.out, ElementType::kBf16, &random).values;
  auto linear = factory.Make(matrix, bias);
  ASSERT_TRUE(linear.ok()) << linear.status();
  matrix = {};  // whoever needs it has a copy

  for (const int rows : {1, 2, 3, 5, 16, 17, 33, 250, 1}) {
    SCOPED_TRACE(absl::StrCat(rows, " rows"));
    const size_t outputs = size_t{1} * rows * of.out;
    const Numbers x = Random(size_t{1} * rows * of.in, of.element, &random);
    const std::vector<double> expected = Expected(of, weights.values, bias, x.values);

    std::vector<float> y(outputs, NAN);
    ASSERT_TRUE((*linear)->Run(x.stored.data(), rows, ElementType::kF32, y.data()).ok());
    EXPECT_LE(Error(y, expected), tolerance);

    std::vector<float> sum = Random(outputs, ElementType::kF32, &random).values;
    std::vector<double> expected_sum = expected;
    for (size_t i = 0; i < outputs; ++i) expected_sum[i] += sum[i];
    ASSERT_TRUE((*linear)->Accumulate(x.stored.data(), rows, sum.data()).ok());
    EXPECT_LE(Error(sum, expected_sum), tolerance);

    if (of.element == ElementType::kF32) continue;
    std::vector<uint16_t> narrow(outputs);
    ASSERT_TRUE((*linear)->Run(x.stored.data(), rows, of.element, narrow.data()).ok());
    std::vector<float> widened;
    for (const uint16_t bits : narrow) widened.push_back(Bf16ToFloat(bits));
    EXPECT_LE(Error(widened, expected), 1e-2);
  }
}

}  // namespace ziggurat::testing

#include "tests/model/linear_checks.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/attention/test_cache.h"

namespace ziggurat::testing {
namespace {

/// x W^T + b
std::vector<float> Expected(const LinearCase& of, const std::vector<float>& weight,
                            const std::vector<float>& bias, const std::vector<float>& x) {
  const size_t rows = x.size() / of.in;
  std::vector<float> y;
  for (size_t row = 0; row < rows; ++row) {
    for (int o = 0; o < of.out; ++o) {
      double sum = bias.empty() ? 0 : bias[o];
      for (int i = 0; i < of.in; ++i) {
        sum += double{x[row * of.in + i]} * weight[size_t{1} * o * of.in + i];
      }
      y.push_back(static_cast<float>(sum));
    }
  }
  return y;
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

void CheckProducts(LinearFactory& factory, const LinearCase& of, bool packs) {
  const Tensor weight = RandomTensor(of.element, size_t{1} * of.out * of.in, 1);
  std::vector<float> bias;
  if (of.has_bias) bias = RandomTensor(ElementType::kF32, of.out, 2).floats();
  WeightMatrix matrix(of.out, of.in, of.element);
  std::memcpy(matrix.data(), weight.data(), matrix.bytes());
  auto linear = factory.Make(WeightMatrix(matrix), bias);
  ASSERT_TRUE(linear.ok()) << linear.status();
  if (packs) std::fill_n(matrix.data(), matrix.bytes(), std::byte{0xFF});  // it has its own
  matrix = {};

  for (const int rows : {1, 2, 3, 5, 16, 17, 33, 250, 1}) {
    SCOPED_TRACE(absl::StrCat(rows, " rows"));
    const size_t outputs = size_t{1} * rows * of.out;
    const Tensor x = RandomTensor(of.element, size_t{1} * rows * of.in, 3 + rows);
    const std::vector<float> expected = Expected(of, weight.floats(), bias, x.floats());

    std::vector<float> y(outputs, NAN);
    ASSERT_TRUE((*linear)->Run(x.data(), rows, ElementType::kF32, y.data()).ok());
    EXPECT_LE(Deviation(y, expected), 2e-6);

    std::vector<float> sum = RandomTensor(ElementType::kF32, outputs, 4 + rows).floats();
    std::vector<float> expected_sum = expected;
    for (size_t i = 0; i < outputs; ++i) expected_sum[i] += sum[i];
    ASSERT_TRUE((*linear)->Accumulate(x.data(), rows, sum.data()).ok());
    EXPECT_LE(Deviation(sum, expected_sum), 2e-6);

    if (of.element == ElementType::kF32) continue;
    Tensor narrow(of.element, outputs);
    ASSERT_TRUE((*linear)->Run(x.data(), rows, of.element, narrow.data()).ok());
    EXPECT_LE(Deviation(narrow.floats(), expected), 1e-2);
  }
}

}  // namespace ziggurat::testing

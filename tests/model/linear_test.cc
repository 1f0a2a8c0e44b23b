// The products of every implementation against sums in double, over odd sizes and row counts.
#include "model/decoder/linear.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/decoder/caught_error.h"

namespace ziggurat {
namespace {

struct Sizes {
  int in, out;
};

class LinearTest
    : public ::testing::TestWithParam<std::tuple<std::string, ElementType, bool, Sizes>> {
 protected:
  void SetUp() override {
    const auto& [name, element, has_bias, sizes] = GetParam();
    factory_ = name == "packed"   ? MakePackedLinearFactory(element)
               : name == "onednn" ? MakeOneDnnLinearFactory(element)
                                  : MakeTorchLinearFactory();
    if (factory_ == nullptr) GTEST_SKIP() << "no such product in this build or on this CPU";
    at::manual_seed(3);
    type_ = element == ElementType::kF32 ? at::kFloat : at::kBFloat16;
    weight_ = at::randn({sizes.out, sizes.in}, at::kFloat).to(type_);
    // bf16 numbers, so that an implementation may hold the bias in either type.
    if (has_bias) bias_ = at::randn({sizes.out}, at::kFloat).to(at::kBFloat16).to(at::kFloat);
    auto linear = factory_->Make(weight_, bias_);
    ASSERT_TRUE(linear.ok()) << linear.status();
    linear_ = *std::move(linear);
  }

  at::Tensor Expected(const at::Tensor& x) const {
    at::Tensor y = x.to(at::kDouble).matmul(weight_.to(at::kDouble).t());
    return bias_.defined() ? y + bias_.to(at::kDouble) : y;
  }
  static double Relative(const at::Tensor& got, const at::Tensor& expected) {
    return (got.to(at::kDouble) - expected).abs().max().item<double>() /
           expected.abs().max().item<double>();
  }

  std::unique_ptr<LinearFactory> factory_;
  std::unique_ptr<Linear> linear_;
  at::ScalarType type_ = at::kFloat;
  at::Tensor weight_, bias_;
};

TEST_P(LinearTest, GivesTheProductForAnyNumberOfRows) {
  const auto& [name, element, has_bias, sizes] = GetParam();
  const bool torch_bf16 = name == "torch" && element == ElementType::kBf16;
  for (const int rows : {1, 2, 3, 5, 16, 17, 33, 250, 1}) {
    const at::Tensor x = at::randn({rows, sizes.in}, at::kFloat).to(type_);
    const at::Tensor expected = Expected(x);
    at::Tensor y = at::full({rows, sizes.out}, NAN, at::kFloat);
    ASSERT_TRUE(linear_->Run(x.data_ptr(), rows, ElementType::kF32, y.data_ptr()).ok());
    EXPECT_LE(Relative(y, expected), torch_bf16 ? 1e-2 : 2e-6) << rows << " rows";

    at::Tensor sum = at::randn({rows, sizes.out}, at::kFloat);
    const at::Tensor expected_sum = sum.to(at::kDouble) + expected;
    ASSERT_TRUE(linear_->Accumulate(x.data_ptr(), rows, sum.data_ptr<float>()).ok());
    EXPECT_LE(Relative(sum, expected_sum), torch_bf16 ? 1e-2 : 2e-6) << rows << " rows";

    at::Tensor narrow = at::zeros({rows, sizes.out}, type_);
    ASSERT_TRUE(linear_->Run(x.data_ptr(), rows, element, narrow.data_ptr()).ok());
    EXPECT_LE(Relative(narrow, expected), element == ElementType::kF32 ? 2e-6 : 1e-2)
        << rows << " rows";
  }
}

std::string TestName(const ::testing::TestParamInfo<LinearTest::ParamType>& test) {
  const auto& [name, element, has_bias, sizes] = test.param;
  return absl::StrCat(name, element == ElementType::kF32 ? "F32" : "Bf16", has_bias ? "Bias" : "",
                      sizes.in, "To", sizes.out);
}

INSTANTIATE_TEST_SUITE_P(
    All, LinearTest,
    ::testing::Combine(::testing::Values("packed", "onednn", "torch"),
                       ::testing::Values(ElementType::kF32, ElementType::kBf16), ::testing::Bool(),
                       ::testing::Values(Sizes{64, 192}, Sizes{341, 128}, Sizes{128, 682},
                                         Sizes{7, 1}, Sizes{1, 33}, Sizes{768, 130})),
    TestName);

TEST(MakeLinearFactory, PacksWeightsUnlessLibtorchMultiplies) {
  for (const ElementType element : {ElementType::kF32, ElementType::kBf16}) {
    EXPECT_EQ(PacksWeights(element), MakeLinearFactory(element)->name() != "at::linear");
  }
}

TEST(CaughtError, OfAnAllocationIsThatResourcesAreExhausted) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's allocator does not fail, it ends the process";
#endif
  const auto status_of = [](auto work) {
    try {
      work();
    } catch (const std::exception& error) {
      return CaughtError(error, "a test");
    }
    return absl::OkStatus();
  };
  static constexpr int64_t kTooMany = int64_t{1} << 50;
  EXPECT_EQ(status_of([] { at::empty({kTooMany}, at::kByte); }).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status_of([] { throw std::bad_alloc(); }).code(), absl::StatusCode::kResourceExhausted);
  const absl::Status other = status_of([] { at::empty({2}).add(at::empty({3})); });
  EXPECT_EQ(other.code(), absl::StatusCode::kInternal) << other;
  EXPECT_EQ(other.message().substr(0, 8), "a test: ");
}

}  // namespace
}  // namespace ziggurat

#include "model/decoder/linear.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <new>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "model/decoder/caught_error.h"
#include "tests/model/linear_checks.h"

namespace ziggurat::testing {
namespace {

class PackedLinear : public ::testing::TestWithParam<LinearCase> {};

TEST_P(PackedLinear, GivesTheProductForAnyNumberOfRows) {
  CheckProducts(*MakePackedLinearFactory(), GetParam(), /*packs=*/true);
}

INSTANTIATE_TEST_SUITE_P(All, PackedLinear, ::testing::ValuesIn(LinearCases(ElementType::kBf16)),
                         LinearCaseName);

#ifdef ZIGGURAT_HAS_ONEDNN
class OneDnnLinear : public ::testing::TestWithParam<LinearCase> {};

TEST_P(OneDnnLinear, GivesTheProductForAnyNumberOfRows) {
  if (!IsOneDnnFast(GetParam().element)) GTEST_SKIP() << "oneDNN has no such kernel for this CPU";
  CheckProducts(*MakeOneDnnLinearFactory(), GetParam(), /*packs=*/true);
}

INSTANTIATE_TEST_SUITE_P(F32, OneDnnLinear, ::testing::ValuesIn(LinearCases(ElementType::kF32)),
                         LinearCaseName);
INSTANTIATE_TEST_SUITE_P(Bf16, OneDnnLinear, ::testing::ValuesIn(LinearCases(ElementType::kBf16)),
                         LinearCaseName);

// It keeps 320 kernels, one for each number of rows.
TEST(OneDnnLinear, KernelsThatLeaveAreMadeAgain) {
  const auto factory = MakeOneDnnLinearFactory();
  WeightMatrix weight(2, 4, ElementType::kF32);
  std::iota(reinterpret_cast<float*>(weight.data()), reinterpret_cast<float*>(weight.data()) + 8,
            1.0f);
  const auto linear = factory->Make(weight, {});
  ASSERT_TRUE(linear.ok()) << linear.status();
  const std::vector<float> x(size_t{4} * 330, 1.0f);
  for (const int most : {330, 20}) {
    for (int rows = 1; rows <= most; ++rows) {
      std::vector<float> y(size_t{2} * rows);
      ASSERT_TRUE((*linear)->Run(x.data(), rows, ElementType::kF32, y.data()).ok());
      EXPECT_EQ(y[0], 1 + 2 + 3 + 4);
      EXPECT_EQ(y.back(), 5 + 6 + 7 + 8) << rows;
    }
  }
}
#endif

class BestLinear : public ::testing::TestWithParam<LinearCase> {};

TEST_P(BestLinear, KeepsNoMatrixWhereItSaysThatItPacks) {
  const ElementType element = GetParam().element;
  CheckProducts(*MakeLinearFactory(element), GetParam(), PacksWeights(element));
}

INSTANTIATE_TEST_SUITE_P(All, BestLinear,
                         ::testing::Values(LinearCase{ElementType::kF32, true, 64, 192},
                                           LinearCase{ElementType::kBf16, true, 64, 192}),
                         LinearCaseName);

TEST(PackedLinear, RefusesF32) {
  const WeightMatrix weight(2, 2, ElementType::kF32);
  EXPECT_EQ(MakePackedLinearFactory()->Make(weight, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(WeightMatrix, BeginsWithALineAndIsSharedByItsCopies) {
  WeightMatrix matrix(3, 5, ElementType::kBf16);
  EXPECT_EQ(matrix.bytes(), 30);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(matrix.data()) % 64, 0);
  const WeightMatrix copy = matrix;
  EXPECT_EQ(copy.data(), matrix.data());
  matrix = {};
  EXPECT_EQ(matrix.bytes(), 0);
  EXPECT_EQ(matrix.data(), nullptr);
  EXPECT_NE(copy.data(), nullptr);
}

TEST(CaughtError, OfAnAllocationIsThatResourcesAreExhausted) {
  EXPECT_EQ(CaughtError(std::bad_alloc(), "a test").code(), absl::StatusCode::kResourceExhausted);
  const absl::Status other = CaughtError(std::runtime_error("why"), "a test");
  EXPECT_EQ(other, absl::InternalError("a test: why"));
}

}  // namespace
}  // namespace ziggurat::testing

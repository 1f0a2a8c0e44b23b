#include "model/decoder/linear.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <new>
#include <stdexcept>

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

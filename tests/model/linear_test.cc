#include "model/decoder/linear.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

#include "model/decoder/caught_error.h"
#include "tests/model/linear_checks.h"

namespace ziggurat {
namespace {

using testing::CheckProducts;
using testing::LinearCase;
using testing::LinearCaseName;
using testing::LinearCases;
using ::testing::ValuesIn;

class PackedLinear : public ::testing::TestWithParam<LinearCase> {};

TEST_P(PackedLinear, GivesTheProductForAnyNumberOfRows) {
  CheckProducts(*MakePackedLinearFactory(), GetParam(), 2e-6);
}

INSTANTIATE_TEST_SUITE_P(All, PackedLinear, ValuesIn(LinearCases(ElementType::kBf16)),
                         LinearCaseName);

#ifdef ZIGGURAT_HAS_ONEDNN
class OneDnnLinear : public ::testing::TestWithParam<LinearCase> {};

TEST_P(OneDnnLinear, GivesTheProductForAnyNumberOfRows) {
  if (!IsOneDnnFast(GetParam().element)) GTEST_SKIP() << "oneDNN has no such kernel for this CPU";
  CheckProducts(*MakeOneDnnLinearFactory(), GetParam(), 2e-6);
}

INSTANTIATE_TEST_SUITE_P(F32, OneDnnLinear, ValuesIn(LinearCases(ElementType::kF32)),
                         LinearCaseName);
INSTANTIATE_TEST_SUITE_P(Bf16, OneDnnLinear, ValuesIn(LinearCases(ElementType::kBf16)),
                         LinearCaseName);
#endif

TEST(MakeLinearFactory, KeepsNoMatrixWhereItPacks) {
  for (const ElementType element : {ElementType::kF32, ElementType::kBf16}) {
    EXPECT_EQ(PacksWeights(element), MakeLinearFactory(element)->name() != "at::linear");
  }
}

TEST(CaughtError, OfAnAllocationIsThatResourcesAreExhausted) {
  EXPECT_EQ(CaughtError(std::bad_alloc(), "a test").code(), absl::StatusCode::kResourceExhausted);
  const absl::Status other = CaughtError(std::runtime_error("why"), "a test");
  EXPECT_EQ(other, absl::InternalError("a test: why"));
}

}  // namespace
}  // namespace ziggurat

#include "model/decoder/linear_torch.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/model/linear_checks.h"

namespace ziggurat::testing {
namespace {

class TorchLinear : public ::testing::TestWithParam<LinearCase> {};

TEST_P(TorchLinear, GivesTheProductForAnyNumberOfRows) {
  CheckProducts(*MakeTorchLinearFactory(), GetParam(), /*packs=*/false);
}

INSTANTIATE_TEST_SUITE_P(All, TorchLinear, ::testing::ValuesIn(LinearCases(ElementType::kF32)),
                         LinearCaseName);

TEST(TorchLinear, WithoutMemoryForItsProductSaysSo) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's allocator does not fail, it ends the process";
#endif
  WeightMatrix weight(1 << 20, 1, ElementType::kF32);
  auto linear = MakeTorchLinearFactory()->Make(weight, {});
  ASSERT_TRUE(linear.ok());
  // The product does not come to be, so nothing is read.
  float x = 0, y = 0;
  const absl::Status status =
      (*linear)->Run(&x, std::numeric_limits<int>::max(), ElementType::kF32, &y);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

}  // namespace
}  // namespace ziggurat::testing

// What calls hold together.
#include "server/byte_budget.h"

#include "gtest/gtest.h"

namespace ziggurat {
namespace {

TEST(ByteBudget, HoldsNoMoreThanItMay) {
  ByteBudget texts(100);
  EXPECT_TRUE(texts.Enter(60));
  EXPECT_FALSE(texts.Enter(41));
  EXPECT_TRUE(texts.Enter(40));
  EXPECT_EQ(texts.count(), 2);
  texts.Leave(60);
  EXPECT_EQ(texts.count(), 1);
  EXPECT_FALSE(texts.Enter(61));
  EXPECT_TRUE(texts.Enter(60));
}

}  // namespace
}  // namespace ziggurat

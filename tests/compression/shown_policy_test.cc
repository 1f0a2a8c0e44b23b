// The policy that docs/adding_a_policy.md shows; CMake takes its code from there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compression/plan_check.h"
#include "compression/policy_descriptor.h"
#include "tests/compression/plan_testing.h"

namespace ziggurat {

const PolicyDescriptor& ShownPolicy();

namespace {

TEST(PolicyOfThePage, PlansWhatItSays) {
  const PolicyDescriptor& descriptor = ShownPolicy();
  const auto policy = descriptor.make(PolicyArguments(descriptor, {int64_t{2}, int64_t{60}}));
  EXPECT_EQ(policy->ToString(), "upper_rings(from=2,recent=60)");
  const SequenceLimits limits = {1000, 50};
  const CachePlan plan = Plan(*policy, TestModel(4), limits);
  EXPECT_THAT(Kept(plan), testing::ElementsAre(1000, 1000, 64, 64));
  const absl::Status status = CheckPlan("upper_rings", TestModel(4), limits, plan);
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace ziggurat

#include "tests/compression/golden/policy_limits.h"

#include <gtest/gtest.h>

#include "compression/policy.h"

namespace ziggurat::golden {

std::string ReasonOfRefusal(const std::string& policy) {
  EXPECT_FALSE(ParsePolicy(policy).ok()) << policy << " is not allowed by docs/policies.md";
  return "runs: " + policy + " is not allowed";
}

}  // namespace ziggurat::golden

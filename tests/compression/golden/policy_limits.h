// What docs/policies.md allows a policy's parameters to be. A reference that was asked for
// something else is skipped; where the parser refuses what is allowed, the test that asks fails.
#pragma once

#include <string>

namespace ziggurat::golden {

constexpr double kMostTokens = 1 << 24;

inline bool IsWithin(double value, double lowest, double highest) {
  return value >= lowest && value <= highest;
}

/// The reason to skip runs of a policy that is not allowed. Fails where the parser takes it.
std::string ReasonOfRefusal(const std::string& policy);

}  // namespace ziggurat::golden

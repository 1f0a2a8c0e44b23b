#include "tests/compression/golden/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace ziggurat::golden {

double RelativeDifference(double ours, double theirs) {
  return std::abs(ours - theirs) / std::max(std::abs(theirs), 1e-7);
}

void Report::Difference(const std::string& what, double difference) {
  double& largest = differences_[what];
  // Written so that a NaN counts as the largest.
  if (!(difference <= largest)) largest = difference;
}

void Report::Demand(const std::string& what) const {
  EXPECT_TRUE(compared_.contains(what)) << "none compared, though the vectors have them: " << what;
}

void Report::Print(const std::string& title) const {
  if (!compared_.empty() || !skipped_.empty()) std::printf("golden %s\n", title.c_str());
  for (const auto& [what, count] : compared_) {
    std::printf("  compared %5zu %s\n", count, what.c_str());
  }
  for (const auto& [what, difference] : differences_) {
    std::printf("  largest difference of %s: %.1e\n", what.c_str(), difference);
  }
  for (const auto& [reason, count] : skipped_) {
    std::printf("  skipped  %5zu %s\n", count, reason.c_str());
  }
  EXPECT_EQ(compared_, expected_) << title << ": what was compared is not what the vectors hold";
}

}  // namespace ziggurat::golden

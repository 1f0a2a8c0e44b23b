#include "tests/compression/golden/report.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <utility>

namespace ziggurat::golden {

std::vector<std::unique_ptr<AttentionBackend>> Backends() {
  std::vector<std::unique_ptr<AttentionBackend>> backends;
  backends.push_back(MakeReferenceBackend());
  for (CpuLevel level : SupportedCpuLevels()) backends.push_back(*MakeCpuBackend(level, 1));
  return backends;
}

void Report::Difference(const std::string& what, double difference) {
  double& largest = differences_[what];
  // Written so that a NaN counts as the largest.
  if (!(difference <= largest)) largest = difference;
}

void Report::Print(const std::string& title) const {
  std::printf("golden %s\n", title.c_str());
  for (const auto& [what, count] : compared_)
    std::printf("  compared %4d %s\n", count, what.c_str());
  for (const auto& [what, difference] : differences_) {
    std::printf("  largest difference of %s: %.1e\n", what.c_str(), difference);
  }
  for (const auto& [reason, runs] : skipped_) {
    std::printf("  skipped  %4d runs, %s\n", runs, reason.c_str());
  }
  EXPECT_EQ(compared_, expected_) << title << ": what was compared is not what the vectors hold";
  EXPECT_FALSE(expected_.empty()) << title << ": no vectors";
}

}  // namespace ziggurat::golden

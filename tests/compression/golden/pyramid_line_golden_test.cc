// PyramidKV's line before rounding against the kept counts of the published code. Our integers
// differ by decision (they sum exactly); the line they are rounded from is the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "compression/budget.h"
#include "tests/compression/golden/golden_case.h"
#include "tests/compression/golden/report.h"

namespace ziggurat::golden {
namespace {

constexpr const char* kFactoryRows = "rows of KVCache-Factory";
constexpr const char* kKvpressRows = "rows of kvpress";

std::string Describe(const nlohmann::json& row) { return row.dump().substr(0, 200); }

bool IsUniform(const std::vector<int>& kept) {
  return std::set<int>(kept.begin(), kept.end()).size() == 1;
}

/// Whether a line can be made of what was asked.
bool HasLine(double mean, const nlohmann::json& row) {
  return mean >= 0 && row.at("num_hidden_layers").get<int>() > 1 &&
         row.at("beta").get<double>() >= 1;
}

/// Tokens of the lowest layer of a line, from the row alone: what is left out must not depend on
/// the code that is tested.
double BottomOf(double mean, const nlohmann::json& row) {
  return 2 * mean - mean / row.at("beta").get<double>();
}

/// KVCache-Factory rounds the top layer down, mirrors it at the mean for the bottom one, and steps
/// down by a rounded-down slope: applied to our line, that must give its counts exactly.
/// False: there is no such line, or the prompt is too short for it.
bool CompareFactoryRow(const nlohmann::json& row) {
  const auto kept = row.at("kept").get<std::vector<int>>();
  const int layers = row.at("num_hidden_layers"), window = row.at("window_size");
  const int mean = row.at("max_capacity_prompt").get<int>() - window;
  const int prompt = row.at("q_len");
  if (!HasLine(mean, row)) return false;
  const std::vector<double> line = LinearPyramid(mean, layers, row.at("beta").get<double>());
  if (prompt < 2 * mean || BottomOf(mean, row) + 1 >= prompt - window) return false;
  const auto top = static_cast<int>(std::floor(line.back()));
  const int bottom = 2 * mean - top;
  const int step = (bottom - top) / (layers - 1);
  for (int layer = 0; layer < layers; ++layer) {
    EXPECT_EQ(kept[layer] - window, bottom - layer * step)
        << "layer " << layer << " of " << Describe(row);
    // The floor of the top moves both ends by less than one, each floored step adds less than one.
    EXPECT_GT(kept[layer] - window, line[layer] - 1)
        << "layer " << layer << " of " << Describe(row);
    EXPECT_LT(kept[layer] - window, line[layer] + 1 + layer)
        << "layer " << layer << " of " << Describe(row);
  }
  return true;
}

/// kvpress rounds each layer of the line to the nearest integer, and its line includes the window.
bool CompareKvpressRow(const nlohmann::json& row) {
  const auto kept = row.at("kept").get<std::vector<int>>();
  const int layers = row.at("num_hidden_layers"), prompt = row.at("q_len");
  const double mean = prompt * (1 - row.at("compression_ratio").get<double>());
  if (!HasLine(mean, row)) return false;
  const std::vector<double> line = LinearPyramid(mean, layers, row.at("beta").get<double>());
  const int room = prompt - row.at("window_size").get<int>();
  if (IsUniform(kept) || BottomOf(mean, row) >= room) return false;
  for (int layer = 0; layer < layers; ++layer) {
    EXPECT_LE(std::abs(kept[layer] - line[layer]), 0.5 + 1e-6)
        << "layer " << layer << ": " << line[layer] << " of " << Describe(row);
  }
  return true;
}

TEST(PyramidLineGolden, IsTheLineThatThePublishedCodeRounds) {
  const auto folder = FindGoldens();
  if (!folder.has_value()) GTEST_SKIP() << MissingGoldens();
  Report report;
  const std::vector<Case> cases = LoadCases(*folder, {});
  for (const Case& golden : cases) {
    for (const ReferenceRun& run : golden.runs) {
      if (run.method() != "pyramidkv" || !run.expected.contains("rows")) continue;
      const std::string rows = run.is_kvpress() ? kKvpressRows : kFactoryRows;
      for (const auto& row : run.expected.at("rows")) {
        if (run.is_kvpress() ? CompareKvpressRow(row) : CompareFactoryRow(row)) {
          report.Expected(rows);
          report.Compared(rows);
        } else {
          report.Skipped(rows +
                         ": no line, too short a prompt for it, or a fall back to uniform budgets");
        }
      }
    }
  }
  report.Print("pyramid line");
  if (HasCase(cases, "pyramidkv_budgets")) {
    report.Demand(kFactoryRows);
    report.Demand(kKvpressRows);
  }
  if (!report.has_compared()) GTEST_SKIP() << NothingToCompare("pyramidkv's line");
}

}  // namespace
}  // namespace ziggurat::golden

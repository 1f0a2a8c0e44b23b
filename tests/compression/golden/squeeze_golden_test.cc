// SqueezeAttention's cosines and groups of layers against the published code's. Its budgets are
// shares of the prompt and do not sum to what was asked: ours differ by decision.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "compression/layer_clusters.h"
#include "tests/attention/backends.h"
#include "tests/compression/golden/golden_case.h"
#include "tests/compression/golden/report.h"

namespace ziggurat::golden {
namespace {

/// Mean over tokens of the cosine between the residual stream before and after attention.
std::vector<double> MeasureCosines(AttentionBackend& backend, const Tensors& input) {
  const Tensor& before = input.at("before");
  const Tensor& after = input.at("after");
  const auto layers = before.shape.at(0), tokens = before.shape.at(1), width = before.shape.at(2);
  std::vector<double> cosines;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const int64_t at = layer * tokens * width;
    const double sum = backend.CosineSum(&before.values[at], &after.values[at],
                                         static_cast<int>(tokens), static_cast<int>(width));
    cosines.push_back(sum / static_cast<double>(tokens));
  }
  return cosines;
}

TEST(SqueezeGolden, EveryBackendGroupsLayersAsThePublishedCodeDoes) {
  const auto folder = FindGoldens();
  if (!folder.has_value()) GTEST_SKIP() << MissingGoldens();
  const std::vector<Case> cases = LoadCases(*folder, {"squeeze"});
  bool has_compared = false;
  for (const auto& backend : BackendsWith(1)) {
    Report report;
    for (const Case& golden : cases) {
      if (!golden.Has("squeeze")) continue;
      const std::vector<double> cosines = MeasureCosines(*backend, golden.inputs.at(0));
      const auto groups = ClusterInThree(cosines);
      EXPECT_TRUE(groups.has_value()) << golden.name;
      if (!groups.has_value()) continue;
      for (const ReferenceRun& run : golden.runs) {
        if (!run.method().starts_with("squeeze")) continue;
        const auto expected = run.expected.at("layer_cosine").get<std::vector<double>>();
        const auto classes = run.expected.at("class_1to3").get<std::vector<int>>();
        report.Expected("layers' cosines and groups",
                        golden.manifest.at("num_layers").get<size_t>());
        EXPECT_EQ(cosines.size(), expected.size()) << run.name;
        if (cosines.size() != expected.size()) continue;
        for (size_t layer = 0; layer < cosines.size(); ++layer) {
          report.Difference("cosines", std::abs(cosines[layer] - expected[layer]));
          EXPECT_NEAR(cosines[layer], expected[layer], 1e-5) << run.name << " layer " << layer;
          EXPECT_EQ((*groups)[layer], classes[layer] - 1) << run.name << " layer " << layer;
          report.Compared("layers' cosines and groups");
        }
        report.Skipped("runs' budgets: ours sum exactly to what was asked");
      }
    }
    report.Print("squeeze, backend " + std::string(backend->name()));
    if (HasCase(cases, "squeeze_a")) report.Demand("layers' cosines and groups");
    has_compared = report.has_compared();
  }
  if (!has_compared) GTEST_SKIP() << NothingToCompare("squeeze");
}

}  // namespace
}  // namespace ziggurat::golden

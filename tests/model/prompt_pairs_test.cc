// Which tokens of a pair of layers PromptLayers retains, and which it merges, against plain angles
// in double.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "compression/layer_plan.h"
#include "model/cache_ops/prompt_layer.h"
#include "tests/model/prompt_lab.h"

namespace ziggurat::testing {
namespace {

using ::testing::ElementsAreArray;
using Positions = std::vector<int32_t>;

CachePlan PairPlan(const PromptLabOptions& options, const MergeOptions& merge) {
  CachePlan plan;
  plan.layers.assign(options.num_layers, PlanKeepAll({options.tokens, 10}));
  plan.layers[1].merge = MergeRole::kLower;
  plan.layers[2].merge = MergeRole::kUpper;
  plan.merge = merge;
  return WithNeeds(options, std::move(plan));
}

/// [KV head][token]
std::vector<std::vector<double>> PlainAngles(const PromptLab& lab, int tokens) {
  std::vector<std::vector<double>> angles(lab.shape().num_kv_heads);
  for (int head = 0; head < lab.shape().num_kv_heads; ++head) {
    for (int t = 0; t < tokens; ++t) {
      const float *lower = lab.K(1, t, head), *upper = lab.K(2, t, head);
      angles[head].push_back(std::acos(lab.Dot(lower, upper) /
                                       std::sqrt(lab.Dot(lower, lower) * lab.Dot(upper, upper))));
    }
  }
  return angles;
}

/// The retained tokens of each head, and behind them the merged ones.
void ExpectRetained(const PromptLab& lab, int tokens, int retained) {
  const auto angles = PlainAngles(lab, tokens);
  const int heads = lab.shape().num_kv_heads;
  for (int head = 0; head < heads; ++head) {
    const Positions expected = PlainBest(angles[head], retained);
    EXPECT_THAT(RowOf(lab.buffers().selection, head, retained), ElementsAreArray(expected));
    Positions merged;
    for (int t = 0; t < tokens; ++t) {
      if (!std::binary_search(expected.begin(), expected.end(), t)) merged.push_back(t);
    }
    EXPECT_THAT(RowOf(lab.buffers().selection + heads * retained, head, tokens - retained),
                ElementsAreArray(merged));
  }
}

class PromptPairs : public ::testing::TestWithParam<std::string> {
 protected:
  PromptLabOptions options_;

  int n() const { return options_.tokens; }
};

TEST_P(PromptPairs, APairRetainsTheShareOfTokensWithTheLargestAngles) {
  for (const auto& [retain, count] :
       {std::pair(0.05, 4), std::pair(0.1, 7), std::pair(0.0, 0), std::pair(1.0, 70),
        std::pair(0.5, 35), std::pair(0.501, 36)}) {
    PromptLab lab(GetParam(), options_, PairPlan(options_, {.retain = retain}));
    for (int layer = 0; layer < 3; ++layer) {
      const LayerMeasured measured = lab.Run(layer);
      EXPECT_EQ(measured.kept_tokens, n());
      EXPECT_EQ(measured.retained_tokens, layer == 2 ? count : 0) << "retain " << retain;
    }
    ExpectRetained(lab, n(), count);
  }
}

TEST_P(PromptPairs, ByThresholdTheHeadWithMostTokensNearTheLargestAngleDecides) {
  for (const double retain : {0.0, 0.2, 0.5, 0.9, 1.0}) {
    PromptLab lab(GetParam(), options_,
                  PairPlan(options_, {.retain = retain, .by_threshold = true}));
    LayerMeasured measured;
    for (int layer = 0; layer < 3; ++layer) measured = lab.Run(layer);
    int expected = 0;
    for (const auto& head : PlainAngles(lab, n())) {
      const auto [least, most] = std::minmax_element(head.begin(), head.end());
      const double cut = *most - retain * (*most - *least) - 1e-6;
      expected = std::max<int>(
          expected, std::count_if(head.begin(), head.end(), [&](double a) { return a >= cut; }));
    }
    EXPECT_EQ(measured.retained_tokens, expected) << "retain " << retain;
    ExpectRetained(lab, n(), measured.retained_tokens);
  }
}

TEST_P(PromptPairs, ByThresholdAllTokensAreRetainedWhereTheWholeRangeOfAnglesIs) {
  for (options_.seed = 1; options_.seed <= 20; ++options_.seed) {
    // One KV head: no other one may decide for it.
    options_.num_kv_heads = 1;
    PromptLab lab(GetParam(), options_, PairPlan(options_, {.retain = 1, .by_threshold = true}));
    LayerMeasured measured;
    for (int layer = 0; layer < 3; ++layer) measured = lab.Run(layer);
    EXPECT_EQ(measured.retained_tokens, n()) << "seed " << options_.seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, PromptPairs, ::testing::ValuesIn(CacheOpsBackends()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace ziggurat::testing

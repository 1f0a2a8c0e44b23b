// What PromptLayers measures of a layer and which tokens stay, against plain computations in
// double.
#include "model/cache_ops/prompt_layer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <tuple>

#include "compression/layer_plan.h"
#include "compression/pod_groups.h"
#include "tests/model/prompt_lab.h"

namespace ziggurat::testing {
namespace {

using ::testing::ElementsAreArray;
using Positions = std::vector<int32_t>;

constexpr double kTolerance = 2e-5;

CachePlan PlanOf(const PromptLabOptions& options, const std::vector<LayerPlan>& layers) {
  CachePlan plan;
  plan.layers = layers;
  return WithNeeds(options, std::move(plan));
}

CachePlan UniformPlan(const PromptLabOptions& options, const LayerPlan& layer) {
  return PlanOf(options, std::vector<LayerPlan>(options.num_layers, layer));
}

class PromptLayer : public ::testing::TestWithParam<std::string> {
 protected:
  PromptLabOptions options_;

  int n() const { return options_.tokens; }
  void ExpectKept(const LayerMeasured& measured, int head, Positions selected, int recent) const {
    for (int i = n() - recent; i < n(); ++i) selected.push_back(i);
    ASSERT_EQ(measured.kept_tokens, static_cast<int>(selected.size()));
    ASSERT_EQ(measured.kept.size(), selected.size() * options_.num_kv_heads);
    EXPECT_THAT(RowOf(measured.kept.data(), head, measured.kept_tokens), ElementsAreArray(selected))
        << "head " << head;
  }
  static void ExpectAllKept(const LayerMeasured& measured, int tokens) {
    EXPECT_EQ(measured.kept_tokens, tokens);
    EXPECT_EQ(measured.first_tokens, tokens);
    EXPECT_TRUE(measured.kept.empty());
    EXPECT_FALSE(measured.lazy);
  }
};

// ---- Selections --------------------------------------------------------------------------------

TEST_P(PromptLayer, KeepAllKeepsEverything) {
  PromptLab lab(GetParam(), options_, UniformPlan(options_, PlanKeepAll({n(), 10})));
  for (int layer = 0; layer < options_.num_layers; ++layer) ExpectAllKept(lab.Run(layer), n());
}

TEST_P(PromptLayer, KeepBestTakesTheBestByWindowScoresAndTheWindow) {
  for (const ScorePooling pooling : {ScorePooling::kAverage, ScorePooling::kMax}) {
    for (const auto& [window, kernel, budget] :
         {std::tuple(8, 5, 24), std::tuple(1, 1, 2), std::tuple(32, 7, 60)}) {
      const WindowScoreStatistic statistic{window, kernel, pooling};
      PromptLab lab(GetParam(), options_,
                    UniformPlan(options_, PlanKeepBest({n(), 10}, statistic, budget)));
      for (int layer = 0; layer < options_.num_layers; ++layer) {
        const LayerMeasured measured = lab.Run(layer);
        for (int head = 0; head < options_.num_kv_heads; ++head) {
          const auto scores = PlainWindowScores(lab, layer, head, n(), statistic);
          ExpectKept(measured, head, PlainBest(scores, budget - window), window);
        }
      }
    }
  }
}

TEST_P(PromptLayer, KeepBestWithRoomForAllKeepsAll) {
  LayerPlan plan;
  plan.statistic = WindowScoreStatistic{8, 5};
  plan.edit = KeepBest{n() - 8, 8};
  PromptLab lab(GetParam(), options_, UniformPlan(options_, plan));
  ExpectAllKept(lab.Run(0), n());
}

TEST_P(PromptLayer, KeepRingKeepsTheFirstAndTheLastWithoutAList) {
  PromptLab lab(GetParam(), options_, UniformPlan(options_, PlanKeepRing({n(), 10}, 3, 20)));
  const LayerMeasured measured = lab.Run(0);
  EXPECT_EQ(measured.kept_tokens, 23);
  EXPECT_EQ(measured.first_tokens, 3);
  EXPECT_TRUE(measured.kept.empty());
  EXPECT_FALSE(measured.lazy);
  for (const auto& [sinks, recent] : {std::pair(4, 66), std::pair(0, 500), std::pair(90, 1)}) {
    PromptLab roomy(GetParam(), options_,
                    UniformPlan(options_, PlanKeepRing({n(), 10}, sinks, recent)));
    const LayerMeasured all = roomy.Run(0);
    EXPECT_EQ(all.kept_tokens, n()) << sinks << " + " << recent;
    EXPECT_EQ(all.first_tokens, std::min(sinks, n()));
  }
}

TEST_P(PromptLayer, KeepHeavyTakesWhatAllQueriesAttendedToMost) {
  for (const auto& [heavy, recent] : {std::pair(12, 9), std::pair(1, 1), std::pair(60, 9)}) {
    PromptLab lab(GetParam(), options_,
                  UniformPlan(options_, PlanKeepHeavy({n(), 10}, {heavy, recent})));
    for (int layer = 0; layer < options_.num_layers; ++layer) {
      const LayerMeasured measured = lab.Run(layer);
      const auto received = lab.ReceivedFromLast(layer, n());
      for (int head = 0; head < options_.num_kv_heads; ++head) {
        const std::vector<double> older(received[head].begin(), received[head].end() - recent);
        ExpectKept(measured, head, PlainBest(older, heavy), recent);
        for (int j = 0; j < n(); ++j) {
          EXPECT_NEAR(lab.buffers().scores[head * n() + j], received[head][j],
                      kTolerance * std::max(1.0, received[head][j]))
              << "token " << j << ": kept tokens go on collecting from here";
        }
      }
    }
  }
}

TEST_P(PromptLayer, KeepHeavyWithRoomForAllStillMeasures) {
  LayerPlan plan;
  plan.edit = KeepHeavy{40, 30};
  PromptLab lab(GetParam(), options_, UniformPlan(options_, plan));
  ExpectAllKept(lab.Run(0), n());
  const auto received = lab.ReceivedFromLast(0, n());
  EXPECT_NEAR(lab.buffers().scores[n() + 5], received[1][5], kTolerance * received[1][5]);
}

/// WindowKV's choice in words: whole windows by falling score, as far as they fit.
Positions PlainWindows(const PromptLab& lab, int layer, int tokens, const KeepWindows& edit) {
  const int candidates = tokens - edit.observe;
  const PromptLab::Attention attention = lab.PlainAttention(layer);
  std::vector<double> scores;
  for (int begin = 0; begin < candidates; begin += edit.review) {
    const int end = std::min(begin + edit.review, candidates);
    double score = 0;
    for (const auto& head : attention) {
      std::vector<double> received(end - begin, 0.0);
      for (int i = candidates; i < tokens; ++i) {
        for (int j = begin; j < end; ++j) received[j - begin] += head[i][j];
      }
      std::sort(received.rbegin(), received.rend());
      received.resize(std::min<size_t>(edit.best, received.size()));
      score += std::accumulate(received.begin(), received.end(), 0.0) /
               static_cast<double>(received.size());
    }
    scores.push_back(score);
  }
  std::vector<int> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return scores[a] > scores[b]; });
  std::set<int32_t> kept;
  int room = edit.budget;
  for (const int window : order) {
    const int begin = window * edit.review, end = std::min(begin + edit.review, candidates);
    if (end - begin > room) continue;
    room -= end - begin;
    for (int j = begin; j < end; ++j) kept.insert(j);
  }
  return {kept.begin(), kept.end()};
}

TEST_P(PromptLayer, KeepWindowsTakesWholeWindowsTheSameForAllHeads) {
  for (const KeepWindows& edit :
       {KeepWindows{.observe = 6, .review = 8, .best = 8, .budget = 30},
        KeepWindows{.observe = 6, .review = 8, .best = 4, .budget = 24},
        KeepWindows{.observe = 3, .review = 7, .best = 2, .budget = 13},
        KeepWindows{.observe = 1, .review = 16, .best = 1, .budget = 68}}) {
    PromptLab lab(GetParam(), options_, UniformPlan(options_, PlanKeepWindows({n(), 10}, edit)));
    for (int layer = 0; layer < options_.num_layers; ++layer) {
      const LayerMeasured measured = lab.Run(layer);
      const Positions windows = PlainWindows(lab, layer, n(), edit);
      EXPECT_LE(static_cast<int>(windows.size()), edit.budget);
      for (int head = 0; head < options_.num_kv_heads; ++head) {
        ExpectKept(measured, head, windows, edit.observe);
      }
    }
  }
}

TEST_P(PromptLayer, KeepWindowsThatNoWindowFitsKeepsTheObservedTokens) {
  LayerPlan plan;
  plan.edit = KeepWindows{.observe = 6, .review = 80, .best = 8, .budget = 30};
  PromptLab lab(GetParam(), options_, UniformPlan(options_, plan));
  const LayerMeasured measured = lab.Run(0);
  for (int head = 0; head < options_.num_kv_heads; ++head) ExpectKept(measured, head, {}, 6);
}

TEST_P(PromptLayer, FollowersKeepWhatTheirLeaderKept) {
  options_.num_layers = 4;
  const KeepWindows edit{.observe = 6, .review = 8, .best = 8, .budget = 30};
  const LayerPlan leader = PlanKeepWindows({n(), 10}, edit);
  PromptLab lab(GetParam(), options_,
                PlanOf(options_, {leader, PlanKeepAsLeader(leader, {0}), leader,
                                  PlanKeepAsLeader(leader, {2})}));
  std::vector<Positions> chosen;
  for (int layer = 0; layer < 4; ++layer) {
    const LayerMeasured measured = lab.Run(layer);
    chosen.push_back(PlainWindows(lab, layer / 2 * 2, n(), edit));
    for (int head = 0; head < options_.num_kv_heads; ++head) {
      ExpectKept(measured, head, chosen.back(), 6);
    }
  }
  EXPECT_NE(chosen[0], chosen[2]) << "nothing was followed";
  EXPECT_NE(chosen[0], PlainWindows(lab, 1, n(), edit)) << "nothing was followed";
}

TEST_P(PromptLayer, ALayerWithRoomForAllKeepsAllWhateverTheOneBelowSelected) {
  const SequenceLimits limits{n(), 10};
  const WindowScoreStatistic statistic{8, 5};
  LayerPlan best = PlanKeepAll(limits), heavy = best, windows = best;
  best.statistic = statistic;
  best.edit = KeepBest{n() - 8, 8};
  heavy.edit = KeepHeavy{n() - 30, 30};
  windows.edit = KeepWindows{.observe = 6, .review = 8, .best = 8, .budget = n() - 6};
  for (const LayerPlan& roomy : {PlanKeepAll(limits), best, heavy, windows}) {
    PromptLab lab(GetParam(), options_,
                  PlanOf(options_, {PlanKeepBest(limits, statistic, 24), roomy, roomy}));
    EXPECT_EQ(lab.Run(0).kept_tokens, 24);
    ExpectAllKept(lab.Run(1), n());
    ExpectAllKept(lab.Run(2), n());
  }
}

/// Layers 0 to 2 share keys in head 0, layers 1 and 2 in head 1.
std::shared_ptr<const PodGroups> Groups() {
  auto groups = std::make_shared<PodGroups>();
  groups->name = "some";
  groups->num_layers = 3;
  groups->num_kv_heads = 2;
  groups->lowest = {0, 0, 0, 1, 0, 1};
  return groups;
}

CachePlan PodPlan(const PromptLabOptions& options, double skip, std::vector<LayerPlan> layers) {
  CachePlan plan;
  plan.layers = std::move(layers);
  plan.distant = DistantOptions{.groups = Groups(), .sinks = 3, .recent = 12, .skip = skip};
  return WithNeeds(options, std::move(plan));
}

TEST_P(PromptLayer, InPodEveryHeadKeepsWhatItsLowestLayerSelected) {
  const WindowScoreStatistic statistic{8, 5};
  const LayerPlan best = PlanKeepBest({n(), 10}, statistic, 24);
  PromptLab lab(GetParam(), options_,
                PodPlan(options_, 2, {best, best, PlanKeepAsLeader(best, {-1})}), true);
  for (int layer = 0; layer < 3; ++layer) {
    const LayerMeasured measured = lab.Run(layer);
    const bool borrows = Groups()->Lowest(layer, 0) != layer || Groups()->Lowest(layer, 1) != layer;
    if (borrows) {
      EXPECT_LT(measured.attention_recall, 0) << "its own keys do not say";
    } else {
      EXPECT_GT(measured.attention_recall, 0);
      EXPECT_LT(measured.attention_recall, 1);
    }
    for (int head = 0; head < 2; ++head) {
      const int lowest = Groups()->Lowest(layer, head);
      // Without the lowest layers' keys: up to layer 1 the statistic of a head that selects is that
      // of plain attention.
      ExpectKept(measured, head,
                 PlainBest(PlainWindowScores(lab, lowest, head, n(), statistic), 16), 8);
    }
  }
}

// ---- PoD's attention ---------------------------------------------------------------------------

TEST_P(PromptLayer, DistantTokensAreAttendedWithQueriesAndKeysOfTheLowestLayer) {
  constexpr int kSinks = 3, kRecent = 12;
  for (const double skip : {2.0, 0.5}) {
    PromptLab lab(GetParam(), options_,
                  PodPlan(options_, skip, std::vector<LayerPlan>(3, PlanKeepAll({n(), 10}))));
    for (int layer = 0; layer < 3; ++layer) {
      DistantCounts counts;
      const LayerMeasured measured = lab.Run(layer);
      double worst = 0;
      for (int head = 0; head < 2; ++head) {
        const int lowest = Groups()->Lowest(layer, head);
        for (int i = 0; i < n(); ++i) {
          // Weights of near and distant keys; a group of query heads skips together.
          std::vector<std::vector<double>> weights;
          bool skips = lowest != layer, has_distant = false;
          for (int h = head * lab.group(); h < (head + 1) * lab.group(); ++h) {
            double near = 0, distant = 0;
            std::vector<double>& row = weights.emplace_back();
            for (int j = 0; j <= i; ++j) {
              const bool is_distant = lowest != layer && j >= kSinks && i - j >= kRecent;
              const int from = is_distant ? lowest : layer;
              row.push_back(std::exp(lab.Score(lab.Q(from, i, h), lab.K(from, j, head))));
              (is_distant ? distant : near) += row.back();
              has_distant = has_distant || is_distant;
            }
            skips = skips && near / (near + distant) >= skip;
          }
          if (has_distant) ++(skips ? counts.skipped : counts.attended);
          for (int g = 0; g < lab.group(); ++g) {
            std::vector<double> out(options_.head_dim, 0.0);
            double sum = 0;
            for (int j = 0; j <= i; ++j) {
              if (skips && j >= kSinks && i - j >= kRecent) continue;
              sum += weights[g][j];
              for (int d = 0; d < options_.head_dim; ++d) {
                out[d] += weights[g][j] * lab.V(layer, j, head)[d];
              }
            }
            const float* actual = lab.Output(i, head * lab.group() + g);
            for (int d = 0; d < options_.head_dim; ++d) {
              worst = std::max(worst, std::abs(actual[d] - out[d] / sum));
            }
          }
        }
      }
      EXPECT_LE(worst, kTolerance) << "layer " << layer << ", skip " << skip;
      EXPECT_EQ(measured.distant.attended, counts.attended) << "layer " << layer;
      EXPECT_EQ(measured.distant.skipped, counts.skipped) << "layer " << layer;
      if (layer == 0) continue;
      EXPECT_GT(counts.attended, 0u);
      EXPECT_EQ(counts.skipped > 0, skip < 1);
    }
  }
}

TEST_P(PromptLayer, APromptWithinTheNearWindowAttendsToItselfAlone) {
  options_.tokens = 15;  // 3 sinks and 12 recent ones, and more to come
  PromptLab lab(GetParam(), options_,
                PodPlan(options_, 2, std::vector<LayerPlan>(3, PlanKeepAll({n(), 100}))));
  for (int layer = 0; layer < 3; ++layer) {
    ExpectAllKept(lab.Run(layer), 15);
    EXPECT_FALSE(lab.prompt().NeedsDistant(layer));
  }
}

// ---- Lazy layers -------------------------------------------------------------------------------

double PlainMass(const PromptLab& lab, int layer, int tokens, const LazyTest& test) {
  const auto received = lab.ReceivedFromLast(layer, test.last);
  double mass = 0;
  for (const auto& head : received) {
    for (int j = 0; j < tokens; ++j) {
      if (j < test.sinks || j >= tokens - test.recent) mass += head[j];
    }
  }
  return mass / (static_cast<double>(test.last) * received.size());
}

TEST_P(PromptLayer, ALayerIsLazyWhereItsMassExceedsTheThreshold) {
  for (const LazyTest& shape : {LazyTest{.sinks = 4, .recent = 20, .last = 32},
                                LazyTest{.sinks = 0, .recent = 9, .last = 1},
                                LazyTest{.sinks = 30, .recent = 39, .last = 70}}) {
    PromptLab plain(GetParam(), options_, UniformPlan(options_, PlanKeepAll({n(), 10})));
    for (int layer = 0; layer < options_.num_layers; ++layer) {
      const double mass = PlainMass(plain, layer, n(), shape);
      for (const double offset : {-1e-4, 1e-4}) {
        LazyTest test = shape;
        test.threshold = mass + offset;
        LayerPlan plan = PlanKeepAll({n(), 10});
        plan.lazy = test;
        PromptLab lab(GetParam(), options_, UniformPlan(options_, plan));
        LayerMeasured measured;
        for (int l = 0; l <= layer; ++l) measured = lab.Run(l);
        EXPECT_EQ(measured.lazy, offset < 0) << "layer " << layer << ", mass " << mass;
        EXPECT_EQ(measured.kept_tokens, measured.lazy ? test.sinks + test.recent : n());
        EXPECT_EQ(measured.first_tokens, measured.lazy ? test.sinks : n());
      }
    }
  }
}

TEST_P(PromptLayer, ALayerIsNotLazyWhereItsMassIsTheThreshold) {
  options_.seed = 2;
  options_.q_spread = 150;  // one key gets everything, and most of the others less than a float can
  LayerPlan plan = PlanKeepAll({n(), 10});
  const LazyTest test = {.sinks = 0, .recent = 1, .last = 1, .threshold = 0};
  plan.lazy = test;
  PromptLab lab(GetParam(), options_, UniformPlan(options_, plan));
  const LayerMeasured measured = lab.Run(0);
  ASSERT_LT(PlainMass(lab, 0, n(), test), 1e-50) << "take another seed";
  EXPECT_FALSE(measured.lazy);
  plan.lazy->threshold = -1e-9;
  PromptLab above(GetParam(), options_, UniformPlan(options_, plan));
  EXPECT_TRUE(above.Run(0).lazy);
}

TEST_P(PromptLayer, AShortPromptIsNeverLazy) {
  LayerPlan plan = PlanKeepAll({n(), 10});
  plan.lazy = LazyTest{.sinks = 10, .recent = n() - 10, .last = 8, .threshold = 0};
  PromptLab lab(GetParam(), options_, UniformPlan(options_, plan));
  ExpectAllKept(lab.Run(0), n());
  plan.lazy->recent = n() - 11;
  PromptLab longer(GetParam(), options_, UniformPlan(options_, plan));
  EXPECT_TRUE(longer.Run(0).lazy);
}

TEST_P(PromptLayer, ALazyLayerKeepsTheRingWhateverElseWasSelected) {
  const WindowScoreStatistic statistic{8, 5};
  LayerPlan lazy = PlanKeepBest({n(), 10}, statistic, 24), busy = lazy;
  lazy.lazy = LazyTest{.sinks = 2, .recent = 30, .last = 8, .threshold = 0};
  busy.lazy = LazyTest{.sinks = 2, .recent = 30, .last = 8, .threshold = 1};
  PromptLab lab(GetParam(), options_, PlanOf(options_, {lazy, busy, lazy}));
  for (int layer = 0; layer < 3; ++layer) {
    const LayerMeasured measured = lab.Run(layer);
    EXPECT_EQ(measured.lazy, layer != 1);
    if (layer == 1) {
      const auto scores = PlainWindowScores(lab, layer, 0, n(), statistic);
      ExpectKept(measured, 0, PlainBest(scores, 16), 8);
    } else {
      EXPECT_EQ(measured.kept_tokens, 32);
      EXPECT_EQ(measured.first_tokens, 2);
      EXPECT_TRUE(measured.kept.empty());
    }
  }
}

// ---- Attention recall --------------------------------------------------------------------------

TEST_P(PromptLayer, RecallIsTheShareOfAttentionOnWhatStays) {
  const SequenceLimits limits{n(), 10};
  LayerPlan lazy = PlanKeepAll(limits);
  lazy.lazy = LazyTest{.sinks = 2, .recent = 30, .last = 8, .threshold = 0};
  const std::pair<const char*, LayerPlan> plans[] = {
      {"all", PlanKeepAll(limits)},
      {"ring", PlanKeepRing(limits, 3, 20)},
      {"best", PlanKeepBest(limits, {8, 5}, 24)},
      {"heavy", PlanKeepHeavy(limits, {12, 9})},
      {"windows", PlanKeepWindows(limits, {.observe = 6, .review = 8, .best = 8, .budget = 30})},
      {"lazy", lazy}};
  for (const auto& [name, plan] : plans) {
    PromptLab lab(GetParam(), options_, UniformPlan(options_, plan), true);
    for (int layer = 0; layer < options_.num_layers; ++layer) {
      const LayerMeasured measured = lab.Run(layer);
      const auto received = lab.ReceivedFromLast(layer, kRecallRows);
      double expected = 0;
      for (int head = 0; head < options_.num_kv_heads; ++head) {
        for (int i = 0; i < measured.kept_tokens; ++i) {
          const int first = measured.first_tokens;
          const int position = !measured.kept.empty()
                                   ? measured.kept[head * measured.kept_tokens + i]
                               : i < first ? i
                                           : n() - measured.kept_tokens + i;
          expected += received[head][position] / (kRecallRows * options_.num_kv_heads);
        }
      }
      EXPECT_NEAR(measured.attention_recall, expected, kTolerance) << name << ", layer " << layer;
      if (plan.prompt_tokens_kept < static_cast<size_t>(n()) || plan.lazy) {
        EXPECT_LT(measured.attention_recall, 0.99) << name;
      }
    }
  }
}

TEST_P(PromptLayer, RecallOfAPromptShorterThanItsRowsIsOverTheWholePrompt) {
  options_.tokens = 20;
  PromptLab lab(GetParam(), options_, UniformPlan(options_, PlanKeepRing({20, 10}, 2, 6)), true);
  const LayerMeasured measured = lab.Run(0);
  const auto received = lab.ReceivedFromLast(0, 20);
  double expected = 0;
  for (const auto& head : received) {
    for (int j = 0; j < 20; ++j) expected += j < 2 || j >= 14 ? head[j] / 40 : 0;
  }
  EXPECT_NEAR(measured.attention_recall, expected, kTolerance);
}

TEST_P(PromptLayer, RecallIsOneWhereAllStaysAlsoUnderOtherLayersKeys) {
  PromptLab lab(GetParam(), options_,
                PodPlan(options_, 2, std::vector<LayerPlan>(3, PlanKeepAll({n(), 10}))), true);
  for (int layer = 0; layer < 3; ++layer) EXPECT_EQ(lab.Run(layer).attention_recall, 1);
}

TEST_P(PromptLayer, RecallIsNegativeWhereNobodyAskedForIt) {
  PromptLab lab(GetParam(), options_, UniformPlan(options_, PlanKeepRing({n(), 10}, 2, 6)));
  EXPECT_LT(lab.Run(0).attention_recall, 0);
}

INSTANTIATE_TEST_SUITE_P(Backends, PromptLayer, ::testing::ValuesIn(CacheOpsBackends()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace ziggurat::testing

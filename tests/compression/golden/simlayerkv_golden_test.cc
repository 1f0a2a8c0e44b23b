// SimLayerKV's masses and decisions. The decode criterion against the published code's; the
// criterion at the end of the prompt differs from both published ones (one leaves out the query's
// own key, the other the last columns), so it is held to the definition, computed here in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "compression/policy.h"
#include "tests/attention/test_cache.h"
#include "tests/compression/golden/golden_case.h"
#include "tests/compression/golden/policy_limits.h"
#include "tests/compression/golden/report.h"
#include "tests/compression/golden/workspace.h"

namespace ziggurat::golden {
namespace {

constexpr double kMassTolerance = 1e-5;

/// As the engine measures it of a prompt: sums of columns over the last queries.
double MeasurePromptMass(AttentionBackend& backend, const Workspace& workspace,
                         const LazyTest& test) {
  const int n = workspace.tokens;
  double mass = 0;
  for (const auto& [begin, end] : {std::pair(0, test.sinks), std::pair(n - test.recent, n)}) {
    for (const auto& head :
         MeasureColumnSums(backend, workspace, test.last, begin, end, ScoreRows::kKvHeads)) {
      mass += std::accumulate(head.begin(), head.end(), 0.0);
    }
  }
  return mass / (static_cast<double>(test.last) * workspace.shape.num_kv_heads);
}

/// As the engine measures it of a decode step: the share of slots of the cache.
double MeasureStepMass(AttentionBackend& backend, const Workspace& workspace,
                       const LazyTest& test) {
  const AttentionShape& shape = workspace.shape;
  const int n = workspace.tokens;
  TestPool pool(CacheGeometry::DefaultBlockBytes(shape.num_kv_heads, shape.head_dim),
                static_cast<size_t>(n) / 4 + 1);
  const SegmentView segment =
      TakeSegment(pool, CacheFormat::kF32, 0, shape.num_kv_heads, shape.head_dim, n);
  backend.WriteTokens(shape, {ElementType::kF32, workspace.k.data(), workspace.k.data()},
                      TokenChoice::From(0, n), pool.view(), segment, 0);
  const float* q = workspace.q.data() + workspace.q.size() - shape.num_q_heads * shape.head_dim;
  const float* lse = workspace.lse.data() + workspace.lse.size() - shape.num_q_heads;
  return backend.SlotMass(shape, segment, 0, test.sinks, q, lse, pool.view()) +
         backend.SlotMass(shape, segment, n - test.recent, n, q, lse, pool.view());
}

/// The definition: mean over the last queries and all heads of the softmax, causal, that falls on
/// the first `sinks` and the last `recent` keys of the prompt.
double ComputeMass(const Workspace& workspace, const LazyTest& test) {
  const AttentionShape& shape = workspace.shape;
  const int n = workspace.tokens, dim = shape.head_dim;
  double total = 0;
  for (int i = n - test.last; i < n; ++i) {
    for (int h = 0; h < shape.num_q_heads; ++h) {
      const float* q = &workspace.q[((i - (n - workspace.rows)) * shape.num_q_heads + h) * dim];
      std::vector<double> logits;
      for (int j = 0; j <= i; ++j) {
        const float* k = &workspace.k[(j * shape.num_kv_heads + h / shape.group_size()) * dim];
        logits.push_back(std::inner_product(q, q + dim, k, 0.0) / std::sqrt(dim));
      }
      const double largest = *std::max_element(logits.begin(), logits.end());
      double all = 0, gathered = 0;
      for (int j = 0; j <= i; ++j) {
        const double weight = std::exp(logits[j] - largest);
        all += weight;
        if (j < test.sinks || j >= n - test.recent) gathered += weight;
      }
      total += gathered / all;
    }
  }
  return total / (test.last * shape.num_q_heads);
}

std::vector<Workspace> MakeWorkspaces(AttentionBackend& backend, const Case& golden) {
  std::vector<Workspace> workspaces;
  for (const Tensors& input : golden.inputs) {
    workspaces.push_back(MakeWorkspace(backend, input, false));
  }
  return workspaces;
}

PolicyContext ContextOf(const Case& golden) {
  return {golden.manifest.at("num_layers").get<int>(), golden.manifest.at("n_q_heads").get<int>(),
          golden.manifest.at("n_kv_heads").get<int>(), golden.manifest.at("head_dim").get<int>()};
}

/// What the reference was asked, in our words.
std::string PolicyText(const ReferenceRun& run) {
  const auto& params = run.manifest.at("params");
  return "simlayerkv(decide=decode,threshold=" + params.at("threshold").dump() +
         ",sinks=" + params.at("n_sink").dump() + ",recent=" + params.at("n_recent").dump() + ")";
}

std::string ReasonToSkip(const Case& golden, const ReferenceRun& run) {
  if (run.method() != "simlayerkv_decode") {
    return "runs: decides at the end of the prompt by another criterion than the paper's";
  }
  const auto& params = run.manifest.at("params");
  if (golden.manifest.at("seq_len").get<int>() <=
      params.at("n_sink").get<int>() + params.at("n_recent").get<int>()) {
    return "runs: counts the sinks of a short prompt twice, which is not tested here";
  }
  const bool allowed = IsWithin(params.at("threshold"), 0, 1) &&
                       IsWithin(params.at("n_sink"), 0, kMostTokens) &&
                       IsWithin(params.at("n_recent"), 1, kMostTokens);
  return allowed ? "" : ReasonOfRefusal(PolicyText(run));
}

/// Masses, decisions and kept tokens of one run.
void CompareDecodeRun(AttentionBackend& backend, const Case& golden, const ReferenceRun& run,
                      const std::vector<Workspace>& workspaces, Report* report) {
  const auto policy = ParsePolicy(PolicyText(run));
  ASSERT_TRUE(policy.ok()) << run.name << ": " << policy.status();
  const PolicyContext context = ContextOf(golden);
  const int tokens = workspaces.front().tokens;  // the first generated one included
  const CachePlan plan = (*policy)->Plan(context, {tokens - 1, 3});
  ASSERT_EQ(plan.importance, LayerImportance::kLazyMass);
  std::vector<double> masses;
  for (int layer = 0; layer < context.num_layers; ++layer) {
    masses.push_back(
        MeasureStepMass(backend, workspaces[layer % workspaces.size()], plan.first_token_test));
  }
  const std::vector<LayerPlan> layers = (*policy)->Decide(context, {tokens, 2}, masses);
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const std::string where = run.name + " layer " + std::to_string(layer);
    const auto expected = run.expected.at("lazy_mass").at(layer).get<double>();
    report->Difference("masses", std::abs(masses[layer] - expected));
    EXPECT_NEAR(masses[layer], expected, kMassTolerance) << where;
    EXPECT_EQ(std::holds_alternative<KeepRing>(layers[layer].edit),
              run.expected.at("lazy").at(layer).get<bool>())
        << where;
    EXPECT_EQ(layers[layer].prompt_tokens_kept,
              run.expected.at("cache_len_after_first_decode").at(layer).get<size_t>())
        << where;
    const std::vector<int> kept = KeptPositions(backend, layers[layer].edit, tokens, {});
    for (const auto& head : run.expected.at("kept").at(layer)) {
      EXPECT_EQ(kept, head.get<std::vector<int>>()) << where;
    }
    report->Compared("layers' masses and decisions");
  }
  report->Compared("runs");
}

TEST(SimLayerKvGolden, EveryBackendFindsTheLazyLayersThatThePublishedCodeFinds) {
  const auto folder = FindGoldens();
  if (!folder.has_value()) GTEST_SKIP() << MissingGoldens();
  const std::vector<Case> cases = LoadCases(*folder, {"simlayerkv"});
  bool has_compared = false;
  for (const auto& backend : BackendsWith(1)) {
    Report report;
    for (const Case& golden : cases) {
      if (!golden.Has("simlayerkv")) continue;
      const std::vector<Workspace> workspaces = MakeWorkspaces(*backend, golden);
      for (const ReferenceRun& run : golden.runs) {
        if (!run.method().starts_with("simlayerkv")) continue;
        if (const std::string reason = ReasonToSkip(golden, run); !reason.empty()) {
          report.Skipped(reason);
          continue;
        }
        report.Expected("runs");
        report.Expected("layers' masses and decisions",
                        static_cast<size_t>(ContextOf(golden).num_layers));
        CompareDecodeRun(*backend, golden, run, workspaces, &report);
      }
    }
    report.Print("simlayerkv, first generated token, backend " + std::string(backend->name()));
    if (HasCase(cases, "simlayerkv_long")) report.Demand("layers' masses and decisions");
    has_compared = report.has_compared();
  }
  if (!has_compared) GTEST_SKIP() << NothingToCompare("simlayerkv's first generated token");
}

TEST(SimLayerKvGolden, EveryBackendMeasuresAPromptAsDefined) {
  const auto folder = FindGoldens();
  if (!folder.has_value()) GTEST_SKIP() << MissingGoldens();
  const std::vector<Case> cases = LoadCases(*folder, {"simlayerkv"});
  bool has_compared = false;
  for (const auto& backend : BackendsWith(1)) {
    Report report;
    for (const Case& golden : cases) {
      if (!golden.Has("simlayerkv")) continue;
      const int n = golden.manifest.at("seq_len");
      const std::vector<Workspace> workspaces = MakeWorkspaces(*backend, golden);
      for (const char* shape : {"sinks=4,recent=512,last=32", "sinks=4,recent=128,last=1",
                                "sinks=0,recent=1,last=7", "sinks=16,recent=300,last=31"}) {
        const auto policy = ParsePolicy(std::string("simlayerkv(") + shape + ")");
        ASSERT_TRUE(policy.ok()) << policy.status();
        const CachePlan plan = (*policy)->Plan(ContextOf(golden), {n, 1});
        for (size_t layer = 0; layer < plan.layers.size(); ++layer) {
          const Workspace& workspace = workspaces[layer % workspaces.size()];
          if (!plan.layers[layer].lazy.has_value()) {
            report.Skipped(std::string("layers: a prompt that ") + shape + " leaves whole");
            continue;
          }
          const LazyTest& test = *plan.layers[layer].lazy;
          if (test.last > workspace.rows) {
            report.Skipped(std::string("layers: fewer queries than ") + shape);
            continue;
          }
          const double expected = ComputeMass(workspace, test);
          const double measured = MeasurePromptMass(*backend, workspace, test);
          report.Difference("masses", std::abs(measured - expected));
          EXPECT_NEAR(measured, expected, kMassTolerance)
              << golden.name << " layer " << layer << " " << shape;
          report.Compared("layers' masses");
          report.Expected("layers' masses");
        }
      }
    }
    report.Print("simlayerkv, end of the prompt, backend " + std::string(backend->name()));
    if (HasCase(cases, "simlayerkv_long")) report.Demand("layers' masses");
    has_compared = report.has_compared();
  }
  if (!has_compared) GTEST_SKIP() << NothingToCompare("simlayerkv");
}

}  // namespace
}  // namespace ziggurat::golden

// H2O's selection at the end of the prompt, from policy text to kept tokens, against
// KVCache-Factory's (which never evicts while decoding: there is nothing of that to compare).
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "compression/policy.h"
#include "tests/compression/golden/golden_case.h"
#include "tests/compression/golden/report.h"
#include "tests/compression/golden/workspace.h"

namespace ziggurat::golden {
namespace {

constexpr double kScoreTolerance = 3e-5;  // relative

std::string ReasonToSkip(const ReferenceRun& run) {
  if (run.method() == "observed_attention") {
    return "kvpress divides a sum by the queries that saw the key, and keeps no recent tokens";
  }
  const auto& params = run.manifest.at("params");
  if (params.value("kv_cache_granularity", "") == "kv_head" &&
      params.value("gqa_score_agg", "mean") == "max") {
    return "a group's scores are its mean here, not their maximum";
  }
  return "";
}

/// One run on one backend.
class Comparison {
 public:
  Comparison(AttentionBackend& backend, const Case& golden, const ReferenceRun& run, Report* report)
      : backend_(backend), golden_(golden), run_(run), report_(report) {}

  void Compare() {
    const auto& params = run_.manifest.at("params");
    const bool query_heads = params.value("kv_cache_granularity", "") == "query_head";
    const int window = params.at("window_size"), capacity = params.at("max_capacity_prompt");
    const auto policy = ParsePolicy("h2o(heavy=" + std::to_string(capacity - window) +
                                    ",recent=" + std::to_string(window) + ")");
    ASSERT_TRUE(policy.ok()) << policy.status();
    const int layers = golden_.manifest.at("num_layers");
    for (int layer = 0; layer < layers; ++layer) {
      const size_t input = layer % golden_.inputs.size();
      const Workspace workspace = MakeWorkspace(backend_, golden_.inputs[input], query_heads);
      const auto scores = MeasureColumnSums(backend_, workspace, workspace.tokens, 0,
                                            workspace.tokens, ScoreRows::kKvHeads);
      const auto tensor = run_.tensors.find("input" + std::to_string(input) + ".scores");
      if (static_cast<size_t>(layer) == input && tensor != run_.tensors.end()) {
        CompareScores(scores, tensor->second, workspace.shape);
      }
      const PolicyContext context{layers, workspace.shape.num_q_heads, workspace.shape.num_kv_heads,
                                  workspace.shape.head_dim};
      const LayerPlan plan = (*policy)->Plan(context, workspace.tokens, 1).layers.at(layer);
      CompareKept(layer, plan, workspace.tokens, scores);
    }
  }

 private:
  void CompareScores(const std::vector<std::vector<float>>& ours, const Tensor& theirs,
                     const AttentionShape& shape) {
    // A sum over the group of query heads is the mean times their number.
    const bool sums = run_.manifest.at("params").value("gqa_score_agg", "mean") == "sum";
    const double scale = sums ? shape.group_size() : 1;
    const int64_t width = theirs.shape.at(1);
    ASSERT_EQ(static_cast<size_t>(theirs.shape.at(0)), ours.size()) << run_.name;
    for (size_t head = 0; head < ours.size(); ++head) {
      for (int64_t j = 0; j < width; ++j) {
        const double expected = theirs.values[head * width + j];
        const double difference = std::abs(ours[head][j] * scale - expected) / expected;
        report_->Difference("scores", difference);
        EXPECT_LE(difference, kScoreTolerance)
            << run_.name << " head " << head << " token " << j << ": " << ours[head][j] * scale
            << " instead of " << expected;
      }
      report_->Compared("heads' scores");
    }
  }

  void CompareKept(int layer, const LayerPlan& plan, int tokens,
                   const std::vector<std::vector<float>>& scores) {
    const auto& expected = run_.expected.at("kept").at(layer);
    EXPECT_EQ(plan.prompt_tokens_kept, run_.expected.at("budgets").at(layer).get<size_t>());
    EXPECT_EQ(std::holds_alternative<KeepHeavy>(plan.edit),
              run_.expected.at("compressed").get<bool>());
    for (size_t head = 0; head < expected.size(); ++head) {
      EXPECT_EQ(KeptPositions(backend_, plan.edit, tokens, scores.at(head)),
                expected.at(head).get<std::vector<int>>())
          << run_.name << " layer " << layer << " head " << head;
      report_->Compared("heads' kept sets");
    }
  }

  AttentionBackend& backend_;
  const Case& golden_;
  const ReferenceRun& run_;
  Report* report_;
};

void CountExpected(const ReferenceRun& run, Report* report) {
  for (const auto& layer : run.expected.at("kept")) {
    report->Expected("heads' kept sets", static_cast<int>(layer.size()));
  }
  for (const auto& [name, tensor] : run.tensors) {
    report->Expected("heads' scores", static_cast<int>(tensor.shape.at(0)));
  }
  report->Expected("runs");
}

TEST(H2oGolden, EveryBackendKeepsWhatThePublishedCodeKeeps) {
  const auto folder = FindGoldens();
  if (!folder.has_value()) GTEST_SKIP() << MissingGoldens();
  const std::vector<Case> cases = LoadCases(*folder, {"h2o"});
  for (const auto& backend : Backends()) {
    Report report;
    for (const Case& golden : cases) {
      for (const ReferenceRun& run : golden.runs) {
        if (run.method() != "h2o" && run.method() != "observed_attention") continue;
        if (const std::string reason = ReasonToSkip(run); !reason.empty()) {
          report.Skipped(reason);
          continue;
        }
        CountExpected(run, &report);
        Comparison(*backend, golden, run, &report).Compare();
        report.Compared("runs");
      }
    }
    report.Print("h2o, backend " + std::string(backend->name()));
  }
}

}  // namespace
}  // namespace ziggurat::golden

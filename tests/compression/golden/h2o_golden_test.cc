// H2O's selection at the end of the prompt, from policy text to kept tokens, against
// KVCache-Factory's (which never evicts while decoding: there is nothing of that to compare).
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "compression/layer_plan.h"
#include "compression/policy.h"
#include "tests/attention/backends.h"
#include "tests/compression/golden/golden_case.h"
#include "tests/compression/golden/policy_limits.h"
#include "tests/compression/golden/report.h"
#include "tests/compression/golden/workspace.h"

namespace ziggurat::golden {
namespace {

constexpr double kScoreTolerance = 3e-5;  // relative

/// What the reference was asked, in our words.
struct Asked {
  explicit Asked(const ReferenceRun& run) {
    const auto& params = run.manifest.at("params");
    edit.recent = params.at("window_size");
    edit.heavy = params.at("max_capacity_prompt").get<int>() - edit.recent;
  }
  std::string PolicyText() const {
    return "h2o(heavy=" + std::to_string(edit.heavy) + ",recent=" + std::to_string(edit.recent) +
           ")";
  }
  bool is_allowed() const {
    return IsWithin(edit.heavy, 1, kMostTokens) && IsWithin(edit.recent, 1, kMostTokens);
  }
  KeepHeavy edit;
};

std::string ReasonToSkip(const Case& golden, const ReferenceRun& run) {
  if (run.method() == "observed_attention") {
    return "runs: kvpress divides a sum by the queries that saw the key, and keeps no recent "
           "tokens";
  }
  const auto& params = run.manifest.at("params");
  if (golden.HasGroups() && params.value("kv_cache_granularity", "") == "kv_head" &&
      params.value("gqa_score_agg", "mean") == "max") {
    return "runs: a group's scores are its mean here, not their maximum";
  }
  const Asked asked(run);
  if (!asked.is_allowed() && run.expected.at("compressed")) {
    return ReasonOfRefusal(asked.PolicyText());
  }
  return "";
}

/// One run on one backend.
class Comparison {
 public:
  Comparison(AttentionBackend& backend, const Case& golden, const ReferenceRun& run, Report* report)
      : backend_(backend), golden_(golden), run_(run), asked_(run), report_(report) {}

  void Compare() {
    const auto& params = run_.manifest.at("params");
    const bool query_heads = params.value("kv_cache_granularity", "") == "query_head";
    const auto policy = ParsePolicy(asked_.PolicyText());
    ASSERT_EQ(policy.ok(), asked_.is_allowed()) << run_.name << ": " << policy.status();
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
      // A prompt that is kept whole needs no policy.
      const LayerPlan plan = policy.ok()
                                 ? (*policy)->Plan(context, {workspace.tokens, 1}).layers.at(layer)
                                 : PlanKeepHeavy({workspace.tokens, 1}, asked_.edit);
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
        const double difference = RelativeDifference(ours[head][j] * scale, expected);
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
  const Asked asked_;
  Report* report_;
};

void CountExpected(const ReferenceRun& run, Report* report) {
  for (const auto& layer : run.expected.at("kept")) {
    report->Expected("heads' kept sets", layer.size());
  }
  for (const auto& [name, tensor] : run.tensors) {
    report->Expected("heads' scores", static_cast<size_t>(tensor.shape.at(0)));
  }
  report->Expected("runs");
}

TEST(H2oGolden, EveryBackendKeepsWhatThePublishedCodeKeeps) {
  const auto folder = FindGoldens();
  if (!folder.has_value()) GTEST_SKIP() << MissingGoldens();
  const std::vector<Case> cases = LoadCases(*folder, {"h2o"});
  bool has_compared = false;
  for (const auto& backend : BackendsWith(1)) {
    Report report;
    for (const Case& golden : cases) {
      for (const ReferenceRun& run : golden.runs) {
        if (run.method() != "h2o" && run.method() != "observed_attention") continue;
        if (const std::string reason = ReasonToSkip(golden, run); !reason.empty()) {
          report.Skipped(reason);
          continue;
        }
        CountExpected(run, &report);
        Comparison(*backend, golden, run, &report).Compare();
        report.Compared("runs");
      }
    }
    report.Print("h2o, backend " + std::string(backend->name()));
    if (HasCase(cases, "h2o_mha")) report.Demand("heads' scores");
    has_compared = report.has_compared();
  }
  if (!has_compared) GTEST_SKIP() << NothingToCompare("h2o");
}

}  // namespace
}  // namespace ziggurat::golden

// Kept sets and scores of the product's path (policy text -> plan -> statistic -> edit -> backend)
// against those of the published code. What is compared and what is not, and why, is the table of
// docs/adding_a_policy.md, "Checked against published code".
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "attention/backend.h"
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

bool IsPyramid(const ReferenceRun& run) { return run.method() == "pyramidkv"; }

/// What the reference was asked, in our words.
class Asked {
 public:
  Asked(const Case& golden, const ReferenceRun& run)
      : run_(run),
        params_(run.manifest.at("params")),
        prompt_tokens_(golden.inputs.at(0).at("k").shape.at(1)),
        kept_(run.expected.at("budgets").get<std::vector<int64_t>>()) {}

  /// KV pairs of a layer, all told.
  int64_t Budget() const {
    if (!run_.is_kvpress()) return params_.at("max_capacity_prompt");
    // kvpress rounds a share of the prompt: its own count is fed in. Its pyramid has the mean of
    // that share without the window.
    if (!IsPyramid(run_)) return kept_.at(0);
    const double share = 1 - params_.at("compression_ratio").get<double>();
    return Window() + std::lround(static_cast<double>(prompt_tokens_) * share);
  }

  std::string PolicyText() const {
    if (is_streaming()) {
      return "streaming(sinks=" + std::to_string(Sinks()) +
             ",recent=" + std::to_string(Budget() - Sinks()) + ")";
    }
    return (IsPyramid(run_) ? "pyramidkv" : "snapkv") + ("(budget=" + std::to_string(Budget())) +
           ",window=" + std::to_string(Window()) + ",kernel=" + std::to_string(Kernel()) +
           ",pool=" + (params_.value("pooling", "avgpool") == "maxpool" ? "max" : "avg") +
           (IsPyramid(run_) ? ",beta=" + params_.at("beta").dump() : "") + ")";
  }

  bool is_allowed() const {
    if (is_streaming()) {
      return IsWithin(Sinks(), 0, kMostTokens) && IsWithin(Budget() - Sinks(), 1, kMostTokens);
    }
    return IsWithin(Budget(), 2, kMostTokens) && IsWithin(Window(), 1, 1024) &&
           Budget() > Window() && IsWithin(Kernel(), 1, 127) && Kernel() % 2 == 1 &&
           (!IsPyramid(run_) || IsWithin(params_.at("beta"), 1, 1e6));
  }
  /// Whether the reference keeps the whole window in every layer, as we do.
  bool keeps_window() const {
    return is_streaming() || *std::min_element(kept_.begin(), kept_.end()) >= Window();
  }

 private:
  bool is_streaming() const { return run_.method() == "streamingllm"; }
  int64_t Window() const { return params_.at("window_size"); }
  int64_t Kernel() const { return params_.at("kernel_size"); }
  /// KVCache-Factory's is what its capacity leaves beside the recent window.
  int64_t Sinks() const {
    return run_.is_kvpress() ? params_.at("n_sink").get<int64_t>() : Budget() - Window();
  }

  const ReferenceRun& run_;
  const nlohmann::json& params_;
  const int64_t prompt_tokens_;
  const std::vector<int64_t> kept_;  // of each layer
};

/// Why a run is not compared; empty: it is.
std::string ReasonToSkip(const Case& golden, const ReferenceRun& run) {
  const std::string runs = "runs of " + run.method() + ": ";
  if (run.method() == "adakv") return runs + "no such method";
  static const std::set<std::string> kBuilt = {"snapkv", "pyramidkv", "streamingllm"};
  if (!kBuilt.contains(run.method())) return runs + "left to another golden test";
  if (!run.expected.contains("kept")) {
    return runs + "budgets only: our integers differ by decision (see the line)";
  }
  const auto& params = run.manifest.at("params");
  if (golden.HasGroups() && params.value("kv_cache_granularity", "") == "kv_head" &&
      params.value("gqa_score_agg", "mean") != "mean") {
    return runs + "a group's scores are its mean here, not their maximum or sum";
  }
  // A prompt that is kept whole needs no policy.
  if (!run.expected.at("compressed")) return "";
  const Asked asked(golden, run);
  if (!asked.is_allowed()) return ReasonOfRefusal(asked.PolicyText());
  if (!asked.keeps_window()) return runs + "layers keep less than the window";
  return "";
}

/// The workspaces of a case's inputs, made once for all its runs.
class CaseWorkspaces {
 public:
  CaseWorkspaces(AttentionBackend& backend, const Case& golden)
      : backend_(backend), golden_(golden) {}

  const std::vector<Workspace>& Get(const ReferenceRun& run) {
    const auto& params = run.manifest.at("params");
    const bool query_heads = params.value("kv_cache_granularity", "") == "query_head";
    std::vector<Workspace>& workspaces = made_[query_heads];
    if (workspaces.empty()) {
      for (const Tensors& input : golden_.inputs) {
        workspaces.push_back(MakeWorkspace(backend_, input, query_heads));
      }
    }
    return workspaces;
  }

 private:
  AttentionBackend& backend_;
  const Case& golden_;
  std::map<bool, std::vector<Workspace>> made_;
};

/// Compares one run; reports into gtest and counts what it really compared.
class RunComparison {
 public:
  RunComparison(AttentionBackend& backend, const Case& golden, const ReferenceRun& run,
                const std::vector<Workspace>& workspaces, Report* report)
      : backend_(backend),
        run_(run),
        workspaces_(workspaces),
        num_layers_(golden.manifest.at("num_layers").get<int>()),
        asked_(golden, run),
        report_(report) {}

  void Compare() {
    const auto policy = ParsePolicy(asked_.PolicyText());
    ASSERT_EQ(policy.ok(), asked_.is_allowed()) << run_.name << ": " << policy.status();
    if (policy.ok()) {
      policy_ = *policy;
      CompareScores();
    }
    for (int layer = 0; layer < num_layers_; ++layer) CompareLayer(layer);
    report_->Compared(run_.method() + " runs");
  }

  /// What the manifest and the expected files hold for us to compare, counted without comparing.
  void CountExpected() {
    report_->Expected(run_.method() + " runs");
    for (const auto& layer : run_.expected.at("kept")) {
      report_->Expected(run_.method() + " heads' kept sets", layer.size());
    }
    if (!asked_.is_allowed()) return;
    for (const auto& [name, tensor] : run_.tensors) {
      report_->Expected(run_.method() + " heads' scores", tensor.shape.at(0));
    }
  }

 private:
  const Workspace& WorkspaceOf(int layer) const { return workspaces_[layer % workspaces_.size()]; }
  int KeptByReference(int layer) const { return run_.expected.at("budgets").at(layer).get<int>(); }

  /// What the policy plans for `layer` of a prompt of `tokens`.
  LayerPlan PlanLayer(int layer, int tokens) const {
    if (policy_ == nullptr) return PlanKeepBest({tokens, 1}, {}, asked_.Budget());
    const AttentionShape& shape = WorkspaceOf(layer).shape;
    const PolicyContext context{num_layers_, shape.num_q_heads, shape.num_kv_heads, shape.head_dim};
    return policy_->Plan(context, {tokens, 1}).layers.at(layer);
  }

  /// The statistic does not depend on the prompt, but only a long one needs it.
  WindowScoreStatistic StatisticOf(int layer) const {
    return std::get<WindowScoreStatistic>(PlanLayer(layer, 1 << 30).statistic);
  }

  /// A pyramid's integers differ by decision: the reference's budget is fed in.
  LayerPlan PlanLikeReference(int layer, int tokens) const {
    if (!IsPyramid(run_) || policy_ == nullptr) return PlanLayer(layer, tokens);
    return PlanKeepBest({tokens, 1}, StatisticOf(layer), KeptByReference(layer));
  }

  const std::vector<std::vector<float>>& ScoresOf(int layer) {
    const size_t input = layer % workspaces_.size();
    const auto found = scores_.find(input);
    if (found != scores_.end()) return found->second;
    return scores_[input] = MeasureWindowScores(backend_, workspaces_[input], StatisticOf(layer));
  }

  void CompareScores() {
    for (size_t input = 0; input < workspaces_.size(); ++input) {
      const std::string name = "input" + std::to_string(input) + ".scores";
      const auto tensor = run_.tensors.find(name);
      if (tensor == run_.tensors.end()) continue;
      // kvpress takes the mean over the window as we do, KVCache-Factory the sum.
      const double scale =
          run_.is_kvpress() ? 1 : run_.manifest.at("params").at("window_size").get<double>();
      const auto& ours = ScoresOf(static_cast<int>(input));
      const int64_t width = tensor->second.shape.at(1);
      ASSERT_EQ(static_cast<size_t>(tensor->second.shape.at(0)), ours.size()) << run_.name;
      for (size_t head = 0; head < ours.size(); ++head) {
        CompareHeadScores(ours[head], &tensor->second.values[head * width], scale,
                          run_.name + " " + name + " head " + std::to_string(head));
        report_->Compared(run_.method() + " heads' scores");
      }
    }
  }

  void CompareHeadScores(const std::vector<float>& ours, const float* theirs, double scale,
                         const std::string& where) {
    double worst = 0;
    size_t at = 0;
    for (size_t j = 0; j < ours.size(); ++j) {
      const double difference = RelativeDifference(ours[j] * scale, theirs[j]);
      // Written so that a NaN counts as the worst.
      if (!(difference <= worst)) {
        worst = difference;
        at = j;
      }
    }
    report_->Difference(run_.method() + " scores", worst);
    EXPECT_LE(worst, kScoreTolerance)
        << where << " token " << at << ": " << ours[at] * scale << " instead of " << theirs[at];
  }

  void CompareLayer(int layer) {
    const int tokens = WorkspaceOf(layer).tokens;
    const LayerPlan plan = PlanLikeReference(layer, tokens);
    const auto& expected = run_.expected.at("kept").at(layer);
    const std::string where = run_.name + " layer " + std::to_string(layer);
    EXPECT_EQ(plan.prompt_tokens_kept, static_cast<size_t>(KeptByReference(layer))) << where;
    const bool scored = std::holds_alternative<KeepBest>(plan.edit);
    for (size_t head = 0; head < expected.size(); ++head) {
      const std::vector<int> ours = KeptPositions(
          backend_, plan.edit, tokens, scored ? ScoresOf(layer).at(head) : std::vector<float>());
      const auto theirs = expected.at(head).get<std::vector<int>>();
      CompareKept(ours, theirs, TiesOf(layer, head), where + " head " + std::to_string(head));
      report_->Compared(run_.method() + " heads' kept sets");
    }
  }

  /// Exact ties at the cut, where the reference's choice is arbitrary; null: none.
  nlohmann::json TiesOf(int layer, size_t head) const {
    if (!run_.expected.contains("ties")) return nullptr;
    return run_.expected.at("ties").at(layer).value(std::to_string(head), nlohmann::json());
  }

  static void CompareKept(const std::vector<int>& ours, const std::vector<int>& theirs,
                          const nlohmann::json& ties, const std::string& where) {
    if (ties.is_null()) {
      EXPECT_EQ(ours, theirs) << where;
      return;
    }
    // Of tied tokens the lower positions are ours; the others must be as the reference has them.
    const auto tied = ties.at("tied").get<std::set<int>>();
    std::set<int> expected;
    for (int position : theirs) {
      if (!tied.contains(position)) expected.insert(position);
    }
    auto next = tied.begin();
    for (int i = 0; i < ties.at("need").get<int>(); ++i) expected.insert(*next++);
    EXPECT_EQ(ours, std::vector<int>(expected.begin(), expected.end())) << where << " (ties)";
  }

  AttentionBackend& backend_;
  const ReferenceRun& run_;
  const std::vector<Workspace>& workspaces_;  // of each input
  const int num_layers_;
  const Asked asked_;
  std::shared_ptr<const Policy> policy_;  // null: not allowed, and the prompt is kept whole
  std::map<size_t, std::vector<std::vector<float>>> scores_;
  Report* report_;
};

TEST(SelectionGolden, EveryBackendKeepsWhatThePublishedCodeKeeps) {
  const auto folder = FindGoldens();
  if (!folder.has_value()) GTEST_SKIP() << MissingGoldens();
  const std::vector<Case> cases = LoadCases(*folder, {"snapkv", "pyramidkv", "streamingllm"});
  bool has_compared = false;
  for (const auto& backend : BackendsWith(1)) {
    Report report;
    for (const Case& golden : cases) {
      CaseWorkspaces workspaces(*backend, golden);
      for (const ReferenceRun& run : golden.runs) {
        if (const std::string reason = ReasonToSkip(golden, run); !reason.empty()) {
          report.Skipped(reason);
          continue;
        }
        RunComparison comparison(*backend, golden, run, workspaces.Get(run), &report);
        comparison.CountExpected();
        comparison.Compare();
      }
    }
    report.Print("selection, backend " + std::string(backend->name()));
    if (HasCase(cases, "snapkv_mha_a")) {
      report.Demand("snapkv heads' kept sets");
      report.Demand("snapkv heads' scores");
      report.Demand("streamingllm heads' kept sets");
    }
    if (HasCase(cases, "pyramidkv_L8_mha")) {
      report.Demand("pyramidkv heads' kept sets");
      report.Demand("pyramidkv heads' scores");
    }
    has_compared = report.has_compared();
  }
  if (!has_compared) GTEST_SKIP() << NothingToCompare("snapkv, pyramidkv or streamingllm");
}

}  // namespace
}  // namespace ziggurat::golden

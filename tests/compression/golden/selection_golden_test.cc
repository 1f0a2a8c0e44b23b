// Kept sets and scores of the product's path (policy text -> plan -> statistic -> edit -> backend)
// against those of the published code. What is compared and what is not, and why, is the table of
// docs/policies.md, "Checked against published code".
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "compression/layer_plan.h"
#include "compression/policy.h"
#include "tests/compression/golden/golden_case.h"
#include "tests/compression/golden/report.h"
#include "tests/compression/golden/workspace.h"

namespace ziggurat::golden {
namespace {

constexpr double kScoreTolerance = 3e-5;  // relative

/// Why a run is not compared; empty: it is.
std::string ReasonToSkip(const Case& golden, const ReferenceRun& run) {
  if (run.method() == "adakv") return "no such method";
  static const std::set<std::string> kBuilt = {"snapkv", "pyramidkv", "streamingllm"};
  if (!kBuilt.contains(run.method())) return "left to another golden test";
  if (golden.inputs.empty()) return "budgets only: our integers differ by decision (see the line)";
  const auto& params = run.manifest.at("params");
  if (run.method() == "snapkv" && run.expected.at("budgets").at(0) == params.at("window_size")) {
    return "keeps nothing but the window, which is streaming's to do here";
  }
  if (params.value("kv_cache_granularity", "") == "kv_head" &&
      params.value("gqa_score_agg", "mean") != "mean") {
    return "a group's scores are its mean here, not their maximum or sum";
  }
  return "";
}

struct Tally {
  int runs = 0;
  int kept_heads = 0;      ///< layers x heads whose kept sets were compared
  int score_heads = 0;     ///< inputs x heads whose scores were compared
  double worst_score = 0;  ///< largest relative difference among them

  void Add(const Tally& other) {
    runs += other.runs;
    kept_heads += other.kept_heads;
    score_heads += other.score_heads;
    worst_score = std::max(worst_score, other.worst_score);
  }
  bool operator==(const Tally& other) const {
    return runs == other.runs && kept_heads == other.kept_heads && score_heads == other.score_heads;
  }
};
std::ostream& operator<<(std::ostream& out, const Tally& tally) {
  return out << tally.runs << " runs, " << tally.kept_heads << " heads' kept sets, "
             << tally.score_heads << " heads' scores";
}

/// What the manifests and the expected files hold for us to compare, counted without comparing.
std::map<std::string, Tally> CountExpected(const std::vector<Case>& cases) {
  std::map<std::string, Tally> expected;
  for (const Case& golden : cases) {
    for (const ReferenceRun& run : golden.runs) {
      if (!ReasonToSkip(golden, run).empty()) continue;
      Tally& tally = expected[run.method()];
      ++tally.runs;
      for (const auto& layer : run.expected.at("kept")) {
        tally.kept_heads += static_cast<int>(layer.size());
      }
      for (const auto& [name, tensor] : run.tensors) {
        tally.score_heads += static_cast<int>(tensor.shape.at(0));
      }
    }
  }
  return expected;
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
                const std::vector<Workspace>& workspaces)
      : backend_(backend),
        run_(run),
        workspaces_(workspaces),
        params_(run.manifest.at("params")),
        num_layers_(golden.manifest.at("num_layers").get<int>()) {}

  Tally Compare() {
    tally_.runs = 1;
    if (!run_.tensors.empty()) CompareScores();
    for (int layer = 0; layer < num_layers_; ++layer) CompareLayer(layer);
    return tally_;
  }

 private:
  const Workspace& WorkspaceOf(int layer) const { return workspaces_[layer % workspaces_.size()]; }
  int KeptByReference(int layer) const { return run_.expected.at("budgets").at(layer).get<int>(); }

  bool is_pyramid() const { return run_.method() == "pyramidkv"; }

  /// The policy text that means what the reference was asked to do in `layer`.
  std::string PolicyText(int layer) const {
    if (run_.method() == "streamingllm") return StreamingText();
    const std::string pool = params_.value("pooling", "avgpool") == "maxpool" ? "max" : "avg";
    return (is_pyramid() ? "pyramidkv" : "snapkv") +
           ("(budget=" + std::to_string(Budget(layer)) +
            ",window=" + params_.at("window_size").dump()) +
           ",kernel=" + params_.at("kernel_size").dump() + ",pool=" + pool +
           (is_pyramid() ? ",beta=" + params_.at("beta").dump() : "") + ")";
  }

  int Budget(int layer) const {
    if (!run_.is_kvpress()) return params_.at("max_capacity_prompt").get<int>();
    // kvpress rounds a share of the prompt: its own count is fed in. Its pyramid has the mean of
    // that share without the window.
    if (!is_pyramid()) return KeptByReference(layer);
    const double share = 1 - params_.at("compression_ratio").get<double>();
    return params_.at("window_size").get<int>() +
           static_cast<int>(std::lround(WorkspaceOf(layer).tokens * share));
  }

  std::string StreamingText() const {
    // KVCache-Factory's number of sinks is what its capacity leaves beside the recent window.
    const int sinks = run_.is_kvpress() ? params_.at("n_sink").get<int>()
                                        : params_.at("max_capacity_prompt").get<int>() -
                                              params_.at("window_size").get<int>();
    const int recent =
        run_.is_kvpress() ? KeptByReference(0) - sinks : params_.at("window_size").get<int>();
    return "streaming(sinks=" + std::to_string(sinks) + ",recent=" + std::to_string(recent) + ")";
  }

  /// What the policy plans for `layer` of a prompt of `tokens`.
  LayerPlan PlanLayer(int layer, int tokens) const {
    const auto policy = ParsePolicy(PolicyText(layer));
    if (!policy.ok()) throw std::runtime_error(std::string(policy.status().message()));
    const AttentionShape& shape = WorkspaceOf(layer).shape;
    const PolicyContext context{num_layers_, shape.num_q_heads, shape.num_kv_heads, shape.head_dim};
    return (*policy)->Plan(context, tokens, 1).layers.at(layer);
  }

  /// The statistic does not depend on the prompt, but only a long one needs it.
  WindowScoreStatistic StatisticOf(int layer) const {
    return std::get<WindowScoreStatistic>(PlanLayer(layer, 1 << 20).statistic);
  }

  /// A pyramid's integers differ by decision: the reference's budget is fed in.
  LayerPlan PlanLikeReference(int layer, int tokens) const {
    if (!is_pyramid()) return PlanLayer(layer, tokens);
    return PlanKeepBest({tokens, 1}, StatisticOf(layer), KeptByReference(layer));
  }

  const std::vector<std::vector<float>>& ScoresOf(int layer) {
    const size_t input = layer % workspaces_.size();
    const auto found = scores_.find(input);
    if (found != scores_.end()) return found->second;
    return scores_[input] = MeasureWindowScores(backend_, workspaces_[input], StatisticOf(layer));
  }

  void CompareScores() {
    // kvpress takes the mean over the window as we do, KVCache-Factory the sum.
    const double scale = run_.is_kvpress() ? 1 : params_.at("window_size").get<double>();
    for (size_t input = 0; input < workspaces_.size(); ++input) {
      const std::string name = "input" + std::to_string(input) + ".scores";
      const auto tensor = run_.tensors.find(name);
      if (tensor == run_.tensors.end()) continue;
      const auto& ours = ScoresOf(static_cast<int>(input));
      const int64_t width = tensor->second.shape.at(1);
      ASSERT_EQ(static_cast<size_t>(tensor->second.shape.at(0)), ours.size()) << run_.name;
      for (size_t head = 0; head < ours.size(); ++head) {
        CompareHeadScores(ours[head], &tensor->second.values[head * width], scale,
                          run_.name + " " + name + " head " + std::to_string(head));
        ++tally_.score_heads;
      }
    }
  }

  void CompareHeadScores(const std::vector<float>& ours, const float* theirs, double scale,
                         const std::string& where) {
    double worst = 0;
    size_t at = 0;
    for (size_t j = 0; j < ours.size(); ++j) {
      const double size = std::max(std::abs(double{theirs[j]}), 1e-7);
      const double difference = std::abs(ours[j] * scale - theirs[j]) / size;
      // Written so that a NaN counts as the worst.
      if (!(difference <= worst)) {
        worst = difference;
        at = j;
      }
    }
    tally_.worst_score = std::max(tally_.worst_score, worst);
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
      ++tally_.kept_heads;
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
  const nlohmann::json& params_;
  const int num_layers_;
  std::map<size_t, std::vector<std::vector<float>>> scores_;
  Tally tally_;
};

void CompareAll(AttentionBackend& backend) {
  const auto folder = FindGoldens();
  if (!folder.has_value()) GTEST_SKIP() << MissingGoldens();
  const std::vector<Case> cases = LoadCases(*folder, {"snapkv", "pyramidkv", "streamingllm"});
  std::map<std::string, Tally> compared;
  std::map<std::string, int> skipped;
  for (const Case& golden : cases) {
    CaseWorkspaces workspaces(backend, golden);
    for (const ReferenceRun& run : golden.runs) {
      const std::string reason = ReasonToSkip(golden, run);
      if (!reason.empty()) {
        ++skipped[run.method() + ": " + reason];
        continue;
      }
      const Tally tally = RunComparison(backend, golden, run, workspaces.Get(run)).Compare();
      compared[run.method()].Add(tally);
    }
  }
  std::printf("golden selection, backend %s\n", std::string(backend.name()).c_str());
  for (const auto& [method, tally] : compared) {
    std::printf("  compared %-14s %3d runs, %4d heads' kept sets", method.c_str(), tally.runs,
                tally.kept_heads);
    if (tally.score_heads > 0) {
      std::printf(", %4d heads' scores (within %.1e)", tally.score_heads, tally.worst_score);
    }
    std::printf("\n");
  }
  for (const auto& [reason, runs] : skipped) {
    std::printf("  skipped  %3d runs, %s\n", runs, reason.c_str());
  }
  EXPECT_EQ(compared, CountExpected(cases)) << "fewer were compared than the vectors hold";
  for (const char* method : {"snapkv", "pyramidkv", "streamingllm"}) {
    EXPECT_GT(compared[method].kept_heads, 0) << "no vectors of " << method;
  }
  for (const char* method : {"snapkv", "pyramidkv"}) {
    EXPECT_GT(compared[method].score_heads, 0) << "no scores of " << method;
  }
}

TEST(SelectionGolden, EveryBackendKeepsWhatThePublishedCodeKeeps) {
  for (const auto& backend : Backends()) CompareAll(*backend);
}

}  // namespace
}  // namespace ziggurat::golden

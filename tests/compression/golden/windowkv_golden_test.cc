// WindowKV's window scores and kept windows against the published code's. Our budgets differ by
// decision (they sum exactly and never exceed what was asked), so its own counts are fed in.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
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
    review = params.at("review_window_size");
    observe = params.at("suffix_size");
    group = params.at("shared_layers");
    capacity = params.at("max_capacity_prompt");
    lambda = params.at("beta").dump();
    // `max`: the mean of the best half of a window per head; `average`: of all of it.
    best = params.at("window_select_strategy") == "max" ? review / 2 : review;
  }
  std::string PolicyText() const {
    return "windowkv(budget=" + std::to_string(capacity + observe) +
           ",task=localization,review=" + std::to_string(review) +
           ",observe=" + std::to_string(observe) + ",group=" + std::to_string(group) +
           ",lambda=" + lambda + ",p=" + std::to_string(best) + ")";
  }
  bool is_allowed() const {
    return IsWithin(capacity, 1, kMostTokens - observe) && IsWithin(review, 1, 1024) &&
           IsWithin(observe, 1, 1024) && IsWithin(group, 1, 4096) &&
           IsWithin(std::stod(lambda), 1, 1e6) && IsWithin(best, 1, 1024);
  }
  int review, observe, group, capacity, best;
  std::string lambda;
};

int CountKept(const ReferenceRun& run, int layer) {
  return run.expected.at("layers").at(layer).at("n_kept");
}

/// Where the first layer of a group keeps the observed tokens only, the reference's others follow
/// the windows that a group below them has chosen.
bool FollowsAnotherGroup(const ReferenceRun& run, const Asked& asked, int layer) {
  const int leader = layer / asked.group * asked.group;
  return CountKept(run, leader) == asked.observe && CountKept(run, layer) != asked.observe;
}

/// The definition: per head the mean of the best tokens of a window, then the mean over heads.
std::vector<double> WindowScoresOf(const std::vector<std::vector<float>>& sums, int review,
                                   int best) {
  std::vector<double> scores;
  const size_t candidates = sums.front().size();
  for (size_t begin = 0; begin < candidates; begin += review) {
    double total = 0;
    for (const auto& head : sums) {
      std::vector<float> tokens(
          head.begin() + static_cast<ptrdiff_t>(begin),
          head.begin() + static_cast<ptrdiff_t>(std::min(candidates, begin + review)));
      std::sort(tokens.begin(), tokens.end(), std::greater<>());
      const size_t count = std::min<size_t>(best, tokens.size());
      double sum = 0;
      for (size_t i = 0; i < count; ++i) sum += tokens[i];
      total += sum / static_cast<double>(count);
    }
    scores.push_back(total / static_cast<double>(sums.size()));
  }
  return scores;
}

class Comparison {
 public:
  Comparison(AttentionBackend& backend, const Case& golden, const ReferenceRun& run,
             const Asked& asked, Report* report)
      : backend_(backend), golden_(golden), run_(run), asked_(asked), report_(report) {}

  void Compare() {
    const auto policy = ParsePolicy(asked_.PolicyText());
    ASSERT_TRUE(policy.ok()) << run_.name << ": " << policy.status();
    const int layers = golden_.manifest.at("num_layers");
    const PolicyContext context{layers, golden_.manifest.at("n_q_heads").get<int>(),
                                golden_.manifest.at("n_kv_heads").get<int>(),
                                golden_.manifest.at("head_dim").get<int>()};
    // Long enough that no budget holds it: what is selected does not depend on the length.
    const CachePlan plan = (*policy)->Plan(context, {1 << 30, 1});
    for (int layer = 0; layer < layers; ++layer) CompareLayer(layer, plan.layers.at(layer));
    report_->Compared("runs of " + strategy());
  }

  /// What the manifest holds for us to compare.
  void CountExpected() {
    for (int layer = 0; layer < golden_.manifest.at("num_layers").get<int>(); ++layer) {
      if (FollowsAnotherGroup(run_, asked_, layer)) {
        report_->Skipped("layers: follow windows of a group that has nothing to do with theirs");
      } else {
        report_->Expected("layers' kept windows");
      }
    }
    report_->Expected("layers' window scores", run_.tensors.size());
    report_->Expected("runs of " + strategy());
  }

 private:
  std::string strategy() const { return run_.manifest.at("params").at("window_select_strategy"); }

  void CompareLayer(int layer, const LayerPlan& plan) {
    const std::string where = run_.name + " layer " + std::to_string(layer);
    const auto& expected = run_.expected.at("layers").at(layer);
    if (const auto* follower = std::get_if<KeepAsLeader>(&plan.edit)) {
      kept_[layer] = kept_.at(follower->leader);
    } else {
      ASSERT_TRUE(std::holds_alternative<KeepWindows>(plan.edit)) << where;
      kept_[layer] = SelectOf(layer, std::get<KeepWindows>(plan.edit), where);
    }
    if (FollowsAnotherGroup(run_, asked_, layer)) return;
    EXPECT_EQ(kept_[layer], expected.at("kept_tokens").get<std::vector<int>>()) << where;
    report_->Compared("layers' kept windows");
  }

  std::vector<int> SelectOf(int layer, KeepWindows edit, const std::string& where) {
    const Workspace workspace =
        MakeWorkspace(backend_, golden_.inputs.at(layer / asked_.group), false);
    const int tokens = workspace.tokens, candidates = tokens - edit.observe;
    const auto sums =
        MeasureColumnSums(backend_, workspace, edit.observe, 0, candidates, ScoreRows::kQueryHeads);
    const auto tensor = run_.tensors.find("layer" + std::to_string(layer) + ".window_scores");
    if (tensor != run_.tensors.end()) {
      CompareScores(WindowScoresOf(sums, edit.review, edit.best), tensor->second, where);
    }
    edit.budget = CountKept(run_, layer) - edit.observe;
    std::vector<int> kept(tokens);
    for (int i = 0; i < tokens; ++i) kept[i] = i;
    if (std::holds_alternative<KeepAll>(PlanKeepWindows({tokens, 1}, edit).edit)) return kept;
    std::vector<float> flat;
    for (const auto& head : sums) flat.insert(flat.end(), head.begin(), head.end());
    std::vector<int32_t> indices(edit.budget);
    indices.resize(backend_.SelectWindows(flat.data(), static_cast<int>(sums.size()), candidates,
                                          edit.review, edit.best, edit.budget, indices.data()));
    kept.erase(kept.begin(), kept.begin() + candidates);
    kept.insert(kept.begin(), indices.begin(), indices.end());
    return kept;
  }

  void CompareScores(const std::vector<double>& ours, const Tensor& theirs,
                     const std::string& where) {
    ASSERT_EQ(ours.size(), theirs.values.size()) << where;
    for (size_t i = 0; i < ours.size(); ++i) {
      const double difference = RelativeDifference(ours[i], theirs.values[i]);
      report_->Difference("window scores", difference);
      EXPECT_LE(difference, kScoreTolerance)
          << where << " window " << i << ": " << ours[i] << " instead of " << theirs.values[i];
    }
    report_->Compared("layers' window scores");
  }

  AttentionBackend& backend_;
  const Case& golden_;
  const ReferenceRun& run_;
  const Asked& asked_;
  Report* report_;
  std::map<int, std::vector<int>> kept_;  // by layer
};

TEST(WindowKvGolden, EveryBackendKeepsTheWindowsThatThePublishedCodeKeeps) {
  const auto folder = FindGoldens();
  if (!folder.has_value()) GTEST_SKIP() << MissingGoldens();
  const std::vector<Case> cases = LoadCases(*folder, {"windowkv"});
  bool has_compared = false;
  for (const auto& backend : BackendsWith(1)) {
    Report report;
    for (const Case& golden : cases) {
      for (const ReferenceRun& run : golden.runs) {
        if (run.method() != "windowkv") continue;
        const Asked asked(run);
        if (!asked.is_allowed()) {
          report.Skipped(ReasonOfRefusal(asked.PolicyText()));
          continue;
        }
        Comparison comparison(*backend, golden, run, asked, &report);
        comparison.CountExpected();
        comparison.Compare();
      }
    }
    report.Print("windowkv, backend " + std::string(backend->name()));
    if (HasCase(cases, "windowkv_mha")) {
      report.Demand("runs of max");
      report.Demand("runs of average");
      report.Demand("layers' window scores");
    }
    has_compared = report.has_compared();
  }
  if (!has_compared) GTEST_SKIP() << NothingToCompare("windowkv");
}

}  // namespace
}  // namespace ziggurat::golden

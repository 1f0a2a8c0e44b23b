// What a policy may decide once its plan has let every layer keep all its tokens (CheckDecision).

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "compression/plan_check.h"

namespace ziggurat {
namespace {

/// Tokens that a layer comes to hold, those still to be generated among them.
int64_t TokensInTheEnd(const LayerEdit& edit, const SequenceLimits& limits) {
  if (const auto* ring = std::get_if<KeepRing>(&edit)) {
    return std::min(limits.total_tokens(), int64_t{ring->sinks} + ring->recent);
  }
  int64_t kept = limits.prompt_tokens;
  if (const auto* best = std::get_if<KeepBest>(&edit)) {
    kept = std::min(kept, int64_t{best->best} + best->recent);
  }
  return kept + limits.appended_tokens();
}

/// What is wrong with what a layer of `plan` is to become; "" where nothing is.
std::string WrongInLayer(const CachePlan& plan, const LayerPlan& planned,
                         const LayerPlan& decided) {
  if (std::string wrong = WrongNumbers(decided.edit); !wrong.empty()) return wrong;
  if (decided.lazy.has_value() || decided.merge != MergeRole::kNone) {
    return "is to be tested or merged, which only a plan may ask";
  }
  if (std::holds_alternative<KeepAll>(decided.edit)) return "";
  if (const auto* ring = std::get_if<KeepRing>(&decided.edit)) {
    if (ring->sinks <= plan.decided.most_sinks) return "";
    return absl::StrCat("has ", ring->sinks, " sinks, its plan said at most ",
                        plan.decided.most_sinks);
  }
  const auto* best = std::get_if<KeepBest>(&decided.edit);
  if (best == nullptr) return "keeps what needs statistics that are gone by then";
  const auto* scores = std::get_if<WindowScoreStatistic>(&planned.statistic);
  if (plan.decide != DecideAt::kPrompt || scores == nullptr) {
    return "keeps its best tokens, but its plan stored no scores";
  }
  if (best->recent == scores->window) return "";
  return absl::StrCat("keeps ", best->best, " + ", best->recent,
                      " tokens by scores of a window of ", scores->window);
}

}  // namespace

absl::Status CheckDecision(std::string_view policy, const CachePlan& plan,
                           const SequenceLimits& limits, absl::Span<const LayerPlan> layers) {
  const auto wrong = [&](const auto&... what) {
    return absl::InternalError(absl::StrCat(std::string(policy), " decided ", what...));
  };
  if (layers.size() != plan.layers.size()) {
    return wrong("on ", layers.size(), " layers of ", plan.layers.size());
  }
  int64_t in_the_end = 0;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    if (const std::string what = WrongInLayer(plan, plan.layers[layer], layers[layer]);
        !what.empty()) {
      return wrong("that layer ", layer, " ", what);
    }
    in_the_end += TokensInTheEnd(layers[layer].edit, limits);
  }
  const int64_t most = plan.decided.mean_tokens * static_cast<int64_t>(layers.size());
  if (in_the_end <= most) return absl::OkStatus();
  return wrong("that ", layers.size(), " layers come to hold ", in_the_end,
               " tokens, its plan said at most ", most);
}

}  // namespace ziggurat

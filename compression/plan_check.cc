#include "compression/plan_check.h"

#include <algorithm>
#include <exception>
#include <initializer_list>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "compression/pod_groups.h"

namespace ziggurat {
namespace {

/// Sums of two counts of tokens are counts, too.
constexpr int kMostTokens = std::numeric_limits<int>::max() / 2;

/// "" where the rule holds.
using Wrong = std::string;

Wrong WrongCount(std::string_view name, int64_t value, int64_t least, int64_t most = kMostTokens) {
  if (value >= least && value <= most) return "";
  return absl::StrCat("has ", std::string(name), " ", value, ", which must be from ", least, " to ",
                      most);
}

Wrong First(std::initializer_list<Wrong> wrongs) {
  for (const Wrong& wrong : wrongs) {
    if (!wrong.empty()) return wrong;
  }
  return "";
}

Wrong OfNumbers(const KeepAll& /*edit*/) { return ""; }
Wrong OfNumbers(const KeepAsLeader& /*edit*/) { return ""; }
Wrong OfNumbers(const KeepBest& edit) {
  return First(
      {WrongCount("KeepBest.best", edit.best, 0), WrongCount("KeepBest.recent", edit.recent, 1)});
}
Wrong OfNumbers(const KeepRing& edit) {
  return First(
      {WrongCount("KeepRing.sinks", edit.sinks, 0), WrongCount("KeepRing.recent", edit.recent, 1)});
}
Wrong OfNumbers(const KeepHeavy& edit) {
  return First({WrongCount("KeepHeavy.heavy", edit.heavy, 1),
                WrongCount("KeepHeavy.recent", edit.recent, 1)});
}
Wrong OfNumbers(const KeepWindows& edit) {
  return First({WrongCount("KeepWindows.observe", edit.observe, 1),
                WrongCount("KeepWindows.review", edit.review, 1),
                WrongCount("KeepWindows.best", edit.best, 1),
                WrongCount("KeepWindows.budget", edit.budget, 0)});
}

class PlanCheck {
 public:
  PlanCheck(const PolicyContext& context, const SequenceLimits& limits, const CachePlan& plan)
      : context_(context), limits_(limits), plan_(plan) {}

  Wrong OfLayer(int layer) {
    layer_ = layer;
    const LayerPlan& at = plan_.layers[layer];
    Wrong wrong = First({WrongNumbers(at.edit), OfLeader(at), OfStatistic(at), OfMerge(at)});
    if (!wrong.empty()) return wrong;
    if (at.lazy) wrong = OfLazyTest(*at.lazy);
    if (!wrong.empty()) return wrong;
    return First({OfKept(at), OfSharedKeys(at)});
  }

  Wrong OfWhole() const {
    return First({OfDecision(), OfMergeOptions(), OfQuantization(), OfDistant(), OfNeeds()});
  }

 private:
  // ---- A layer --------------------------------------------------------------------------------

  Wrong OfLeader(const LayerPlan& at) const {
    const auto* edit = std::get_if<KeepAsLeader>(&at.edit);
    if (edit == nullptr) return "";
    if (edit->leader == -1) {
      return plan_.distant ? "" : "follows the layers of a PoD group, and the plan has none";
    }
    if (edit->leader < 0 || edit->leader >= layer_) {
      return absl::StrCat("follows layer ", edit->leader, ", which must be a lower one");
    }
    const LayerEdit& leaders = plan_.layers[edit->leader].edit;
    if (!std::holds_alternative<KeepWindows>(leaders) &&
        !std::holds_alternative<KeepBest>(leaders)) {
      return absl::StrCat("follows layer ", edit->leader, ", which selects nothing");
    }
    for (int between = edit->leader + 1; between < layer_; ++between) {
      const auto* other = std::get_if<KeepAsLeader>(&plan_.layers[between].edit);
      if (other == nullptr || other->leader != edit->leader) {
        return absl::StrCat("follows layer ", edit->leader, ", and layer ", between,
                            " between them does not");
      }
    }
    return "";
  }

  Wrong OfStatistic(const LayerPlan& at) const {
    const auto* best = std::get_if<KeepBest>(&at.edit);
    const auto* scores = std::get_if<WindowScoreStatistic>(&at.statistic);
    if (scores == nullptr) {
      return best == nullptr ? "" : "keeps its best tokens, but has no WindowScoreStatistic";
    }
    if (best == nullptr &&
        !(plan_.decide == DecideAt::kPrompt && std::holds_alternative<KeepAll>(at.edit))) {
      return "has a WindowScoreStatistic, but its edit is not KeepBest, and cannot become that";
    }
    if (best != nullptr && best->recent != scores->window) {
      return absl::StrCat("keeps the last ", best->recent, " tokens by scores of a window of ",
                          scores->window, ", which must be as many");
    }
    Wrong wrong = First({WrongCount("WindowScoreStatistic.window", scores->window, 1),
                         WrongCount("WindowScoreStatistic.kernel", scores->kernel, 1)});
    if (wrong.empty() && scores->kernel % 2 == 0) {
      wrong = absl::StrCat("pools scores by a kernel of ", scores->kernel, ", which must be odd");
    }
    return wrong;
  }

  Wrong OfMerge(const LayerPlan& at) const {
    const bool is_upper = layer_ > 0 && plan_.layers[layer_ - 1].merge == MergeRole::kLower;
    const bool is_last = layer_ + 1 == static_cast<int>(plan_.layers.size());
    const bool is_its = at.merge == MergeRole::kUpper;
    if (is_upper && !is_its) return "must be the upper one of the pair that the layer below begins";
    if (is_its && !is_upper) {
      return "is the upper one of a pair, and the layer below is not its lower";
    }
    if (at.merge == MergeRole::kLower && is_last) {
      return "is the lower one of a pair, and there is no layer above it";
    }
    if (at.merge == MergeRole::kNone) return "";
    if (!plan_.merge) return "is merged, but CachePlan::merge does not say how";
    if (at.lazy) return "is merged, and may be lazy: the other layer of its pair needs its tokens";
    if (plan_.distant) return "is merged, and may be of a PoD group: keys are shared in one way";
    return std::holds_alternative<KeepAll>(at.edit)
               ? ""
               : "is merged, and must keep all tokens: they are those of its pair";
  }

  Wrong OfLazyTest(const LazyTest& test) const {
    if (plan_.decide != DecideAt::kLayer) return "may be lazy, and is decided on later, too";
    if (plan_.distant) return "may be lazy, but layers above it may need its distant keys";
    if (Holds<KeepHeavy>()) return "may be lazy, but its tokens collect scores";
    return OfTest(test);
  }
  static Wrong OfTest(const LazyTest& test) {
    return First({WrongCount("LazyTest.sinks", test.sinks, 0),
                  WrongCount("LazyTest.recent", test.recent, 1),
                  WrongCount("LazyTest.last", test.last, 1)});
  }

  /// Tokens of the prompt that the edit keeps.
  int64_t Kept(const LayerPlan& at) const {
    const int64_t prompt = limits_.prompt_tokens;
    return std::visit(
        [&](const auto& edit) -> int64_t {
          using Edit = std::decay_t<decltype(edit)>;
          if constexpr (std::is_same_v<Edit, KeepAll>) {
            return prompt;
          } else if constexpr (std::is_same_v<Edit, KeepBest>) {
            return int64_t{edit.best} + edit.recent;
          } else if constexpr (std::is_same_v<Edit, KeepRing>) {
            return std::min(prompt, int64_t{edit.sinks} + edit.recent);
          } else if constexpr (std::is_same_v<Edit, KeepHeavy>) {
            return std::min(prompt, int64_t{edit.heavy} + edit.recent);
          } else if constexpr (std::is_same_v<Edit, KeepWindows>) {
            return int64_t{edit.observe} + edit.budget;
          } else {
            static_assert(std::is_same_v<Edit, KeepAsLeader>);
            const int leader = edit.leader == -1
                                   ? plan_.distant->groups->Followed(layer_).value_or(layer_)
                                   : edit.leader;
            return static_cast<int64_t>(plan_.layers[leader].prompt_tokens_kept);
          }
        },
        at.edit);
  }

  Wrong OfKept(const LayerPlan& at) const {
    const int64_t kept = Kept(at);
    const int64_t prompt = limits_.prompt_tokens;
    if (kept > prompt) {
      return absl::StrCat("selects ", kept, " tokens of a prompt of ", prompt,
                          "; a layer that keeps it all is KeepAll");
    }
    const auto says = static_cast<int64_t>(at.prompt_tokens_kept);
    if (says >= kept && says <= prompt) return "";
    return absl::StrCat("keeps up to ", kept, " of ", prompt,
                        " tokens, and its prompt_tokens_kept says ", says);
  }

  // ---- PoD ------------------------------------------------------------------------------------

  Wrong OfSharedKeys(const LayerPlan& at) const {
    if (!plan_.distant) return "";
    if (Holds<KeepRing>() || Holds<KeepHeavy>() || Holds<KeepWindows>()) {
      return "overwrites tokens or keeps windows, and may be of a PoD group";
    }
    const auto* follower = std::get_if<KeepAsLeader>(&at.edit);
    if (follower != nullptr && follower->leader != -1) {
      return "follows a layer of its own choice, and may be of a PoD group";
    }
    for (int head = 0; head < context_.num_kv_heads; ++head) {
      const int lowest = plan_.distant->groups->Lowest(layer_, head);
      if (follower != nullptr && lowest == layer_) {
        return absl::StrCat("follows others, and leads the PoD group of KV head ", head);
      }
      const size_t of_lowest = plan_.layers[lowest].prompt_tokens_kept;
      if (of_lowest != at.prompt_tokens_kept) {
        return absl::StrCat("keeps ", at.prompt_tokens_kept, " tokens, and layer ", lowest,
                            " of its PoD group ", of_lowest);
      }
    }
    return "";
  }

  Wrong OfDistant() const {
    if (!plan_.distant) return "";
    return First({WrongCount("DistantOptions.sinks", plan_.distant->sinks, 0),
                  WrongCount("DistantOptions.recent", plan_.distant->recent, 1)});
  }

  // ---- The plan as a whole --------------------------------------------------------------------

  Wrong OfDecision() const {
    const bool is_later = plan_.decide != DecideAt::kLayer;
    const LayerImportance importance = plan_.importance;
    if (is_later != (importance != LayerImportance::kNone)) {
      return is_later ? "to decide later, but by no importance"
                      : "for an importance to be measured, but to decide on nothing later";
    }
    if (!is_later) return "";
    if (plan_.distant) return "to decide later, but PoD groups attend by shared keys before that";
    if ((importance == LayerImportance::kLazyMass) != (plan_.decide == DecideAt::kFirstToken)) {
      return "for the lazy mass without the first token, or for another importance with it: that "
             "token has the one alone";
    }
    if (importance == LayerImportance::kLazyMass) {
      if (Wrong wrong = OfTest(plan_.first_token_test); !wrong.empty()) {
        return absl::StrCat("a first_token_test that ", wrong);
      }
    }
    const bool is_by_scores =
        importance == LayerImportance::kEntropy || importance == LayerImportance::kGini;
    for (size_t i = 0; i < plan_.layers.size(); ++i) {
      const LayerPlan& at = plan_.layers[i];
      if (!std::holds_alternative<KeepAll>(at.edit) || at.merge != MergeRole::kNone) {
        return absl::StrCat("to decide later, but layer ", i,
                            " does not keep all its tokens until then");
      }
      if (is_by_scores && !std::holds_alternative<WindowScoreStatistic>(at.statistic)) {
        return absl::StrCat("to decide by window scores, but layer ", i,
                            " has no WindowScoreStatistic");
      }
    }
    const Wrong wrong =
        First({WrongCount("DecisionBounds.mean_tokens", plan_.decided.mean_tokens, 1),
               WrongCount("DecisionBounds.most_sinks", plan_.decided.most_sinks, 0)});
    return wrong.empty() ? "" : absl::StrCat("a later decision that ", wrong);
  }

  Wrong OfMergeOptions() const {
    if (!plan_.merge) return "";
    const MergeOptions& merge = *plan_.merge;
    if (!(merge.t >= 0 && merge.t <= 1) || !(merge.retain >= 0 && merge.retain <= 1)) {
      return absl::StrCat("to merge at t = ", merge.t, " and to retain ", merge.retain,
                          ", which must be from 0 to 1");
    }
    if (merge.tail >= 1 && merge.tail <= MergeOptions::kLongestTail) return "";
    return absl::StrCat("to merge behind a tail of ", merge.tail,
                        " tokens, which must be from 1 to ", MergeOptions::kLongestTail);
  }

  Wrong OfQuantization() const {
    if (!plan_.StoresGroups()) return "";
    if (Wrong wrong = First({WrongCount("Quantization.group", plan_.quantization->group, 1,
                                        Quantization::kLargestGroup),
                             WrongCount("Quantization.residual", plan_.quantization->residual, 0)});
        !wrong.empty()) {
      return absl::StrCat("a quantization that ", wrong);
    }
    const bool overwrites =
        std::any_of(plan_.layers.begin(), plan_.layers.end(),
                    [](const LayerPlan& at) { return std::holds_alternative<KeepHeavy>(at.edit); });
    return overwrites ? "codes in groups of tokens, of which KeepHeavy overwrites single ones" : "";
  }

  /// What its layers need comes on top (RaiseNeeds).
  Wrong OfNeeds() const {
    const PrefillNeeds& needs = plan_.needs;
    if (needs.group_qk && !plan_.distant) {
      return "a prefill with PrefillNeeds.group_qk, and has no PoD groups";
    }
    if (needs.score_heads != 0 && needs.score_heads != context_.num_kv_heads &&
        needs.score_heads != context_.num_q_heads) {
      return absl::StrCat("a prefill with PrefillNeeds.score_heads ", needs.score_heads,
                          ", which must be 0 or as many as KV heads (", context_.num_kv_heads,
                          ") or query heads (", context_.num_q_heads, ")");
    }
    const Wrong wrong = First({WrongCount("PrefillNeeds.window_rows", needs.window_rows, -1),
                               WrongCount("PrefillNeeds.stored_score_layers",
                                          needs.stored_score_layers, 0, context_.num_layers)});
    return wrong.empty() ? "" : absl::StrCat("a prefill that ", wrong);
  }

  template <typename Edit>
  bool Holds() const {
    return std::holds_alternative<Edit>(plan_.layers[layer_].edit);
  }

  const PolicyContext& context_;
  const SequenceLimits& limits_;
  const CachePlan& plan_;
  int layer_ = 0;
};

template <typename Ask>
auto Guarded(const Policy& policy, std::string_view verb, const Ask& ask)
    -> absl::StatusOr<decltype(ask())> {
  const auto threw = [&](std::string_view what) {
    return absl::InternalError(absl::StrCat(std::string(policy.name()),
                                            " threw an exception when it ", std::string(verb), ": ",
                                            std::string(what)));
  };
  try {
    return ask();
  } catch (const std::exception& error) {
    return threw(error.what());
  } catch (...) {
    return threw("one that says nothing");
  }
}

}  // namespace

std::string WrongNumbers(const LayerEdit& edit) {
  return std::visit([](const auto& its) { return OfNumbers(its); }, edit);
}

absl::Status CheckPlan(std::string_view policy, const PolicyContext& context,
                       const SequenceLimits& limits, const CachePlan& plan) {
  const auto wrong = [&](const auto&... what) {
    return absl::InternalError(absl::StrCat(std::string(policy), " planned ", what...));
  };
  if (plan.layers.size() != static_cast<size_t>(context.num_layers)) {
    return wrong(plan.layers.size(), " layers for a model of ", context.num_layers);
  }
  if (plan.distant &&
      (plan.distant->groups == nullptr || plan.distant->groups->num_layers != context.num_layers ||
       plan.distant->groups->num_kv_heads != context.num_kv_heads)) {
    return wrong("PoD groups of another model, or none");
  }
  PlanCheck check(context, limits, plan);
  for (int layer = 0; layer < context.num_layers; ++layer) {
    if (const Wrong what = check.OfLayer(layer); !what.empty()) {
      return wrong("that layer ", layer, " ", what);
    }
  }
  const Wrong what = check.OfWhole();
  return what.empty() ? absl::OkStatus() : wrong(what);
}

absl::Status AskWhetherItSuits(const Policy& policy, const PolicyContext& context) {
  const absl::StatusOr<absl::Status> suits =
      Guarded(policy, "looked at the model", [&] { return policy.Check(context); });
  return suits.ok() ? *suits : suits.status();
}

absl::StatusOr<std::shared_ptr<const Policy>> AskForPrompt(const Policy& policy,
                                                           std::string_view text) {
  return Guarded(policy, "looked at the prompt", [&] { return policy.ForPrompt(text); });
}

absl::StatusOr<CachePlan> AskForPlan(const Policy& policy, const PolicyContext& context,
                                     const SequenceLimits& limits) {
  absl::StatusOr<CachePlan> plan =
      Guarded(policy, "planned", [&] { return policy.Plan(context, limits); });
  if (!plan.ok()) return plan.status();
  absl::Status status = CheckPlan(policy.name(), context, limits, *plan);
  if (!status.ok()) return status;
  RaiseNeeds(context, limits, &*plan);
  return plan;
}

absl::StatusOr<std::vector<LayerPlan>> AskForDecision(const Policy& policy,
                                                      const PolicyContext& context,
                                                      const CachePlan& plan,
                                                      const SequenceLimits& limits,
                                                      absl::Span<const double> importance) {
  absl::StatusOr<std::vector<LayerPlan>> layers =
      Guarded(policy, "decided", [&] { return policy.Decide(context, limits, importance); });
  if (!layers.ok()) return layers.status();
  absl::Status status = CheckDecision(policy.name(), plan, limits, *layers);
  if (!status.ok()) return status;
  return layers;
}

}  // namespace ziggurat

#include "compression/composition.h"

#include <algorithm>
#include <string>
#include <utility>

#include "compression/layer_plan.h"

namespace ziggurat {
namespace {

using Terms = std::vector<std::shared_ptr<const DescribedPolicy>>;

int CanonicalRank(const DescribedPolicy& policy) {
  if ((policy.traits() & kQuantizes) != 0) return 2;
  return (policy.traits() & kDropsTokens) != 0 ? 1 : 0;
}

class ComposedPolicy final : public Policy {
 public:
  /// `terms` in canonical order.
  explicit ComposedPolicy(Terms terms) : terms_(std::move(terms)) {
    for (const auto& term : terms_) {
      const char* separator = name_.empty() ? "" : "+";
      name_.append(separator).append(term->name());
      text_.append(separator).append(term->ToString());
      if ((term->traits() & (kDecidesAfterPrompt | kDecidesAfterToken)) != 0) decider_ = term.get();
    }
  }

  std::string ToString() const override { return text_; }
  std::string_view name() const override { return name_; }

  absl::Status Check(const PolicyContext& context) const override {
    for (const auto& term : terms_) {
      if (absl::Status status = term->Check(context); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  CachePlan Plan(const PolicyContext& context, const SequenceLimits& limits) const override {
    CachePlan plan = PlanFull(context, limits);
    // What shares layers asks how tokens are stored, and which are kept.
    for (auto term = terms_.rbegin(); term != terms_.rend(); ++term) {
      (*term)->Apply(context, limits, &plan);
    }
    return plan;
  }

  std::vector<LayerPlan> Decide(const PolicyContext& context, const SequenceLimits& limits,
                                absl::Span<const double> importance) const override {
    if (decider_ == nullptr) return {};
    return decider_->Decide(context, limits, importance);
  }

  bool wants_prompt_text() const override {
    return std::any_of(terms_.begin(), terms_.end(),
                       [](const auto& term) { return term->wants_prompt_text(); });
  }

  std::shared_ptr<const Policy> ForPrompt(std::string_view text) const override {
    Terms terms = terms_;
    bool changed = false;
    for (auto& term : terms) {
      if (auto resolved = term->Resolve(text)) {
        term = std::move(resolved);
        changed = true;
      }
    }
    return changed ? std::make_shared<ComposedPolicy>(std::move(terms)) : nullptr;
  }

 private:
  Terms terms_;
  std::string name_;
  std::string text_;
  const DescribedPolicy* decider_ = nullptr;  ///< that must see all layers first
};

}  // namespace

std::shared_ptr<const Policy> ComposePolicies(Terms policies) {
  if (policies.size() == 1) return policies.front();
  std::stable_sort(policies.begin(), policies.end(), [](const auto& a, const auto& b) {
    return CanonicalRank(*a) < CanonicalRank(*b);
  });
  return std::make_shared<ComposedPolicy>(std::move(policies));
}

}  // namespace ziggurat

#include "compression/composition_rules.h"

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace ziggurat {
namespace {

/// What is said of two policies, one of which has all of `one` and the other all of `other`. In the
/// reason {0} is the name of the one, {1} of the other.
struct Rule {
  PolicyTraits one;
  PolicyTraits other;
  std::string_view reason;  ///< empty: they compose
};

/// The first rule that fits speaks; where none does the two compose.
constexpr Rule kRules[] = {
    {kDropsTokens, kDropsTokens, "both decide which tokens every layer keeps, and only one can"},

    // ---- How tokens are stored.
    {kQuantizes, kQuantizes, "both decide how tokens are stored, and only one can"},
    {kQuantizesGroups, kOverwritesAny,
     "{1} overwrites one token at a time, and {0} stores tokens in groups of which no single slot "
     "can be overwritten; {1}+int8 and {1}+fp8 work"},
    {kQuantizes, 0, ""},

    // ---- Pairs of layers that store one direction.
    {kMergesLayers, kOverwritesRing,
     "{0} stores merged tokens apart from those that it retains, so a ring of {1} has no oldest "
     "slot to overwrite"},
    {kMergesLayers, kGroupsOfLayers,
     "{1} drops tokens by groups of layers, which need not hold both layers of a pair of {0}"},
    {kMergesLayers, kDropsTokens,
     "{0} stores a token once for both layers of a pair, and {1} keeps other tokens in each"},
    {kMergesLayers, kFindsLazyLayers,
     "a lazy layer drops tokens that {0} stores for the other layer of its pair too"},
    {kMergesLayers, kSharesKeys,
     "both let layers share keys, {0} those of pairs and {1} those of groups, and a key can be "
     "stored only one way"},

    // ---- Groups of layers that hold distant keys once.
    {kSharesKeys, kFindsLazyLayers,
     "a lazy layer drops distant keys that the layers above it in a group of {0} attend with"},
    {kSharesKeys, kOverwritesAny,
     "{1} evicts other tokens in every layer while decoding, and the layers of a group of {0} must "
     "hold the same"},
    {kSharesKeys, kDecidesAfterPrompt,
     "{0} drops distant keys layer by layer, and {1} decides only after the last layer"},
    {kSharesKeys, kOverwritesRing,
     "{1} overwrites tokens in place, and {0} moves a token to another segment once it is distant"},
    {kSharesKeys, kGroupsOfLayers,
     "{1} has groups of layers of its own, and a layer cannot keep what two others keep"},
    {kSharesKeys | kGroupsOfHeads, kBudgetsOfLayers,
     "the layers of a group of {0} keep the same tokens, {1} gives every layer a budget of its "
     "own, "
     "and these groups differ between heads"},

    // ---- Layers that a test finds lazy.
    {kDecidesAfterToken, kDecidesAfterPrompt,
     "{1} decides after the prompt and {0} after the first generated token, and a layer's tokens "
     "can be decided once"},
    {kFindsLazyLayers, kDecidesAfterPrompt,
     "{0} trims a lazy layer at once, and {1} needs every layer whole until the last one"},
    {kDecidesAfterToken, kReadsPrompt,
     "{1} selects by the attention of the prompt, which is gone when {0} decides at the first "
     "generated token; use decide=prefill"},
    {kDecidesAfterToken, kDropsTokens,
     "{0} needs every layer whole until the first generated token; use decide=prefill"},
    {kFindsLazyLayers, kOverwritesAny,
     "{1} gives every token a score from the prompt on, and the ring of a lazy layer has none"},

    // ---- What a plan says once.
    {kFindsLazyLayers, kFindsLazyLayers, "both test layers for laziness, and a layer has one test"},
    {kMergesLayers, kMergesLayers, "both merge layers, and a layer can be of one pair"},
    {kSharesKeys, kSharesKeys, "both let layers share keys, and a layer can be of one group"},
};

bool HasAll(const DescribedPolicy& policy, PolicyTraits traits) {
  return (policy.traits() & traits) == traits;
}

/// The reason against the pair; empty: they compose.
std::string FindReason(const DescribedPolicy& first, const DescribedPolicy& second) {
  const auto format = [](const Rule& rule, const Policy& one, const Policy& other) {
    return fmt::format(fmt::runtime(rule.reason), one.name(), other.name());
  };
  for (const Rule& rule : kRules) {
    if (HasAll(first, rule.one) && HasAll(second, rule.other)) return format(rule, first, second);
    if (HasAll(second, rule.one) && HasAll(first, rule.other)) return format(rule, second, first);
  }
  return "";
}

}  // namespace

absl::Status CheckComposable(const DescribedPolicy& first, const DescribedPolicy& second) {
  const std::string pair = fmt::format("{}+{}", first.name(), second.name());
  if (first.name() == second.name()) {
    return absl::InvalidArgumentError(pair + " names the same policy twice");
  }
  if (HasAll(first, kAddsNothing) || HasAll(second, kAddsNothing)) {
    const Policy& other = HasAll(first, kAddsNothing) ? second : first;
    return absl::InvalidArgumentError(fmt::format(
        "{0} is the same as {1}, since full adds nothing: write {1} alone", pair, other.name()));
  }
  const std::string reason = FindReason(first, second);
  if (reason.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format("{} cannot be composed: {}", pair, reason));
}

}  // namespace ziggurat

// What policies do to a cache, as far as it decides which of them compose
// (compression/composition_rules.cc).
#pragma once

#include <cstdint>

namespace ziggurat {

enum PolicyTrait : uint32_t {
  kNoTrait = 0,
  kAddsNothing = 1U << 0,         ///< full
  kDropsTokens = 1U << 1,         ///< decides which tokens every layer keeps
  kReadsPrompt = 1U << 2,         ///< by the attention of the prompt's queries
  kOverwritesRing = 1U << 3,      ///< the newest token takes the place of the oldest
  kOverwritesAny = 1U << 4,       ///< the newest token takes the place of any other (H2O)
  kBudgetsOfLayers = 1U << 5,     ///< layers keep different numbers of tokens
  kGroupsOfLayers = 1U << 6,      ///< layers keep what a lower layer kept
  kDecidesAfterPrompt = 1U << 7,  ///< DecideAt::kPrompt
  kDecidesAfterToken = 1U << 8,   ///< DecideAt::kFirstToken
  kFindsLazyLayers = 1U << 9,     ///< trims layers that a test finds lazy
  kMergesLayers = 1U << 10,       ///< pairs of layers store one direction
  kSharesKeys = 1U << 11,         ///< groups of layers hold distant keys once
  kGroupsOfHeads = 1U << 12,      ///< and the groups differ between heads
  kQuantizes = 1U << 13,          ///< stores codes
  kQuantizesGroups = 1U << 14,    ///< of several tokens at a time
};

/// PolicyTrait, or-ed.
using PolicyTraits = uint32_t;

}  // namespace ziggurat

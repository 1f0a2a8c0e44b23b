// What a scheduler orders of a backend, and hears of it, without knowing its kernels: where a token
// goes, and what moves or merges between segments.
#pragma once

#include <cstdint>

#include "block_manager/segment_view.h"

namespace ziggurat {

/// Where a new token goes. The targets of an item cover every KV head once.
struct TokenTarget {
  /// In a scored segment that is full: each head overwrites its slot with the lowest score among
  /// those whose position is at most the new token's less `DecodeItem::score_recent` (the lowest
  /// slot of equal ones).
  static constexpr int kLowestScore = -1;

  int segment = 0;
  int slot = 0;

  /// Where tokens that go one slot on in every step go `steps` later.
  TokenTarget After(int steps) const {
    return {segment, slot == kLowestScore ? slot : slot + steps};
  }
};

/// Tokens in slots [first, first + count) of `from` go to `to` from slot `first_slot` on.
struct TokenCopy {
  const SegmentView* from = nullptr;
  int first = 0;
  int count = 0;
  const SegmentView* to = nullptr;
  int first_slot = 0;
};

/// Tokens in slots [0, count) of the tails of two layers of a pair, which cover all KV heads. In
/// each head the `retained` of the largest angle between the keys of the two layers go to a segment
/// of each layer as they are, the others to the merged segment, both in the order in which they
/// stood.
struct TailMerge {
  const SegmentView* lower_tail = nullptr;
  const SegmentView* upper_tail = nullptr;
  int count = 0;
  int retained = 0;
  double t = 0;
  const SegmentView* lower_merged = nullptr;  ///< one segment, as either layer sees it
  const SegmentView* upper_merged = nullptr;
  int first_merged_slot = 0;
  const SegmentView* lower_retained = nullptr;
  const SegmentView* upper_retained = nullptr;
  int first_retained_slot = 0;

  int merged() const { return count - retained; }
};

/// What of the distant attention of PoD was done and what left out; one attention is that of one
/// query token's heads of one KV head to the distant tokens of one layer.
struct DistantCounts {
  uint64_t attended = 0;
  uint64_t skipped = 0;
};

}  // namespace ziggurat

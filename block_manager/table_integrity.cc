// The proof that the blocks, slots, cursors and views of a layer's table agree.
#include "absl/strings/str_cat.h"
#include "block_manager/layer_block_table.h"

namespace ziggurat {
namespace {

absl::Status CheckInUse(const BlockPool& pool, const std::vector<BlockId>& blocks) {
  for (const BlockId id : blocks) {
    if (id >= pool.num_blocks() || pool.reference_count(id) == 0) {
      return absl::InternalError(absl::StrCat("names block ", id, ", which is not in use"));
    }
  }
  return absl::OkStatus();
}

/// The view of a plane that a segment has, over `blocks`, of at least `num_slots` slots.
absl::Status CheckPlane(const char* name, const PlaneView& plane,
                        const std::vector<BlockId>& blocks, size_t num_slots) {
  if (plane.blocks != blocks.data() || plane.slots_per_block == 0) {
    return absl::InternalError(absl::StrCat("the view does not show the blocks of its ", name));
  }
  if (const size_t slots = blocks.size() * plane.slots_per_block; slots < num_slots) {
    return absl::InternalError(absl::StrCat("the view shows ", num_slots, " slots, but blocks for ",
                                            slots, " of its ", name));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status LayerBlockTable::CheckIntegrity() const {
  if (segments_.size() != views_.size()) {
    return absl::InternalError(
        absl::StrCat(segments_.size(), " segments but ", views_.size(), " views"));
  }
  if (owned_blocks_ != CountOwnedBlocks()) {
    return absl::InternalError(
        absl::StrCat("counts ", owned_blocks_, " blocks of its own, holds ", CountOwnedBlocks()));
  }
  for (int i = 0; i < num_segments(); ++i) {
    if (absl::Status status = CheckSegment(i); !status.ok()) {
      return absl::InternalError(absl::StrCat("segment ", i, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

absl::Status LayerBlockTable::CheckSegment(int segment) const {
  const Segment& s = segments_[segment];
  const SegmentView& view = views_[segment];
  const PlaneList list = PlanesOfSegment(s);
  const auto num_slots = static_cast<size_t>(view.num_slots);

  for (int p = 0; p < kMaxPlanes; ++p) {
    const auto blocks_for = [&](size_t slots) {
      return p < list.count ? list.planes[p].BlocksFor(geometry_->block_bytes, slots) : 0;
    };
    const size_t expected = blocks_for(num_slots);
    // The block of the next slot may have been taken ahead, where there will be one.
    if (s.planes[p].size() != expected &&
        (IsFullRing(segment) || s.planes[p].size() != blocks_for(num_slots + 1))) {
      return absl::InternalError(absl::StrCat("plane ", p, " has ", s.planes[p].size(),
                                              " blocks for ", num_slots, " slots, not ", expected));
    }
    if (absl::Status status = CheckInUse(*pool_, s.planes[p]); !status.ok()) {
      return status;
    }
  }
  for (const std::vector<BlockId>* borrowed : {&s.borrowed_keys, &s.borrowed_scales}) {
    if (absl::Status status = CheckInUse(*pool_, *borrowed); !status.ok()) return status;
  }

  const CacheFormat& format = s.options.format;
  const bool values_only = s.borrows_keys();
  if (view.first_kv_head != s.options.first_kv_head ||
      view.num_kv_heads != s.options.num_kv_heads || view.encoding != format.encoding ||
      view.group != format.group || (view.use == SegmentUse::kBorrowedKeys) != values_only) {
    return absl::InternalError("the view does not show the segment");
  }
  if (absl::Status status = CheckPlanes(segment); !status.ok()) return status;
  if (values_only && s.borrowed_slots < view.num_slots) {
    return absl::InternalError(
        absl::StrCat(num_slots, " slots of values for ", s.borrowed_slots, " keys"));
  }
  if (!values_only && (!s.borrowed_keys.empty() || !s.borrowed_scales.empty())) {
    return absl::InternalError("borrows keys but stores its own");
  }
  return CheckCursor(segment);
}

absl::Status LayerBlockTable::CheckPlanes(int segment) const {
  const Segment& s = segments_[segment];
  const SegmentView& view = views_[segment];
  const PlaneList list = PlanesOfSegment(s);
  const auto num_slots = static_cast<size_t>(view.num_slots);
  const bool borrows = s.borrows_keys();
  static const std::vector<BlockId> kNone;
  const auto blocks_of = [&](PlaneRole role) -> const std::vector<BlockId>& {
    const int p = list.Find(role);
    return p < 0 ? kNone : s.planes[p];
  };
  const std::vector<BlockId>& codes = blocks_of(PlaneRole::kCodes);
  const std::vector<BlockId>& scales = blocks_of(PlaneRole::kScales);
  const struct {
    const char* name;
    const PlaneView& plane;
    PlaneRole role;
    const std::vector<BlockId>& blocks;
  } planes[] = {
      {"keys", view.keys, PlaneRole::kCodes, borrows ? s.borrowed_keys : codes},
      {"values", view.values, PlaneRole::kCodes, codes},
      {"key scales", view.key_scales, PlaneRole::kScales, borrows ? s.borrowed_scales : scales},
      {"value scales", view.value_scales, PlaneRole::kScales, scales},
      {"key norms", view.key_norms, PlaneRole::kNorms, blocks_of(PlaneRole::kNorms)},
      {"value norms", view.value_norms, PlaneRole::kNorms, blocks_of(PlaneRole::kNorms)},
      {"scores", view.scores, PlaneRole::kScores, blocks_of(PlaneRole::kScores)},
      {"positions", view.positions, PlaneRole::kScores, blocks_of(PlaneRole::kScores)},
  };
  for (const auto& [name, plane, role, blocks] : planes) {
    if (list.Find(role) < 0) {
      if (plane.blocks == nullptr && plane.slots_per_block == 0) continue;
      return absl::InternalError(
          absl::StrCat("the view shows ", name, ", of which there are none"));
    }
    absl::Status status = CheckPlane(name, plane, blocks, num_slots);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status LayerBlockTable::CheckCursor(int segment) const {
  const Segment& s = segments_[segment];
  const int num_slots = views_[segment].num_slots;
  if (s.options.ring && num_slots > s.options.ring->slots()) {
    return absl::InternalError(
        absl::StrCat(num_slots, " slots in a ring of ", s.options.ring->slots()));
  }
  // A full ring's cursor runs from the slot behind the sinks to the end; everyone else's is the
  // end.
  const int lowest = IsFullRing(segment) ? s.options.ring->sinks + 1 : num_slots;
  if (s.next_slot < lowest || s.next_slot > num_slots) {
    return absl::InternalError(
        absl::StrCat("next slot ", s.next_slot, " is not in [", lowest, ", ", num_slots, "]"));
  }
  if (s.grows_plainly != s.IsPlain()) {
    return absl::InternalError(
        absl::StrCat("grows_plainly is ", s.grows_plainly, ", but IsPlain() ", s.IsPlain()));
  }
  // Past the blocks AppendSlot would hand out a slot without memory.
  if (const int limit = AppendLimitOf(s); s.append_limit != limit || s.next_slot > limit) {
    return absl::InternalError(absl::StrCat("next slot ", s.next_slot, " with the limit at ",
                                            s.append_limit, ", which should be ", limit));
  }
  return absl::OkStatus();
}

}  // namespace ziggurat

// The proof that the blocks, slots, cursors and views of a layer's table agree.
#include "absl/strings/str_cat.h"
#include "block_manager/sequence_cache.h"

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

size_t SlotsOf(const PlaneView& plane, const std::vector<BlockId>& blocks) {
  return blocks.size() * plane.slots_per_block;
}

}  // namespace

absl::Status LayerBlockTable::CheckIntegrity() const {
  if (segments_.size() != views_.size()) {
    return absl::InternalError(
        absl::StrCat(segments_.size(), " segments but ", views_.size(), " views"));
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
    const size_t expected =
        p < list.count ? list.planes[p].BlocksFor(geometry_->block_bytes, num_slots) : 0;
    if (s.planes[p].size() != expected) {
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

  const bool values_only = s.options.format.values_only;
  const std::vector<BlockId>& keys = values_only ? s.borrowed_keys : s.planes[0];
  if (view.keys.blocks != keys.data() || view.values.blocks != s.planes[0].data() ||
      view.first_kv_head != s.options.first_kv_head ||
      view.num_kv_heads != s.options.num_kv_heads || view.encoding != s.options.format.encoding ||
      view.group != s.options.format.group) {
    return absl::InternalError("the view does not show the segment");
  }
  if (SlotsOf(view.keys, keys) < num_slots || SlotsOf(view.values, s.planes[0]) < num_slots) {
    return absl::InternalError(absl::StrCat("the view shows ", num_slots, " slots, but blocks for ",
                                            SlotsOf(view.keys, keys), " keys and ",
                                            SlotsOf(view.values, s.planes[0]), " values"));
  }
  if (values_only && s.borrowed_slots < view.num_slots) {
    return absl::InternalError(
        absl::StrCat(num_slots, " slots of values for ", s.borrowed_slots, " keys"));
  }
  if (!values_only && (!s.borrowed_keys.empty() || !s.borrowed_scales.empty())) {
    return absl::InternalError("borrows keys but stores its own");
  }
  return CheckCursor(segment);
}

absl::Status LayerBlockTable::CheckCursor(int segment) const {
  const Segment& s = segments_[segment];
  const int num_slots = views_[segment].num_slots;
  const bool is_full_ring = s.options.ring && num_slots == s.options.ring->slots();
  if (s.options.ring && num_slots > s.options.ring->slots()) {
    return absl::InternalError(
        absl::StrCat(num_slots, " slots in a ring of ", s.options.ring->slots()));
  }
  // A full ring's cursor runs from the slot behind the sinks to the end; everyone else's is the
  // end.
  const int lowest = is_full_ring ? s.options.ring->sinks + 1 : num_slots;
  if (s.next_slot < lowest || s.next_slot > num_slots) {
    return absl::InternalError(
        absl::StrCat("next slot ", s.next_slot, " is not in [", lowest, ", ", num_slots, "]"));
  }
  if (s.next_slot > s.append_limit) {
    return absl::InternalError(
        absl::StrCat("next slot ", s.next_slot, " lies past the limit ", s.append_limit));
  }
  return absl::OkStatus();
}

}  // namespace ziggurat

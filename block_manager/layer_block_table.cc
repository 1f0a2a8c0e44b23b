// How the segments of one layer grow, wrap, are shared and are given back.
#include "block_manager/layer_block_table.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "block_manager/check.h"
#include "block_manager/segment_layout.h"

namespace ziggurat {

LayerBlockTable::LayerBlockTable(LayerBlockTable&& other) noexcept
    : pool_(other.pool_),
      geometry_(other.geometry_),
      owned_blocks_(std::exchange(other.owned_blocks_, 0)),
      segments_(std::move(other.segments_)),
      views_(std::move(other.views_)) {
  // The blocks are ours now: `other` must not release them again.
  other.segments_.clear();
  other.views_.clear();
}

SegmentOptions LayerBlockTable::Normalized(SegmentOptions options) const {
  const int all_heads = geometry_->num_kv_heads;
  if (options.num_kv_heads == 0) {
    CheckThat(options.first_kv_head == 0, "a segment of all heads starts at head 0");
    options.num_kv_heads = all_heads;
  }
  CheckThat(options.first_kv_head >= 0 && options.num_kv_heads > 0 &&
                options.num_kv_heads <= all_heads - options.first_kv_head,
            "a segment covers KV heads of the model");
  CheckThat(geometry_->CheckFormat(options.format).ok(), "the format suits the geometry");
  CheckThat(!options.ring || (options.ring->sinks >= 0 && options.ring->recent >= 1),
            "a ring has at least one recent slot");
  CheckThat(!options.ring || !IsGrouped(options.format.encoding),
            "a ring overwrites slots one by one, groups are written as a whole");
  return options;
}

int LayerBlockTable::PushSegment(Segment segment, SegmentView view) {
  const PlaneList list = PlanesOfSegment(segment);
  segment.num_planes = list.count;
  for (int p = 0; p < list.count; ++p) {
    const PlaneSpec& plane = list.planes[p];
    segment.slots_per_block[p] = static_cast<uint32_t>(plane.SlotsPerBlock(geometry_->block_bytes));
  }
  segment.grows_plainly = segment.IsPlain();
  segments_.push_back(std::move(segment));
  views_.push_back(view);
  const int index = num_segments() - 1;
  SetAppendLimit(index);
  RefreshViewPointers(index);
  return index;
}

int LayerBlockTable::AddSegment(const SegmentOptions& options) {
  CheckThat(!options.format.values_only, "a values-only segment needs keys: AddValuesSegment");
  Segment segment;
  segment.options = Normalized(options);
  const SegmentView view = EmptySegmentView(segment.options, *geometry_);
  return PushSegment(std::move(segment), view);
}

int LayerBlockTable::ShareSegment(LayerBlockTable& other, int segment) {
  CheckThat(&other != this, "a segment is shared by two layers, not within one");
  CheckThat(other.pool_ == pool_, "layers that share a segment share its pool");
  Segment& theirs = other.segments_[segment];
  CheckThat(!theirs.options.ring, "a ring overwrites, and is not shared");
  CheckThat(!theirs.borrows_keys(), "values alone are not shared");
  theirs.sharing = std::max(theirs.sharing, Sharing::kShared);

  Segment ours;
  ours.options = theirs.options;
  ours.sharing = Sharing::kRefers;
  SegmentView view = EmptySegmentView(ours.options, *geometry_);
  if (ours.options.format.merged) {
    for (PlaneView* norms : {&view.key_norms, &view.value_norms}) {
      norms->offset_bytes += 2 * norms->slots_per_block * sizeof(float);
    }
  }
  const int index = PushSegment(std::move(ours), view);
  RefreshShared(index, other, segment);
  return index;
}

void LayerBlockTable::RefreshShared(int segment, const LayerBlockTable& other, int other_segment) {
  Segment& ours = segments_[segment];
  const Segment& theirs = other.segments_[other_segment];
  CheckThat(ours.refers(), "only a segment that refers to another layer's is refreshed");
  CheckThat(views_[segment].use != SegmentUse::kDistantKeys ||
                other.views_[other_segment].num_slots >= views_[segment].num_slots,
            "keys that others read do not shrink");
  for (int p = 0; p < kMaxPlanes; ++p) {
    std::vector<BlockId>& plane = ours.planes[p];
    if (plane.size() > theirs.planes[p].size()) {
      const size_t kept = theirs.planes[p].size();
      pool_->Release(absl::MakeConstSpan(plane).subspan(kept));
      plane.resize(kept);
    }
    TakeReferences(theirs.planes[p], &plane);
  }
  views_[segment].num_slots = other.views_[other_segment].num_slots;
  ours.next_slot = views_[segment].num_slots;
  SetAppendLimit(segment);
  RefreshViewPointers(segment);
}

void LayerBlockTable::TakeReferences(const std::vector<BlockId>& theirs,
                                     std::vector<BlockId>* ours) {
  const size_t known = ours->size();
  CheckThat(theirs.size() >= known && std::equal(ours->begin(), ours->end(), theirs.begin()),
            "blocks are refreshed from the segment that they were taken from");
  pool_->AddReference(absl::MakeConstSpan(theirs).subspan(known));
  ours->insert(ours->end(), theirs.begin() + static_cast<ptrdiff_t>(known), theirs.end());
}

int LayerBlockTable::AddValuesSegment(const SegmentOptions& options, LayerBlockTable& keys_of,
                                      int segment) {
  CheckThat(&keys_of != this, "a values-only segment reads another layer's keys");
  CheckThat(keys_of.pool_ == pool_, "keys and values are in one pool");
  CheckThat(options.format.values_only, "a segment that reads another layer's keys is values-only");
  Segment& theirs = keys_of.segments_[segment];
  SegmentView& their_view = keys_of.views_[segment];
  CheckThat(!theirs.borrows_keys(), "the other layer's segment stores keys");
  CheckThat(!theirs.options.format.merged, "directions are no keys without their norms");

  Segment ours;
  ours.options = Normalized(options);
  SegmentView view = EmptySegmentView(ours.options, *geometry_);
  CheckThat(view.encoding == their_view.encoding && view.group == their_view.group,
            "keys and values have one encoding");
  const int head_offset = view.first_kv_head - their_view.first_kv_head;
  CheckThat(head_offset >= 0 && head_offset + view.num_kv_heads <= their_view.num_kv_heads,
            "the other layer's segment covers these KV heads");
  view.keys = their_view.keys;
  view.key_scales = their_view.key_scales;
  for (PlaneView* plane : {&view.keys, &view.key_scales}) {
    plane->offset_bytes += static_cast<uint32_t>(head_offset) * plane->head_stride_bytes;
  }
  view.use = SegmentUse::kBorrowedKeys;
  their_view.use = SegmentUse::kDistantKeys;

  theirs.sharing = std::max(theirs.sharing, Sharing::kLent);
  const int index = PushSegment(std::move(ours), view);
  RefreshKeys(index, keys_of, segment);
  return index;
}

void LayerBlockTable::RefreshKeys(int segment, const LayerBlockTable& keys_of, int keys_segment) {
  Segment& ours = segments_[segment];
  const Segment& theirs = keys_of.segments_[keys_segment];
  CheckThat(ours.borrows_keys(), "only a values-only segment borrows keys");
  TakeReferences(theirs.planes[0], &ours.borrowed_keys);
  const PlaneList list = keys_of.PlanesOfSegment(theirs);
  if (const int p = list.Find(PlaneRole::kScales); p >= 0) {
    TakeReferences(theirs.planes[p], &ours.borrowed_scales);
  }
  ours.borrowed_slots = keys_of.views_[keys_segment].num_slots;
  SetAppendLimit(segment);
  RefreshViewPointers(segment);
}

absl::Status LayerBlockTable::Extend(int segment, int tokens) {
  CheckThat(tokens >= 0, "a segment is extended by no negative number of tokens");
  if (tokens == 0) {
    return absl::OkStatus();
  }
  const Segment& s = segments_[segment];
  const int num_slots = views_[segment].num_slots;
  CheckThat(!s.refers(), "a shared segment may not grow");
  CheckThat(!s.options.ring || tokens <= s.options.ring->slots() - num_slots,
            "a ring may not be extended past sinks + recent");
  return Grow(segment, num_slots + tokens);
}

void LayerBlockTable::ReserveLists(int segment, size_t slots) {
  Segment& s = segments_[segment];
  for (int p = 0; p < s.num_planes; ++p) s.planes[p].reserve(s.BlocksFor(p, slots));
  RefreshViewPointers(segment);
}

void LayerBlockTable::Truncate(int segment, int slots) {
  Segment& s = segments_[segment];
  CheckThat(slots >= 0 && slots <= views_[segment].num_slots, "a segment shrinks to what it holds");
  CheckThat(!s.refers(), "a shared segment shrinks on the side that owns it");
  CheckThat(views_[segment].use != SegmentUse::kDistantKeys, "keys that others read do not shrink");
  CheckThat(s.next_slot == views_[segment].num_slots, "a ring that has wrapped does not shrink");
  views_[segment].num_slots = slots;
  s.next_slot = slots;
  ReleaseBehind(segment, slots);
}

void LayerBlockTable::ReleaseBehind(int segment, int num_slots) {
  Segment& s = segments_[segment];
  for (int p = 0; p < s.num_planes; ++p) {
    const size_t kept = s.BlocksFor(p, num_slots);
    pool_->Release(absl::MakeConstSpan(s.planes[p]).subspan(kept));
    owned_blocks_ -= s.planes[p].size() - kept;
    s.planes[p].resize(kept);
  }
  SetAppendLimit(segment);
  RefreshViewPointers(segment);
}

bool LayerBlockTable::CanRemoveFirst(int segment, int slots) const {
  const Segment& s = segments_[segment];
  if (slots < 0 || slots > views_[segment].num_slots || s.options.ring) return false;
  if (s.sharing != Sharing::kAlone || s.borrows_keys()) return false;
  return std::all_of(s.slots_per_block, s.slots_per_block + s.num_planes,
                     [&](uint32_t of_block) { return slots % of_block == 0; });
}

void LayerBlockTable::RemoveFirst(int segment, int slots) {
  CheckThat(CanRemoveFirst(segment, slots), "whole blocks go, of a segment that nobody else reads");
  Segment& s = segments_[segment];
  for (int p = 0; p < s.num_planes; ++p) {
    std::vector<BlockId>& plane = s.planes[p];
    const size_t blocks = slots / s.slots_per_block[p];
    pool_->Release(absl::MakeConstSpan(plane).first(blocks));
    plane.erase(plane.begin(), plane.begin() + static_cast<ptrdiff_t>(blocks));
    owned_blocks_ -= blocks;
  }
  views_[segment].num_slots -= slots;
  s.next_slot -= slots;
  SetAppendLimit(segment);
}

bool LayerBlockTable::TakeAhead(int segment) {
  Segment& s = segments_[segment];
  if (s.next_slot < s.append_limit) return true;
  if (s.sharing != Sharing::kAlone) return false;
  if (s.grows_plainly) return TakeBlock(segment).ok();
  if (s.borrows_keys() || IsFullRing(segment)) return false;
  if (!TakeBlocks(segment, views_[segment].num_slots + 1).ok()) return false;
  SetAppendLimit(segment);
  return true;
}

void LayerBlockTable::ReleaseAhead(int segment) {
  ReleaseBehind(segment, views_[segment].num_slots);
}

void LayerBlockTable::MakeRing(int segment, RingShape ring) {
  Segment& s = segments_[segment];
  CheckThat(!s.options.ring && ring.sinks >= 0 && ring.recent >= 1 &&
                views_[segment].num_slots <= ring.slots(),
            "a ring holds what the segment holds");
  CheckThat(s.sharing < Sharing::kShared, "a ring overwrites, and is not shared");
  CheckThat(!IsGrouped(s.options.format.encoding),
            "a ring overwrites slots one by one, groups are written as a whole");
  ReleaseAhead(segment);  // a block behind the ring's last slot would never be used
  s.options.ring = ring;
  s.grows_plainly = s.IsPlain();
  SetAppendLimit(segment);
}

void LayerBlockTable::AppendSlots(int segment, int count) {
  CheckThat(count >= 0 && count <= RoomToAppend(segment), "more slots appended than there is room");
  Segment& s = segments_[segment];
  s.next_slot += count;
  views_[segment].num_slots = std::max(views_[segment].num_slots, s.next_slot);
}

absl::StatusOr<int> LayerBlockTable::AppendSlotSlow(int segment) {
  Segment& s = segments_[segment];
  if (s.grows_plainly) {
    if (absl::Status status = TakeBlock(segment); !status.ok()) return status;
    const int slot = s.next_slot;
    s.next_slot = views_[segment].num_slots = slot + 1;
    return slot;
  }
  CheckThat(!s.refers(), "a shared segment may not grow");
  const int num_slots = views_[segment].num_slots;
  if (IsFullRing(segment)) {
    const int oldest = s.options.ring->sinks;
    s.next_slot = oldest + 1;
    return oldest;
  }
  if (absl::Status status = Grow(segment, num_slots + 1); !status.ok()) {
    return status;
  }
  return num_slots;
}

// What TakeBlocks does where it is simple, without a look at what is not in the table's first
// lines.
absl::Status LayerBlockTable::TakeBlock(int segment) {
  BlockId block = 0;
  if (absl::Status status = pool_->Allocate(absl::MakeSpan(&block, 1)); !status.ok()) return status;
  Segment& s = segments_[segment];
  std::vector<BlockId>& plane = s.planes[0];
  const bool moves = plane.size() == plane.capacity();
  plane.push_back(block);
  ++owned_blocks_;
  s.append_limit = static_cast<int>(
      std::min(plane.size() * s.slots_per_block[0], static_cast<size_t>(INT32_MAX)));
  if (moves) RefreshViewPointers(segment);
  return absl::OkStatus();
}

absl::Status LayerBlockTable::Grow(int segment, int new_num_slots) {
  if (absl::Status status = TakeBlocks(segment, new_num_slots); !status.ok()) return status;
  views_[segment].num_slots = new_num_slots;
  segments_[segment].next_slot = new_num_slots;
  SetAppendLimit(segment);
  return absl::OkStatus();
}

// Those that are missing for so many slots. All or nothing: the pool is asked for every plane's
// blocks together, before anything changes.
absl::Status LayerBlockTable::TakeBlocks(int segment, int num_slots) {
  Segment& s = segments_[segment];
  CheckThat(!s.borrows_keys() || num_slots <= s.borrowed_slots,
            "a values-only segment may not grow past its keys");
  size_t missing[kMaxPlanes] = {};
  size_t total_missing = 0;
  for (int p = 0; p < s.num_planes; ++p) {
    missing[p] = s.BlocksFor(p, num_slots) - s.planes[p].size();
    total_missing += missing[p];
  }
  if (total_missing > 0) {
    absl::InlinedVector<BlockId, kMaxPlanes> fresh(total_missing);
    if (absl::Status status = pool_->Allocate(absl::MakeSpan(fresh)); !status.ok()) {
      return status;
    }
    const BlockId* next = fresh.data();
    for (int p = 0; p < s.num_planes; ++p) {
      for (size_t i = 0; i < missing[p]; ++i) s.planes[p].push_back(*next++);
    }
    owned_blocks_ += total_missing;
    RefreshViewPointers(segment);
  }
  return absl::OkStatus();
}

int LayerBlockTable::AppendLimitOf(const Segment& s) {
  if (s.refers()) return s.next_slot;
  size_t limit = s.options.ring ? s.options.ring->slots() : SIZE_MAX;
  for (int p = 0; p < s.num_planes; ++p) {
    limit = std::min(limit, s.planes[p].size() * s.slots_per_block[p]);
  }
  if (s.borrows_keys()) {
    limit = std::min(limit, static_cast<size_t>(s.borrowed_slots));
  }
  return static_cast<int>(std::min(limit, static_cast<size_t>(INT32_MAX)));
}

void LayerBlockTable::SetAppendLimit(int segment) {
  segments_[segment].append_limit = AppendLimitOf(segments_[segment]);
}

void LayerBlockTable::RefreshViewPointers(int segment) {
  const Segment& s = segments_[segment];
  SegmentView& view = views_[segment];
  const bool borrows = s.borrows_keys();
  view.values.blocks = s.planes[0].data();
  view.keys.blocks = borrows ? s.borrowed_keys.data() : s.planes[0].data();
  if (s.num_planes == 1) return;
  const PlaneList list = PlanesOfSegment(s);
  if (const int p = list.Find(PlaneRole::kScales); p >= 0) {
    view.value_scales.blocks = s.planes[p].data();
    view.key_scales.blocks = borrows ? s.borrowed_scales.data() : s.planes[p].data();
  }
  if (const int p = list.Find(PlaneRole::kNorms); p >= 0) {
    view.key_norms.blocks = view.value_norms.blocks = s.planes[p].data();
  }
  if (const int p = list.Find(PlaneRole::kScores); p >= 0) {
    view.scores.blocks = view.positions.blocks = s.planes[p].data();
  }
}

PlaneList LayerBlockTable::PlanesOfSegment(const Segment& segment) const {
  return PlanesOf(segment.options.format, segment.options.num_kv_heads, geometry_->head_dim);
}

size_t LayerBlockTable::BlocksToAppendSlow(int segment, size_t tokens) const {
  const Segment& s = segments_[segment];
  size_t slots = static_cast<size_t>(views_[segment].num_slots) + tokens;
  if (s.options.ring) {
    slots = std::min(slots, static_cast<size_t>(s.options.ring->slots()));
  }
  size_t held = 0;
  for (const std::vector<BlockId>& plane : s.planes) {
    held += plane.size();
  }
  return geometry_->BlocksFor(s.options.format, s.options.num_kv_heads, slots) - held;
}

void LayerBlockTable::Clear() {
  for (const Segment& s : segments_) {
    for (const std::vector<BlockId>& plane : s.planes) {
      pool_->Release(plane);
    }
    pool_->Release(s.borrowed_keys);
    pool_->Release(s.borrowed_scales);
  }
  segments_.clear();
  views_.clear();
  owned_blocks_ = 0;
}

size_t LayerBlockTable::blocks() const {
  size_t blocks = 0;
  for (const Segment& s : segments_) {
    for (const std::vector<BlockId>& plane : s.planes) {
      blocks += plane.size();
    }
  }
  return blocks;
}

size_t LayerBlockTable::CountOwnedBlocks() const {
  size_t blocks = 0;
  for (const Segment& s : segments_) {
    if (s.refers()) continue;
    for (const std::vector<BlockId>& plane : s.planes) blocks += plane.size();
  }
  return blocks;
}

void LayerBlockTable::AppendReferences(std::vector<BlockId>* out) const {
  for (const Segment& s : segments_) {
    for (const std::vector<BlockId>& plane : s.planes) {
      out->insert(out->end(), plane.begin(), plane.end());
    }
    out->insert(out->end(), s.borrowed_keys.begin(), s.borrowed_keys.end());
    out->insert(out->end(), s.borrowed_scales.begin(), s.borrowed_scales.end());
  }
}

}  // namespace ziggurat

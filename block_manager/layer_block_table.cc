// How the segments of one layer grow, wrap, are shared and are given back.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "block_manager/check.h"
#include "block_manager/sequence_cache.h"

namespace ziggurat {
namespace {

// Where keys and values lie in a block of a plane that holds them for `options`' heads: per KV head
// contiguous, keys before values (docs/block_layout.md).
SegmentView EmptyView(const SegmentOptions& options, const CacheGeometry& geometry) {
  SegmentView view;
  view.element = ElementOf(options.format);
  view.first_kv_head = options.first_kv_head;
  view.num_kv_heads = options.num_kv_heads;
  PlaneView plane;
  plane.slots_per_block =
      static_cast<uint32_t>(geometry.SlotsPerBlock(options.format, options.num_kv_heads));
  const uint32_t area_bytes = plane.slots_per_block * static_cast<uint32_t>(geometry.head_dim) *
                              static_cast<uint32_t>(ElementBytes(view.element));
  if (IsValuesOnly(options.format)) {
    plane.head_stride_bytes = area_bytes;
    view.values = plane;
  } else {
    plane.head_stride_bytes = 2 * area_bytes;
    view.keys = plane;
    view.values = plane;
    view.values.offset_bytes = area_bytes;
  }
  return view;
}

}  // namespace

LayerBlockTable::LayerBlockTable(LayerBlockTable&& other) noexcept
    : pool_(other.pool_),
      geometry_(other.geometry_),
      views_(std::move(other.views_)),
      segments_(std::move(other.segments_)) {
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
  CheckThat(!options.ring || (options.ring->sinks >= 0 && options.ring->recent >= 1),
            "a ring has at least one recent slot");
  return options;
}

int LayerBlockTable::PushSegment(Segment segment, SegmentView view) {
  segments_.push_back(std::move(segment));
  views_.push_back(view);
  const int index = num_segments() - 1;
  SetAppendLimit(index);
  RefreshViewPointers(index);
  return index;
}

int LayerBlockTable::AddSegment(const SegmentOptions& options) {
  CheckThat(!IsValuesOnly(options.format), "a values-only segment needs keys: AddValuesSegment");
  Segment segment;
  segment.options = Normalized(options);
  const SegmentView view = EmptyView(segment.options, *geometry_);
  return PushSegment(std::move(segment), view);
}

int LayerBlockTable::ShareSegment(LayerBlockTable& other, int segment) {
  CheckThat(&other != this, "a segment is shared by two layers, not within one");
  CheckThat(other.pool_ == pool_, "layers that share a segment share its pool");
  Segment& theirs = other.segments_[segment];
  theirs.is_frozen = true;
  theirs.may_be_referred = true;
  other.SetAppendLimit(segment);

  for (const std::vector<BlockId>& plane : theirs.planes) {
    pool_->AddReference(plane);
  }
  pool_->AddReference(theirs.borrowed_keys);
  return PushSegment(theirs, other.views_[segment]);
}

int LayerBlockTable::AddValuesSegment(const SegmentOptions& options, LayerBlockTable& keys_of,
                                      int segment) {
  CheckThat(&keys_of != this, "a values-only segment reads another layer's keys");
  CheckThat(keys_of.pool_ == pool_, "keys and values are in one pool");
  CheckThat(IsValuesOnly(options.format),
            "a segment that reads another layer's keys is values-only");
  Segment& theirs = keys_of.segments_[segment];
  const SegmentView& their_view = keys_of.views_[segment];
  CheckThat(!IsValuesOnly(theirs.options.format), "the other layer's segment stores keys");

  Segment ours;
  ours.options = Normalized(options);
  SegmentView view = EmptyView(ours.options, *geometry_);
  CheckThat(view.element == their_view.element, "keys and values have one element type");
  const int head_offset = view.first_kv_head - their_view.first_kv_head;
  CheckThat(head_offset >= 0 && head_offset + view.num_kv_heads <= their_view.num_kv_heads,
            "the other layer's segment covers these KV heads");
  view.keys = their_view.keys;
  view.keys.offset_bytes += static_cast<uint32_t>(head_offset) * view.keys.head_stride_bytes;

  theirs.may_be_referred = true;
  ours.may_be_referred = true;
  const int index = PushSegment(std::move(ours), view);
  RefreshKeys(index, keys_of, segment);
  return index;
}

void LayerBlockTable::RefreshKeys(int segment, const LayerBlockTable& keys_of, int keys_segment) {
  Segment& ours = segments_[segment];
  const Segment& theirs = keys_of.segments_[keys_segment];
  const std::vector<BlockId>& keys = theirs.planes[0];
  const size_t known = ours.borrowed_keys.size();
  CheckThat(IsValuesOnly(ours.options.format), "only a values-only segment borrows keys");
  CheckThat(keys.size() >= known &&
                std::equal(ours.borrowed_keys.begin(), ours.borrowed_keys.end(), keys.begin()),
            "keys are refreshed from the segment that they were borrowed from");
  pool_->AddReference(absl::MakeConstSpan(keys).subspan(known));
  ours.borrowed_keys.insert(ours.borrowed_keys.end(), keys.begin() + static_cast<ptrdiff_t>(known),
                            keys.end());
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
  CheckThat(!s.is_frozen, "a shared segment may not grow");
  CheckThat(!s.options.ring || tokens <= s.options.ring->slots() - num_slots,
            "a ring may not be extended past sinks + recent");
  return Grow(segment, num_slots + tokens);
}

absl::StatusOr<int> LayerBlockTable::AppendSlotSlow(int segment) {
  Segment& s = segments_[segment];
  CheckThat(!s.is_frozen, "a shared segment may not grow");
  const int num_slots = views_[segment].num_slots;
  if (s.options.ring && num_slots == s.options.ring->slots()) {
    const int oldest = s.options.ring->sinks;
    s.next_slot = oldest + 1;
    s.append_limit = num_slots;
    return oldest;
  }
  if (absl::Status status = Grow(segment, num_slots + 1); !status.ok()) {
    return status;
  }
  return num_slots;
}

// All or nothing: the pool is asked for every plane's blocks together, before anything changes.
absl::Status LayerBlockTable::Grow(int segment, int new_num_slots) {
  Segment& s = segments_[segment];
  CheckThat(!IsValuesOnly(s.options.format) || new_num_slots <= s.borrowed_slots,
            "a values-only segment may not grow past its keys");
  const PlaneList list = PlanesOfSegment(s);
  size_t missing[kMaxPlanes] = {};
  size_t total_missing = 0;
  for (int p = 0; p < list.count; ++p) {
    missing[p] =
        list.planes[p].BlocksFor(geometry_->block_bytes, new_num_slots) - s.planes[p].size();
    total_missing += missing[p];
  }
  if (total_missing > 0) {
    absl::InlinedVector<BlockId, kMaxPlanes> fresh(total_missing);
    if (absl::Status status = pool_->Allocate(absl::MakeSpan(fresh)); !status.ok()) {
      return status;
    }
    const BlockId* next = fresh.data();
    for (int p = 0; p < list.count; ++p) {
      s.planes[p].insert(s.planes[p].end(), next, next + missing[p]);
      next += missing[p];
    }
    RefreshViewPointers(segment);
  }
  views_[segment].num_slots = new_num_slots;
  s.next_slot = new_num_slots;
  SetAppendLimit(segment);
  return absl::OkStatus();
}

void LayerBlockTable::SetAppendLimit(int segment) {
  Segment& s = segments_[segment];
  if (s.is_frozen) {
    s.append_limit = s.next_slot;
    return;
  }
  const PlaneList list = PlanesOfSegment(s);
  size_t limit = s.options.ring ? s.options.ring->slots() : SIZE_MAX;
  for (int p = 0; p < list.count; ++p) {
    const size_t units = s.planes[p].size() * list.planes[p].UnitsPerBlock(geometry_->block_bytes);
    limit = std::min(limit, units * list.planes[p].tokens_per_unit);
  }
  if (IsValuesOnly(s.options.format)) {
    limit = std::min(limit, static_cast<size_t>(s.borrowed_slots));
  }
  s.append_limit = static_cast<int>(std::min(limit, static_cast<size_t>(INT32_MAX)));
}

void LayerBlockTable::RefreshViewPointers(int segment) {
  const Segment& s = segments_[segment];
  SegmentView& view = views_[segment];
  view.values.blocks = s.planes[0].data();
  view.keys.blocks = IsValuesOnly(s.options.format) ? s.borrowed_keys.data() : s.planes[0].data();
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
  }
  segments_.clear();
  views_.clear();
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

void LayerBlockTable::AppendOwnedBlocks(std::vector<BlockId>* out) const {
  for (const Segment& s : segments_) {
    for (const std::vector<BlockId>& plane : s.planes) {
      out->insert(out->end(), plane.begin(), plane.end());
    }
    out->insert(out->end(), s.borrowed_keys.begin(), s.borrowed_keys.end());
  }
}

}  // namespace ziggurat

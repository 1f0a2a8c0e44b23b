// A segment's record of the table made of the host's view; where its block numbers stand is the
// table's to say.
#pragma once

#include "attention/cuda/device_views.h"

namespace ziggurat::cuda {

constexpr int kSegmentPlanes = 8;

/// Slots that a segment has blocks for: grouped ones hold whole groups, also where the last is not
/// all counted yet.
inline int SlotsHeld(const SegmentView& s) {
  const int group = IsGrouped(s.encoding) ? s.group : 1;
  return (s.num_slots + group - 1) / group * group;
}

/// Blocks of a plane that hold `slots` slots.
inline uint32_t BlocksOf(const PlaneView& plane, int slots) {
  return (static_cast<uint32_t>(slots) + plane.slots_per_block - 1) / plane.slots_per_block;
}

inline DeviceSegment RecordWithoutPlanes(const SegmentView& s) {
  DeviceSegment record;
  record.encoding = static_cast<int32_t>(s.encoding);
  record.group = s.group;
  record.first_kv_head = s.first_kv_head;
  record.num_kv_heads = s.num_kv_heads;
  record.num_slots = s.num_slots;
  record.use = static_cast<int32_t>(s.use);
  return record;
}

/// Calls visit(plane of the view, plane of the record, index) for each plane that the segment has.
template <class Visit>
void ForEachPlane(const SegmentView& s, DeviceSegment* record, Visit visit) {
  const PlaneView* const from[kSegmentPlanes] = {&s.keys,         &s.values,    &s.key_scales,
                                                 &s.value_scales, &s.key_norms, &s.value_norms,
                                                 &s.scores,       &s.positions};
  DevicePlane* const to[kSegmentPlanes] = {
      &record->keys,      &record->values,      &record->key_scales, &record->value_scales,
      &record->key_norms, &record->value_norms, &record->scores,     &record->positions};
  for (int p = 0; p < kSegmentPlanes; ++p) {
    if (from[p]->blocks != nullptr) visit(*from[p], to[p], p);
  }
}

/// Calls visit(plane, index) for each plane of the view that has a list of blocks of its own:
/// planes in the same blocks, as keys and values are, share that of the first.
template <class Visit>
void ForEachList(const SegmentView& s, Visit visit) {
  DeviceSegment record;
  const PlaneView* before = nullptr;
  ForEachPlane(s, &record, [&](const PlaneView& plane, DevicePlane*, int p) {
    if (before == nullptr || before->blocks != plane.blocks) visit(plane, p);
    before = &plane;
  });
}

inline DevicePlane PlaneRecord(const PlaneView& plane, uint32_t blocks) {
  return {blocks, plane.slots_per_block, plane.head_stride_bytes, plane.offset_bytes,
          plane.unit_bytes};
}

}  // namespace ziggurat::cuda

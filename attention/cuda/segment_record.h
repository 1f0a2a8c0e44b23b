// A segment's record of the table made of the host's view; where its block numbers stand is the
// table's to say.
#pragma once

#include "attention/cuda/device_views.h"

namespace ziggurat::cuda {

constexpr int kSegmentPlanes = 8;

/// Slots that a segment has blocks for: grouped ones hold whole groups, also where the last is not
/// all counted yet.
inline int SlotsHeld(const SegmentView& s) {
  const int unit = s.UnitTokens();
  return (s.num_slots + unit - 1) / unit * unit;
}

/// Blocks of a plane that hold `slots` slots.
inline uint32_t BlocksOf(const PlaneView& plane, int slots) {
  return (static_cast<uint32_t>(slots) + plane.slots_per_block - 1) / plane.slots_per_block;
}

/// The record of a segment. word_of(plane, index) says at which word a list of block numbers
/// stands; it is asked once for planes in the same blocks, as keys and values are, which share
/// their list.
template <class WordOf>
DeviceSegment RecordOfSegment(const SegmentView& s, WordOf word_of) {
  DeviceSegment record;
  record.encoding = static_cast<int32_t>(s.encoding);
  record.group = s.group;
  record.first_kv_head = s.first_kv_head;
  record.num_kv_heads = s.num_kv_heads;
  record.num_slots = s.num_slots;
  record.use = static_cast<int32_t>(s.use);
  const PlaneView* const from[kSegmentPlanes] = {&s.keys,         &s.values,    &s.key_scales,
                                                 &s.value_scales, &s.key_norms, &s.value_norms,
                                                 &s.scores,       &s.positions};
  DevicePlane* const to[kSegmentPlanes] = {
      &record.keys,      &record.values,      &record.key_scales, &record.value_scales,
      &record.key_norms, &record.value_norms, &record.scores,     &record.positions};
  const BlockId* blocks = nullptr;
  uint32_t word = 0;
  for (int p = 0; p < kSegmentPlanes; ++p) {
    const PlaneView& plane = *from[p];
    if (plane.blocks == nullptr) continue;
    if (plane.blocks != blocks) word = word_of(plane, p);
    blocks = plane.blocks;
    *to[p] = {word, plane.slots_per_block, plane.head_stride_bytes, plane.offset_bytes,
              plane.unit_bytes};
  }
  return record;
}

/// A segment's record, each plane's list named by the first plane that has it.
inline DeviceSegment ShapeOf(const SegmentView& view) {
  return RecordOfSegment(view, [](const PlaneView&, int p) { return static_cast<uint32_t>(p); });
}

}  // namespace ziggurat::cuda

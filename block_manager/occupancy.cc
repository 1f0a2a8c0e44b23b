#include "block_manager/occupancy.h"

#include "block_manager/layer_block_table.h"

namespace ziggurat {

LayerOccupancy& LayerOccupancy::operator+=(const LayerOccupancy& other) {
  blocks += other.blocks;
  owned_blocks += other.owned_blocks;
  borrowed_blocks += other.borrowed_blocks;
  live_bytes += other.live_bytes;
  owned_live_bytes += other.owned_live_bytes;
  tail_waste_bytes += other.tail_waste_bytes;
  head_slots += other.head_slots;
  return *this;
}

LayerOccupancy LayerBlockTable::SegmentOccupancy(int segment) const {
  const Segment& s = segments_[segment];
  const auto num_slots = static_cast<size_t>(views_[segment].num_slots);
  const PlaneList list = PlanesOfSegment(s);
  LayerOccupancy result;
  for (int p = 0; p < list.count; ++p) {
    result.blocks += s.planes[p].size();
    result.live_bytes += list.planes[p].LiveBytes(num_slots);
  }
  result.owned_blocks = s.refers() ? 0 : result.blocks;
  result.owned_live_bytes = s.refers() ? 0 : result.live_bytes;
  result.borrowed_blocks = s.borrowed_keys.size() + s.borrowed_scales.size();
  result.tail_waste_bytes = result.blocks * geometry_->block_bytes - result.live_bytes;
  result.head_slots = num_slots * views_[segment].num_kv_heads;
  return result;
}

LayerOccupancy LayerBlockTable::occupancy() const {
  LayerOccupancy result;
  for (int i = 0; i < num_segments(); ++i) result += SegmentOccupancy(i);
  return result;
}

void LayerBlockTable::AddOccupancyByFormat(OccupancyByFormat* by_format) const {
  for (int i = 0; i < num_segments(); ++i) {
    // A segment without slots may hold references to another layer's keys already.
    if (views_[i].num_slots == 0 && segments_[i].borrowed_keys.empty()) continue;
    (*by_format)[segments_[i].options.format] += SegmentOccupancy(i);
  }
}

}  // namespace ziggurat

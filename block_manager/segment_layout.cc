#include "block_manager/segment_layout.h"

#include <cstdint>

namespace ziggurat {
namespace {

// A view of a plane of units of one token: `areas` areas of `unit` bytes per slot and head.
PlaneView AreaView(const PlaneSpec& plane, size_t block_bytes, size_t unit, size_t areas,
                   size_t index) {
  PlaneView view;
  const size_t slots = plane.UnitsPerBlock(block_bytes);
  view.slots_per_block = static_cast<uint32_t>(slots);
  view.head_stride_bytes = static_cast<uint32_t>(areas * slots * unit);
  view.offset_bytes = static_cast<uint32_t>(index * slots * unit);
  return view;
}

// A view of the scales and zeros of the keys, or values, of a grouped encoding.
PlaneView GroupView(const PlaneSpec& plane, size_t block_bytes, size_t part_bytes, size_t parts,
                    size_t index) {
  PlaneView view;
  const size_t units = plane.UnitsPerBlock(block_bytes);
  view.slots_per_block = static_cast<uint32_t>(plane.SlotsPerBlock(block_bytes));
  view.unit_bytes = static_cast<uint32_t>(parts * part_bytes);
  view.head_stride_bytes = static_cast<uint32_t>(units * view.unit_bytes);
  view.offset_bytes = static_cast<uint32_t>(index * part_bytes);
  return view;
}

}  // namespace

SegmentView EmptySegmentView(const SegmentOptions& options, const CacheGeometry& geometry) {
  const CacheFormat& format = options.format;
  SegmentView view;
  view.encoding = format.encoding;
  view.group = format.group;
  view.first_kv_head = options.first_kv_head;
  view.num_kv_heads = options.num_kv_heads;
  const PlaneList list = PlanesOf(format, options.num_kv_heads, geometry.head_dim);
  const size_t block = geometry.block_bytes;
  const size_t sides = format.values_only ? 1 : 2;
  const size_t side_bytes =
      static_cast<size_t>(geometry.head_dim) * EncodingBits(format.encoding) / 8;
  const PlaneSpec& codes = list.planes[0];
  if (!format.values_only) view.keys = AreaView(codes, block, side_bytes, sides, 0);
  view.values = AreaView(codes, block, side_bytes, sides, sides - 1);
  if (const int p = list.Find(PlaneRole::kScales); p >= 0) {
    const PlaneSpec& plane = list.planes[p];
    const bool grouped = IsGrouped(format.encoding);
    const size_t part = grouped ? size_t{4} * geometry.head_dim : sizeof(float);
    const auto of_side = [&](size_t side) {
      return grouped ? GroupView(plane, block, part, sides, side)
                     : AreaView(plane, block, part, sides, side);
    };
    if (!format.values_only) view.key_scales = of_side(0);
    view.value_scales = of_side(sides - 1);
  }
  if (const int p = list.Find(PlaneRole::kNorms); p >= 0) {
    view.key_norms = AreaView(list.planes[p], block, sizeof(float), 4, 0);
    view.value_norms = AreaView(list.planes[p], block, sizeof(float), 4, 1);
  }
  if (const int p = list.Find(PlaneRole::kScores); p >= 0) {
    view.scores = AreaView(list.planes[p], block, sizeof(float), 2, 0);
    view.positions = AreaView(list.planes[p], block, sizeof(float), 2, 1);
  }
  return view;
}

}  // namespace ziggurat

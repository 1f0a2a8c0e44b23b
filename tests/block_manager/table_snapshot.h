// What a table shows, taken apart so that it can be compared.
#pragma once

#include <vector>

#include "block_manager/layer_block_table.h"

namespace ziggurat {

/// The planes that a view shows.
struct NamedPlane {
  const char* name;
  PlaneView SegmentView::*plane;
};
inline constexpr NamedPlane kPlanesOfAView[] = {{"keys", &SegmentView::keys},
                                                {"values", &SegmentView::values},
                                                {"key scales", &SegmentView::key_scales},
                                                {"value scales", &SegmentView::value_scales},
                                                {"key norms", &SegmentView::key_norms},
                                                {"value norms", &SegmentView::value_norms},
                                                {"scores", &SegmentView::scores},
                                                {"positions", &SegmentView::positions}};

/// The blocks of a plane in slot order, as a kernel sees them.
inline std::vector<BlockId> Blocks(const PlaneView& plane, int num_slots) {
  if (plane.slots_per_block == 0) {
    return {};
  }
  const int per_block = static_cast<int>(plane.slots_per_block);
  return {plane.blocks, plane.blocks + (num_slots + per_block - 1) / per_block};
}

/// Everything of a table that an operation may change.
struct TableSnapshot {
  std::vector<int> slots;
  std::vector<std::vector<BlockId>> blocks;
  std::vector<BlockId> references;
  std::vector<size_t> blocks_to_append;

  explicit TableSnapshot(const LayerBlockTable& table) {
    for (int i = 0; i < table.num_segments(); ++i) {
      const SegmentView& view = table.view()[i];
      slots.push_back(view.num_slots);
      for (const NamedPlane& named : kPlanesOfAView) {
        blocks.push_back(Blocks(view.*named.plane, view.num_slots));
      }
      for (const size_t tokens : {1, 20, 100}) {
        blocks_to_append.push_back(table.BlocksToAppend(i, tokens));
      }
    }
    table.AppendReferences(&references);
  }
  bool operator==(const TableSnapshot&) const = default;
};

}  // namespace ziggurat

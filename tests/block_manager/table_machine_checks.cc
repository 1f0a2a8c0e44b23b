// What the tables must be after an operation, by the model.
#include <rapidcheck.h>

#include <cstring>

#include "tests/block_manager/table_machine.h"

namespace ziggurat {
namespace {

/// Logs `status` into the failure and says false.
bool Fails(const absl::Status& status) {
  RC_LOG() << status.ToString() << std::endl;
  return false;
}

void ExpectSame(const LayerOccupancy& a, const LayerOccupancy& b) {
  RC_ASSERT(a.blocks == b.blocks);
  RC_ASSERT(a.owned_blocks == b.owned_blocks);
  RC_ASSERT(a.borrowed_blocks == b.borrowed_blocks);
  RC_ASSERT(a.live_bytes == b.live_bytes);
  RC_ASSERT(a.owned_live_bytes == b.owned_live_bytes);
  RC_ASSERT(a.tail_waste_bytes == b.tail_waste_bytes);
  RC_ASSERT(a.head_slots == b.head_slots);
}

}  // namespace

void TableMachine::CheckPool(const Operation& op) {
  RC_ASSERT(pool_->used_blocks() == live_blocks_);
  RC_ASSERT(pool_->used_blocks() + pool_->free_blocks() == pool_->num_blocks());
  const SequenceCache& touched = real_[op.sequence % real_.size()];
  const absl::Status status = touched.CheckIntegrity();
  RC_ASSERT(status.ok() || Fails(status));
}

void TableMachine::CheckAll() {
  std::vector<const SequenceCache*> sequences;
  for (const SequenceCache& sequence : real_) sequences.push_back(&sequence);
  const absl::Status status = CheckIntegrity(*pool_, sequences);
  RC_ASSERT(status.ok() || Fails(status));

  BlockOfStamp block_of_stamp;
  for (size_t i = 0; i < real_.size(); ++i) {
    for (int layer = 0; layer < geometry_.num_layers; ++layer) {
      const LayerBlockTable& table = real_[i].layer(layer);
      const ModelLayer& model = model_[i][layer];
      RC_ASSERT(table.num_segments() == static_cast<int>(model.size()));
      for (size_t s = 0; s < model.size(); ++s) {
        CheckSegment(table.view()[s], model[s], &block_of_stamp);
      }
      CheckOccupancy(table, model);
    }
  }
  RC_ASSERT(block_of_stamp.size() == live_blocks_);
}

// ---- Blocks ------------------------------------------------------------------------------------

/// A block that two tables own by mistake would carry the wrong stamp, or two numbers for one. It
/// has exactly as many references as lists of the model name it.
void TableMachine::CheckStamps(const BlockId* ids, const ModelBlocks& blocks,
                               BlockOfStamp* block_of_stamp) {
  for (size_t i = 0; i < blocks.size(); ++i) {
    uint64_t stamp = 0;
    std::memcpy(&stamp, pool_->view().Block(ids[i]), sizeof(stamp));
    RC_ASSERT(stamp == blocks[i]->stamp);
    const auto [it, inserted] = block_of_stamp->emplace(stamp, ids[i]);
    RC_ASSERT(it->second == ids[i]);
    RC_ASSERT(static_cast<long>(pool_->reference_count(ids[i])) == blocks[i].use_count());
  }
}

void TableMachine::CheckSegment(const SegmentView& view, const ModelSegment& segment,
                                BlockOfStamp* block_of_stamp) {
  const CacheFormat& format = segment.options.format;
  RC_ASSERT(view.num_slots == segment.slots());
  RC_ASSERT(view.first_kv_head == segment.options.first_kv_head);
  RC_ASSERT(view.num_kv_heads == segment.options.num_kv_heads);
  RC_ASSERT(view.encoding == format.encoding);
  RC_ASSERT(view.group == format.group);
  RC_ASSERT((view.use == SegmentUse::kBorrowedKeys) == format.values_only);
  RC_ASSERT((view.use == SegmentUse::kDistantKeys) == segment.is_lent);
  for (size_t p = 0; p < segment.shape.size(); ++p) {
    const ModelBlocks& blocks = segment.planes[p];
    RC_ASSERT(blocks.size() ==
              segment.shape[p].BlocksFor(geometry_.block_bytes, segment.slot_tokens.size()));
    const bool borrows = format.values_only;
    switch (segment.shape[p].role) {
      case PlaneRole::kCodes:
        CheckStamps(view.values.blocks, blocks, block_of_stamp);
        CheckStamps(view.keys.blocks, borrows ? segment.keys[0] : blocks, block_of_stamp);
        break;
      case PlaneRole::kScales:
        CheckStamps(view.value_scales.blocks, blocks, block_of_stamp);
        CheckStamps(view.key_scales.blocks, borrows ? segment.keys[1] : blocks, block_of_stamp);
        break;
      case PlaneRole::kNorms:
        CheckStamps(view.key_norms.blocks, blocks, block_of_stamp);
        CheckStamps(view.value_norms.blocks, blocks, block_of_stamp);
        break;
      case PlaneRole::kScores:
        CheckStamps(view.scores.blocks, blocks, block_of_stamp);
        CheckStamps(view.positions.blocks, blocks, block_of_stamp);
        break;
    }
  }
}

// ---- Occupancy ---------------------------------------------------------------------------------

LayerOccupancy TableMachine::Expected(const ModelSegment& segment) const {
  LayerOccupancy expected;
  expected.blocks = segment.blocks();
  expected.owned_blocks = segment.refers ? 0 : segment.blocks();
  expected.borrowed_blocks = segment.borrowed_blocks();
  for (const ExpectedPlane& plane : segment.shape) {
    expected.live_bytes += plane.LiveBytes(segment.slot_tokens.size());
  }
  expected.owned_live_bytes = segment.refers ? 0 : expected.live_bytes;
  expected.tail_waste_bytes = expected.blocks * geometry_.block_bytes - expected.live_bytes;
  expected.head_slots = segment.slot_tokens.size() * segment.options.num_kv_heads;
  return expected;
}

void TableMachine::CheckOccupancy(const LayerBlockTable& table, const ModelLayer& model) {
  LayerOccupancy layer;
  OccupancyByFormat formats, real_formats;
  for (const ModelSegment& segment : model) {
    const LayerOccupancy part = Expected(segment);
    layer += part;
    if (segment.slots() > 0 || part.borrowed_blocks > 0) {
      formats[segment.options.format] += part;
    }
  }
  ExpectSame(table.occupancy(), layer);
  RC_ASSERT(table.blocks() == layer.blocks);
  RC_ASSERT(table.owned_blocks() == layer.owned_blocks);
  table.AddOccupancyByFormat(&real_formats);
  RC_ASSERT(real_formats.size() == formats.size());
  for (const auto& [format, part] : formats) {
    RC_ASSERT(real_formats.contains(format));
    ExpectSame(real_formats[format], part);
  }
}

}  // namespace ziggurat

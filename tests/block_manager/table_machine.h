// Operations on many sequences' block tables, run on the real tables and on the model beside them.
#pragma once

#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <ostream>
#include <vector>

#include "block_manager/occupancy.h"
#include "tests/block_manager/table_model.h"

namespace ziggurat {

enum class Kind : uint8_t {
  kAddSegment,
  kShareSegment,
  kAddValuesSegment,
  kRefreshKeys,
  kExtend,
  kAppend,
  kClearLayer,
  kClearSequence,
  kReplaceSequence,
  kMoveSequence,
};
inline constexpr const char* kKindNames[] = {
    "AddSegment", "ShareSegment", "AddValuesSegment", "RefreshKeys",     "Extend",
    "Append",     "ClearLayer",   "ClearSequence",    "ReplaceSequence", "MoveSequence"};

// One operation. The numbers are taken modulo what exists when it runs, so that any part of a list
// of operations is again a valid list: that is what lets it shrink.
struct Operation {
  Kind kind = Kind::kAppend;
  uint32_t sequence = 0;
  uint32_t layer = 0;
  uint32_t segment = 0;
  uint32_t shape = 0;  // format, head group, ring
  uint32_t tokens = 0;
};

inline std::ostream& operator<<(std::ostream& os, const Operation& op) {
  return os << kKindNames[static_cast<int>(op.kind)] << "(" << op.sequence << ", " << op.layer
            << ", " << op.segment << ", shape " << op.shape << ", tokens " << op.tokens << ")";
}

// The real tables and their model, driven together.
class TableMachine {
 public:
  TableMachine(int num_sequences, size_t pool_blocks, CacheGeometry geometry)
      : geometry_(geometry), pool_(*BlockPool::Create(pool_blocks, geometry.block_bytes)) {
    RC_ASSERT(geometry_.Validate().ok());
    for (int i = 0; i < num_sequences; ++i) {
      real_.emplace_back(pool_.get(), &geometry_);
      model_.emplace_back(geometry_.num_layers);
    }
  }

  void Run(const Operation& op) {
    const size_t sequence = op.sequence % real_.size();
    const int layer = static_cast<int>(op.layer % geometry_.num_layers);
    LayerBlockTable& table = real_[sequence].layer(layer);
    ModelLayer& model = model_[sequence][layer];
    switch (op.kind) {
      case Kind::kAddSegment:
        return AddSegment(op, table, model);
      case Kind::kShareSegment:
        return ShareSegment(op, sequence, layer);
      case Kind::kAddValuesSegment:
        return AddValuesSegment(op, sequence, layer);
      case Kind::kRefreshKeys:
        return RefreshKeys(op, sequence, layer);
      case Kind::kExtend:
        return Extend(op, table, model);
      case Kind::kAppend:
        return Append(op, table, model);
      case Kind::kClearLayer:
        table.Clear();
        model.clear();
        return;
      case Kind::kClearSequence:
        real_[sequence].Clear();
        model_[sequence].assign(geometry_.num_layers, {});
        return;
      case Kind::kReplaceSequence:  // finished; another takes its place
        real_[sequence] = SequenceCache(pool_.get(), &geometry_);
        model_[sequence].assign(geometry_.num_layers, {});
        return;
      case Kind::kMoveSequence:
        std::swap(real_[sequence], real_[op.segment % real_.size()]);
        std::swap(model_[sequence], model_[op.segment % real_.size()]);
        return;
    }
  }

  // Everything that one operation may have broken and that is cheap to see.
  void CheckPool(const Operation& op) {
    RC_ASSERT(pool_->used_blocks() == live_blocks_);
    RC_ASSERT(pool_->used_blocks() + pool_->free_blocks() == pool_->num_blocks());
    const SequenceCache& touched = real_[op.sequence % real_.size()];
    const absl::Status status = touched.CheckIntegrity();
    RC_ASSERT(status.ok() || Fails(status));
  }

  // Everything.
  void CheckAll() {
    std::vector<const SequenceCache*> sequences;
    CacheOccupancy occupancy(geometry_.num_layers);
    for (const SequenceCache& sequence : real_) {
      sequences.push_back(&sequence);
      occupancy.Add(sequence);
    }
    const absl::Status status = CheckIntegrity(*pool_, sequences);
    RC_ASSERT(status.ok() || Fails(status));
    RC_ASSERT(std::abs(occupancy.total.charged_blocks - static_cast<double>(live_blocks_)) < 1e-6);

    size_t blocks = 0;
    size_t live_bytes = 0;
    std::map<uint64_t, BlockId> block_of_stamp;
    for (size_t i = 0; i < real_.size(); ++i) {
      for (int layer = 0; layer < geometry_.num_layers; ++layer) {
        CheckLayer(real_[i].layer(layer), model_[i][layer], &block_of_stamp, &blocks, &live_bytes);
      }
    }
    RC_ASSERT(block_of_stamp.size() == live_blocks_);
    RC_ASSERT(occupancy.total.blocks == blocks);
    RC_ASSERT(occupancy.total.live_bytes == live_bytes);
    RC_ASSERT(occupancy.total.tail_waste_bytes == blocks * geometry_.block_bytes - live_bytes);
    size_t blocks_by_format = 0;
    for (const LayerOccupancy& format : occupancy.formats) {
      blocks_by_format += format.blocks;
    }
    RC_ASSERT(blocks_by_format == blocks);
  }

  void Finish() {
    real_.clear();
    model_.clear();
    RC_ASSERT(live_blocks_ == 0u);
    RC_ASSERT(pool_->used_blocks() == 0u);
    RC_ASSERT(pool_->CheckIntegrity({}).ok());
    RC_ASSERT(pool_->high_water_blocks() == high_water_);
  }

  size_t refused() const { return refused_; }
  size_t high_water() const { return high_water_; }
  size_t overwritten() const { return overwritten_; }
  size_t shared() const { return shared_; }

 private:
  // Logs `status` into the failure and says false.
  static bool Fails(const absl::Status& status) {
    RC_LOG() << status.ToString() << std::endl;
    return false;
  }

  // Usually all heads; else a group of one or two.
  SegmentOptions Shape(uint32_t shape, CacheFormat format) const {
    SegmentOptions options;
    options.format = format;
    options.num_kv_heads = geometry_.num_kv_heads;
    if (shape % 4 == 0) {
      options.num_kv_heads = 1 + static_cast<int>(shape / 4 % 2);
      options.first_kv_head =
          static_cast<int>(shape / 8 % (geometry_.num_kv_heads - options.num_kv_heads + 1));
    }
    return options;
  }

  void AddSegment(const Operation& op, LayerBlockTable& table, ModelLayer& model) {
    if (model.size() >= 4) {
      return;
    }
    SegmentOptions options =
        Shape(op.shape, op.tokens % 2 ? CacheFormat::kF32 : CacheFormat::kBf16);
    if (op.shape / 64 % 3 == 0) {
      options.ring =
          RingShape{static_cast<int>(op.shape / 256 % 9), static_cast<int>(1 + op.tokens / 2 % 60)};
    }
    const int index = table.AddSegment(options);
    RC_ASSERT(index == static_cast<int>(model.size()));
    model.push_back({});
    model.back().options = options;
    model.back().identity = ++next_stamp_;
  }

  // The other layer of the same sequence that lends or shares, or nullptr where there is none.
  const ModelSegment* Partner(const Operation& op, size_t sequence, int layer, int* other_layer,
                              int* other_segment) {
    *other_layer = static_cast<int>((layer + 1 + op.shape % (geometry_.num_layers - 1)) %
                                    geometry_.num_layers);
    const ModelLayer& other = model_[sequence][*other_layer];
    if (other.empty() || model_[sequence][layer].size() >= 4) {
      return nullptr;
    }
    *other_segment = static_cast<int>(op.segment % other.size());
    return &other[*other_segment];
  }

  void ShareSegment(const Operation& op, size_t sequence, int layer) {
    int other_layer = 0;
    int other_segment = 0;
    if (Partner(op, sequence, layer, &other_layer, &other_segment) == nullptr) {
      return;
    }
    ModelSegment& theirs = model_[sequence][other_layer][other_segment];
    theirs.is_frozen = true;
    real_[sequence].layer(layer).ShareSegment(real_[sequence].layer(other_layer), other_segment);
    model_[sequence][layer].push_back(theirs);
    model_[sequence][layer].back().identity = ++next_stamp_;
    ++shared_;
  }

  void AddValuesSegment(const Operation& op, size_t sequence, int layer) {
    int other_layer = 0;
    int other_segment = 0;
    const ModelSegment* theirs = Partner(op, sequence, layer, &other_layer, &other_segment);
    if (theirs == nullptr || IsValuesOnly(theirs->options.format)) {
      return;
    }
    SegmentOptions options;
    options.format = theirs->options.format == CacheFormat::kF32 ? CacheFormat::kF32Values
                                                                 : CacheFormat::kBf16Values;
    const bool one_head = op.tokens % 3 == 0;
    options.num_kv_heads = one_head ? 1 : theirs->options.num_kv_heads;
    options.first_kv_head =
        theirs->options.first_kv_head + (one_head ? theirs->options.num_kv_heads - 1 : 0);
    options.ring = theirs->options.ring;
    real_[sequence].layer(layer).AddValuesSegment(options, real_[sequence].layer(other_layer),
                                                  other_segment);
    ModelSegment ours;
    ours.options = options;
    ours.keys = theirs->blocks;
    ours.keys_identity = theirs->identity;
    ours.key_slots = static_cast<int>(theirs->slot_tokens.size());
    ours.identity = ++next_stamp_;
    model_[sequence][layer].push_back(std::move(ours));
    ++shared_;
  }

  void RefreshKeys(const Operation& op, size_t sequence, int layer) {
    ModelLayer& model = model_[sequence][layer];
    for (size_t i = 0; i < model.size(); ++i) {
      for (int other_layer = 0; other_layer < geometry_.num_layers; ++other_layer) {
        const ModelLayer& other = model_[sequence][other_layer];
        for (size_t j = 0; j < other.size(); ++j) {
          if (model[i].keys_identity == 0 || model[i].is_frozen ||
              model[i].keys_identity != other[j].identity) {
            continue;
          }
          real_[sequence].layer(layer).RefreshKeys(
              static_cast<int>(i), real_[sequence].layer(other_layer), static_cast<int>(j));
          model[i].keys = other[j].blocks;
          model[i].key_slots = static_cast<int>(other[j].slot_tokens.size());
        }
      }
    }
    static_cast<void>(op);
  }

  size_t BlocksFor(const ModelSegment& segment, size_t slots) const {
    const size_t per_block = ModelTokensPerBlock(geometry_, segment.options);
    return (slots + per_block - 1) / per_block;
  }

  // How many tokens the segment may still take without overwriting.
  static int Room(const ModelSegment& segment) {
    const int slots = static_cast<int>(segment.slot_tokens.size());
    int room = 1 << 20;
    if (segment.options.ring) {
      room = std::min(room, segment.options.ring->slots() - slots);
    }
    if (IsValuesOnly(segment.options.format)) {
      room = std::min(room, segment.key_slots - slots);
    }
    return room;
  }

  // Adds the blocks that `slots` need, stamping each one that is new.
  void GrowModel(const LayerBlockTable& table, int index, ModelSegment* segment, size_t slots) {
    while (segment->blocks.size() < BlocksFor(*segment, slots)) {
      const uint64_t stamp = ++next_stamp_;
      const BlockId id = table.view()[index].values.blocks[segment->blocks.size()];
      std::memcpy(pool_->view().Block(id), &stamp, sizeof(stamp));
      segment->blocks.push_back(std::make_shared<ModelBlock>(&live_blocks_, stamp));
    }
    high_water_ = std::max(high_water_, live_blocks_);
  }

  void Extend(const Operation& op, LayerBlockTable& table, ModelLayer& model) {
    if (model.empty()) {
      return;
    }
    const int index = static_cast<int>(op.segment % model.size());
    ModelSegment& segment = model[index];
    if (segment.is_frozen) {
      return;
    }
    const int tokens = std::min(static_cast<int>(op.tokens % 80), Room(segment));
    const size_t slots = segment.slot_tokens.size() + tokens;
    const size_t missing = BlocksFor(segment, slots) - segment.blocks.size();
    RC_ASSERT(table.BlocksToAppend(index, tokens) == missing);
    const bool fits = missing <= pool_->num_blocks() - live_blocks_;
    const absl::Status status = table.Extend(index, tokens);
    RC_ASSERT(status.ok() == fits);
    if (!fits) {
      RC_ASSERT(status.code() == absl::StatusCode::kResourceExhausted);
      ++refused_;
      return;
    }
    GrowModel(table, index, &segment, slots);
    for (int i = 0; i < tokens; ++i) {
      segment.slot_tokens.push_back(segment.tokens_seen++);
    }
  }

  void Append(const Operation& op, LayerBlockTable& table, ModelLayer& model) {
    if (model.empty()) {
      return;
    }
    const int index = static_cast<int>(op.segment % model.size());
    for (uint32_t i = 0; i <= op.tokens % 24; ++i) {
      if (!AppendOne(table, index, &model[index])) {
        return;
      }
    }
  }

  // The slot that AppendSlot should answer with is found by looking for the oldest token.
  bool AppendOne(LayerBlockTable& table, int index, ModelSegment* segment) {
    std::vector<int64_t>& slots = segment->slot_tokens;
    const auto& ring = segment->options.ring;
    const bool overwrites = ring && static_cast<int>(slots.size()) == ring->slots();
    if (segment->is_frozen || (!overwrites && Room(*segment) < 1)) {
      return false;
    }
    const size_t missing =
        overwrites ? 0 : BlocksFor(*segment, slots.size() + 1) - segment->blocks.size();
    RC_ASSERT(table.BlocksToAppend(index, 1) == missing);
    const absl::StatusOr<int> slot = table.AppendSlot(index);
    if (live_blocks_ + missing > pool_->num_blocks()) {
      RC_ASSERT(slot.status().code() == absl::StatusCode::kResourceExhausted);
      ++refused_;
      return false;
    }
    RC_ASSERT(slot.ok());
    if (overwrites) {
      const auto oldest = std::min_element(slots.begin() + ring->sinks, slots.end());
      RC_ASSERT(*slot == oldest - slots.begin());
      *oldest = segment->tokens_seen++;
      ++overwritten_;
    } else {
      RC_ASSERT(*slot == static_cast<int>(slots.size()));
      GrowModel(table, index, segment, slots.size() + 1);
      slots.push_back(segment->tokens_seen++);
    }
    return true;
  }

  // A block that two tables own by mistake would carry the wrong stamp, or two numbers for one.
  void CheckStamps(const BlockId* ids, const ModelBlocks& blocks,
                   std::map<uint64_t, BlockId>* block_of_stamp) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      uint64_t stamp = 0;
      std::memcpy(&stamp, pool_->view().Block(ids[i]), sizeof(stamp));
      RC_ASSERT(stamp == blocks[i]->stamp);
      const auto [it, inserted] = block_of_stamp->emplace(stamp, ids[i]);
      RC_ASSERT(it->second == ids[i]);
    }
  }

  void CheckLayer(const LayerBlockTable& table, const ModelLayer& model,
                  std::map<uint64_t, BlockId>* block_of_stamp, size_t* blocks, size_t* live_bytes) {
    RC_ASSERT(table.num_segments() == static_cast<int>(model.size()));
    for (size_t i = 0; i < model.size(); ++i) {
      const ModelSegment& segment = model[i];
      const SegmentView& view = table.view()[i];
      RC_ASSERT(view.num_slots == static_cast<int>(segment.slot_tokens.size()));
      RC_ASSERT(view.first_kv_head == segment.options.first_kv_head);
      RC_ASSERT(view.num_kv_heads == segment.options.num_kv_heads);
      RC_ASSERT(segment.blocks.size() == BlocksFor(segment, segment.slot_tokens.size()));
      CheckStamps(view.values.blocks, segment.blocks, block_of_stamp);
      const bool values_only = IsValuesOnly(segment.options.format);
      CheckStamps(view.keys.blocks, values_only ? segment.keys : segment.blocks, block_of_stamp);
      *blocks += segment.blocks.size();
      *live_bytes += segment.slot_tokens.size() * geometry_.block_bytes /
                     ModelTokensPerBlock(geometry_, segment.options);
    }
  }

  CacheGeometry geometry_;
  std::unique_ptr<BlockPool> pool_;
  size_t live_blocks_ = 0;  // before model_: its blocks count themselves out here
  std::vector<SequenceCache> real_;
  std::vector<ModelSequence> model_;
  uint64_t next_stamp_ = 0;
  size_t high_water_ = 0;
  size_t refused_ = 0;
  size_t overwritten_ = 0;
  size_t shared_ = 0;
};

}  // namespace ziggurat

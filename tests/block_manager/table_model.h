// A plain model of many sequences' block tables, against which the real ones are run.
//
// It counts blocks by filling them (format_list.h, not the code under test) and keeps them as
// std::shared_ptr, so that "in use" is simply "some list still points to it", and a block's
// reference count is the number of such lists.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "block_manager/layer_block_table.h"
#include "tests/block_manager/format_list.h"

namespace ziggurat {

/// One block in use; `stamp` is what its owner wrote into it.
struct ModelBlock {
  explicit ModelBlock(size_t* live_count, uint64_t block_stamp)
      : live(live_count), stamp(block_stamp) {
    ++*live;
  }
  ~ModelBlock() { --*live; }
  ModelBlock(const ModelBlock&) = delete;
  ModelBlock& operator=(const ModelBlock&) = delete;

  size_t* live;
  uint64_t stamp;
};
using ModelBlocks = std::vector<std::shared_ptr<ModelBlock>>;

struct ModelSegment {
  SegmentOptions options;  ///< num_kv_heads is never 0
  std::vector<ExpectedPlane> shape;
  std::vector<ModelBlocks> planes;  ///< one for each of `shape`
  /// Which token (numbered as they came) each slot holds.
  std::vector<int64_t> slot_tokens;
  int64_t tokens_seen = 0;

  uint64_t identity = 0;
  /// The segment that this one refers to or borrows keys from, if any. No table holds a segment of
  /// that identity any more once the other layer has been cleared.
  uint64_t source = 0;
  bool refers = false;     ///< the blocks are the source's
  bool is_shared = false;  ///< others refer, or have referred, to this one
  bool is_lent = false;    ///< others read, or have read, these keys
  /// Values-only: the borrowed codes and scales, and how many slots they had when last refreshed.
  std::vector<ModelBlocks> keys;
  int key_slots = 0;

  int slots() const { return static_cast<int>(slot_tokens.size()); }
  bool values_only() const { return options.format.values_only; }
  /// A full ring that is in the middle of a lap holds newer tokens before older ones.
  bool is_in_order() const { return std::is_sorted(slot_tokens.begin(), slot_tokens.end()); }
  size_t blocks() const {
    size_t count = 0;
    for (const ModelBlocks& plane : planes) {
      count += plane.size();
    }
    return count;
  }
  size_t borrowed_blocks() const {
    size_t count = 0;
    for (const ModelBlocks& plane : keys) {
      count += plane.size();
    }
    return count;
  }
  /// Blocks that are not there yet, of all planes.
  size_t Missing(size_t block_bytes, size_t slots) const {
    size_t missing = 0;
    for (size_t p = 0; p < shape.size(); ++p) {
      missing += shape[p].BlocksFor(block_bytes, slots) - planes[p].size();
    }
    return missing;
  }
  /// How many tokens it may still take without overwriting.
  int Room() const {
    int room = 1 << 20;
    if (options.ring) {
      room = std::min(room, options.ring->slots() - slots());
    }
    if (values_only()) {
      room = std::min(room, key_slots - slots());
    }
    return room;
  }
};

using ModelLayer = std::vector<ModelSegment>;
using ModelSequence = std::vector<ModelLayer>;

}  // namespace ziggurat

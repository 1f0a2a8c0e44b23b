// A plain model of many sequences' block tables, against which the real ones are run.
//
// It counts blocks by the definition (ceil of tokens over tokens per block, written out here rather
// than taken from the code under test) and keeps them as std::shared_ptr, so that "in use" is
// simply "some list still points to it".
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "block_manager/sequence_cache.h"

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
  ModelBlocks blocks;
  ModelBlocks keys;  ///< values-only: the borrowed ones
  /// Which token (numbered as they came) each slot holds.
  std::vector<int64_t> slot_tokens;
  int64_t tokens_seen = 0;
  bool is_frozen = false;
  /// Values-only: where its keys come from, to refresh them, and how many slots they had. The
  /// source's identity is gone (0) when its table has been cleared.
  uint64_t keys_identity = 0;
  int key_slots = 0;
  uint64_t identity = 0;
};

using ModelLayer = std::vector<ModelSegment>;
using ModelSequence = std::vector<ModelLayer>;

inline int ModelTokensPerBlock(const CacheGeometry& geometry, const SegmentOptions& options) {
  const bool f32 = options.format == CacheFormat::kF32 || options.format == CacheFormat::kF32Values;
  const bool both = options.format == CacheFormat::kF32 || options.format == CacheFormat::kBf16;
  const size_t token_bytes = static_cast<size_t>(options.num_kv_heads) * geometry.head_dim *
                             (f32 ? 4 : 2) * (both ? 2 : 1);
  return static_cast<int>(geometry.block_bytes / token_bytes);
}

}  // namespace ziggurat

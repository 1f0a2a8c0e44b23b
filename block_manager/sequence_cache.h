// The KV cache of one sequence: a table of blocks for every layer.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "block_manager/block_pool.h"
#include "block_manager/cache_format.h"
#include "block_manager/layer_block_table.h"

namespace ziggurat {

/// All layers of one sequence. Movable; a move keeps every LayerView valid. Engine thread only.
class SequenceCache {
 public:
  /// Both must outlive the sequence.
  SequenceCache(BlockPool* pool, const CacheGeometry* geometry);

  int num_layers() const { return static_cast<int>(layers_.size()); }
  LayerBlockTable& layer(int index) { return layers_[index]; }
  const LayerBlockTable& layer(int index) const { return layers_[index]; }
  /// Sum of the layers' blocks(): a block that two layers share counts twice. O(segments).
  size_t blocks() const;
  /// As LayerBlockTable's, for all layers. To prove conservation see CheckIntegrity below.
  void AppendReferences(std::vector<BlockId>* out) const;
  absl::Status CheckIntegrity() const;

 private:
  std::vector<LayerBlockTable> layers_;
};

/// Proves conservation: the pool's free list and counts agree, every table of every sequence is
/// sound, and each block has exactly as many references as tables name it; so `sequences` must be
/// all that live in `pool`. INTERNAL names what is wrong. O(pool blocks + references).
absl::Status CheckIntegrity(const BlockPool& pool,
                            absl::Span<const SequenceCache* const> sequences);

}  // namespace ziggurat

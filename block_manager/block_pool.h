// The one pool that every layer of every sequence takes its blocks from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "block_manager/segment_view.h"

namespace ziggurat {

/// One slab of memory cut into blocks of equal bytes, with a reference count for each.
///
/// Owned and called by the engine thread only; no locks. Memory is reserved at creation and becomes
/// resident when a block is first written. Freed blocks are reused last-in first-out, and a block
/// that was never used is taken only when no freed one is left, lowest number first: so the blocks
/// ever written are [0, high_water_blocks()), and the resident part is at most these, rounded up to
/// a page (to one huge page of 2 MiB once they pass 64 MiB). The destructor aborts unless every
/// block came back; so does a call that releases or refers to a block that is free or does not
/// exist.
///
/// Allocate, AddReference and Release cost O(blocks named); creation O(num_blocks) for the counts.
class BlockPool {
 public:
  /// Fails with INVALID_ARGUMENT for zero sizes, 2^32 blocks or more, or a block size that is no
  /// multiple of 64; with RESOURCE_EXHAUSTED where the memory cannot be reserved. `memory`: a
  /// device's, which outlives the pool and is never touched by it; null: the host's.
  static absl::StatusOr<std::unique_ptr<BlockPool>> Create(size_t num_blocks, size_t block_bytes,
                                                           std::byte* memory = nullptr);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  /// Fills `out` with blocks of reference count 1. All or nothing: RESOURCE_EXHAUSTED leaves the
  /// pool as it was. An empty span is always safe.
  absl::Status Allocate(absl::Span<BlockId> out);
  /// Adds one reference to each block (a segment shared by two layers).
  void AddReference(absl::Span<const BlockId> blocks);
  /// Drops one reference from each block; a block whose count falls to 0 is free at once.
  void Release(absl::Span<const BlockId> blocks);

  size_t num_blocks() const { return reference_counts_.size(); }
  size_t block_bytes() const { return block_bytes_; }
  size_t used_blocks() const { return high_water_ - free_.size(); }
  size_t free_blocks() const { return num_blocks() - used_blocks(); }
  /// The most blocks ever in use at once.
  size_t high_water_blocks() const { return high_water_; }
  uint32_t reference_count(BlockId id) const { return reference_counts_[id]; }
  PoolView view() const { return {base_, block_bytes_}; }

  /// Proves that free list and reference counts agree, that no block is free twice, and, where
  /// `owners` is given (one entry for each reference held by any table), that every count equals
  /// the number of its owners. INTERNAL names the first block that is wrong.
  absl::Status CheckIntegrity() const;
  absl::Status CheckIntegrity(absl::Span<const BlockId> owners) const;

 private:
  BlockPool(std::byte* base, bool is_hosts, size_t num_blocks, size_t block_bytes);
  void CheckInUse(BlockId id, const char* what) const;

  std::byte* base_;
  bool is_hosts_;
  size_t block_bytes_;
  std::vector<uint32_t> reference_counts_;
  std::vector<BlockId> free_;  // a stack of blocks that were used before
  size_t high_water_ = 0;      // blocks from here on were never used
};

}  // namespace ziggurat

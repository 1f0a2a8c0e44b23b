// The KV cache of one sequence: for every layer, a short list of segments out of one pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "block_manager/block_pool.h"
#include "block_manager/cache_format.h"
#include "block_manager/segment_view.h"

namespace ziggurat {

/// A segment that overwrites: `sinks` slots that stay and a ring of `recent` slots behind them.
struct RingShape {
  int sinks = 0;
  int recent = 0;
};

/// What a new segment is.
struct SegmentOptions {
  CacheFormat format = CacheFormat::kBf16;
  int first_kv_head = 0;
  int num_kv_heads = 0;                ///< 0: all heads of the model together
  std::optional<RingShape> ring = {};  ///< absent: grows without end
};

/// What one layer of one sequence really holds.
struct LayerOccupancy {
  size_t blocks = 0;           ///< blocks referred to (a shared block counts for each layer)
  size_t live_bytes = 0;       ///< bytes of blocks that hold live tokens
  size_t tail_waste_bytes = 0; ///< blocks * block_bytes - live_bytes
  size_t tokens = 0;           ///< physical length: slots of the longest head
};

/// The list of segments of one layer of one sequence. Owns references to the blocks it names.
///
/// Engine thread only. Views stay valid until the next call that changes the table.
class LayerBlockTable {
 public:
  LayerBlockTable(BlockPool* pool, const CacheGeometry* geometry) : pool_(pool), geometry_(geometry) {}
  ~LayerBlockTable() { Clear(); }
  LayerBlockTable(LayerBlockTable&& other) noexcept;
  LayerBlockTable& operator=(LayerBlockTable&&) = delete;
  LayerBlockTable(const LayerBlockTable&) = delete;
  LayerBlockTable& operator=(const LayerBlockTable&) = delete;

  /// Adds an empty segment and returns its index. `options` must be valid for the geometry (CHECK).
  int AddSegment(const SegmentOptions& options);
  /// Adds a segment that refers to the blocks of `other`'s segment (one reference more for each),
  /// for two layers that share it. Neither side may grow it afterwards.
  int ShareSegment(const LayerBlockTable& other, int segment);
  /// Adds a values-only segment whose keys are read from `keys_of`'s segment (one reference more
  /// for each of its blocks), so that this layer attends with another layer's keys.
  int AddValuesSegment(const SegmentOptions& options, const LayerBlockTable& keys_of, int segment);

  /// Grows segment `segment` by `tokens` slots. RESOURCE_EXHAUSTED leaves the table as it was. A
  /// ring may not be grown past sinks + recent (CHECK).
  absl::Status Extend(int segment, int tokens);
  /// The slot where the next token of `segment` is written: a new one (a block is allocated when
  /// the last one is full), or in a full ring the oldest slot of the ring, which is overwritten.
  absl::StatusOr<int> AppendSlot(int segment);
  /// Blocks that `AppendSlot` called `tokens` times would allocate.
  size_t BlocksToAppend(int segment, size_t tokens) const;

  /// Releases every block and forgets all segments. Always safe.
  void Clear();

  int num_segments() const { return static_cast<int>(segments_.size()); }
  LayerView view() const { return views_; }
  /// All block references held by this table, appended to `out` (for `BlockPool::CheckIntegrity`).
  void AppendOwnedBlocks(std::vector<BlockId>* out) const;
  LayerOccupancy occupancy() const;
  /// The same, apart for each format (index: CacheFormat).
  void AddOccupancyByFormat(absl::Span<LayerOccupancy> by_format) const;
  absl::Status CheckIntegrity() const;

 private:
  struct Segment {
    SegmentOptions options;
    std::vector<BlockId> planes[kMaxPlanes];  ///< block numbers of each plane, in slot order
    std::vector<BlockId> borrowed_keys;       ///< AddValuesSegment: the other layer's blocks
    int num_slots = 0;
    int ring_cursor = 0;      ///< next slot of a full ring to overwrite, from `sinks` on
    bool is_frozen = false;   ///< shared by two layers: may not grow
  };
  BlockPool* pool_;
  const CacheGeometry* geometry_;
  std::vector<Segment> segments_;
  std::vector<SegmentView> views_;
};

/// All layers of one sequence. The logical length (positions, RoPE, limits) is the engine's; here
/// only what each layer physically holds.
class SequenceCache {
 public:
  SequenceCache(BlockPool* pool, const CacheGeometry* geometry);

  int num_layers() const { return static_cast<int>(layers_.size()); }
  LayerBlockTable& layer(int index) { return layers_[index]; }
  const LayerBlockTable& layer(int index) const { return layers_[index]; }
  size_t blocks() const;
  void Clear();
  absl::Status CheckIntegrity() const;

 private:
  std::vector<LayerBlockTable> layers_;
};

}  // namespace ziggurat

// The KV cache of one layer of one sequence: a short list of segments out of one pool.
//
// Logical against physical length: how many tokens a sequence has seen (positions, RoPE, limits) is
// the engine's number. A table knows only slots, that is what a layer physically holds; the two
// part as soon as a policy evicts, and differ from layer to layer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "block_manager/block_pool.h"
#include "block_manager/cache_format.h"
#include "block_manager/occupancy.h"
#include "block_manager/segment_layout.h"
#include "block_manager/segment_view.h"

namespace ziggurat {

/// The list of segments of one layer of one sequence. Owns references to the blocks it names.
///
/// Engine thread only. `view()` follows every change by itself. A span taken from it keeps its
/// address, and sees the new slots and blocks, until a segment is added, the table is cleared or
/// moved; so it may be taken once per sequence. Kernels may read it while the table is not changed.
class alignas(64) LayerBlockTable {
 public:
  /// Both must outlive the table; `geometry` has passed `CacheGeometry::Validate`.
  LayerBlockTable(BlockPool* pool, const CacheGeometry* geometry)
      : pool_(pool), geometry_(geometry) {}
  ~LayerBlockTable() { Clear(); }
  LayerBlockTable(LayerBlockTable&& other) noexcept;
  LayerBlockTable& operator=(LayerBlockTable&&) = delete;
  LayerBlockTable(const LayerBlockTable&) = delete;
  LayerBlockTable& operator=(const LayerBlockTable&) = delete;

  /// Adds an empty segment and returns its index. `options` must be valid for the geometry
  /// (CheckFormat), not values-only, and no ring of a grouped encoding, whose slots cannot be
  /// overwritten one by one (CHECK). No block is taken before it grows.
  int AddSegment(const SegmentOptions& options);
  /// Adds a segment that refers to the blocks of `other`'s segment (one reference more for each),
  /// for two layers that share it. This side may not grow it (CHECK), and follows what the other
  /// side has grown by RefreshShared; either may be cleared or destroyed first. Of a merged segment
  /// `other` is the lower layer, this one the upper: the views show the norms of each.
  int ShareSegment(LayerBlockTable& other, int segment);
  /// Follows `other`'s segment, the one given to ShareSegment: takes references to the blocks that
  /// it has gained since, drops those to blocks that it gave up, shows as many slots as it does
  /// now. Keys that others read from this side may not get fewer (CHECK).
  void RefreshShared(int segment, const LayerBlockTable& other, int other_segment);
  /// Adds an empty values-only segment whose keys are read from `keys_of`'s segment (one reference
  /// more for each of its blocks), so that this layer attends with another layer's keys. Slot s of
  /// the values goes with slot s of the keys: the two must be filled in the same order, and this
  /// segment may not grow past the keys (CHECK). The keys' segment must store keys of the same
  /// encoding for all the heads of `options`, and not merged ones (CHECK); it may go on growing
  /// (see RefreshKeys), and its view is marked as one whose log-sum-exp others want (SegmentUse).
  int AddValuesSegment(const SegmentOptions& options, LayerBlockTable& keys_of, int segment);
  /// Takes references to the key blocks that `keys_of`'s segment, the one given to
  /// AddValuesSegment, has gained since, so that this segment may grow as far as the keys now do.
  void RefreshKeys(int segment, const LayerBlockTable& keys_of, int keys_segment);

  /// Grows segment `segment` by `tokens` slots. RESOURCE_EXHAUSTED leaves the table as it was. A
  /// ring may not be grown past sinks + recent (CHECK).
  absl::Status Extend(int segment, int tokens);
  /// Makes room in the segment's lists of blocks for `slots` slots, so that they need not move when
  /// it grows that far: 4 bytes a block. Takes no blocks.
  void ReserveLists(int segment, size_t slots);
  /// Shrinks segment `segment` to its first `slots` slots and releases the blocks behind them. A
  /// layer that shares the segment must follow at once (RefreshShared). Not for the side that
  /// refers, for keys that others read, nor for a ring that has wrapped (CHECK).
  void Truncate(int segment, int slots);
  /// Whether RemoveFirst may be asked: no block holds both slots that go and slots that stay, and
  /// nobody else reads the segment.
  bool CanRemoveFirst(int segment, int slots) const;
  /// Gives up the first `slots` slots of segment `segment` with their blocks; slot s becomes slot
  /// s - slots, where it is. For what CanRemoveFirst allows (CHECK).
  void RemoveFirst(int segment, int slots);
  /// Makes a growing segment a ring from now on. It must not hold more than the ring's slots, be of
  /// a grouped encoding, nor be shared (CHECK). What TakeAhead took is released.
  void MakeRing(int segment, RingShape ring);
  /// The slot where the next token of `segment` is written: a new one (a block is allocated when
  /// the last one is full), or in a full ring the oldest slot of the ring, which is overwritten.
  /// The ring's slots count as filled in the order sinks, then oldest to newest, as Extend made
  /// them. RESOURCE_EXHAUSTED leaves the table as it was. O(1); it is called for every layer of
  /// every sequence in every step.
  absl::StatusOr<int> AppendSlot(int segment) {
    Segment& s = segments_[segment];
    const int slot = s.next_slot;
    if (slot == s.append_limit) [[unlikely]] {
      return AppendSlotSlow(segment);
    }
    s.next_slot = slot + 1;
    int& num_slots = views_[segment].num_slots;
    num_slots = std::max(num_slots, slot + 1);
    return slot;
  }
  /// The slot that AppendSlot hands out where there is room for it.
  int next_slot(int segment) const { return segments_[segment].next_slot; }
  /// Slots that AppendSlot hands out one behind the other before it has to think.
  int RoomToAppend(int segment) const {
    return segments_[segment].append_limit - segments_[segment].next_slot;
  }
  /// AppendSlot `count` times, for at most RoomToAppend (CHECK): whoever knows that the slots
  /// follow one another may leave it to later, many tokens at once.
  void AppendSlots(int segment, int count);
  /// Asks memory for what AppendSlot touches of a table with one segment, and once that is here
  /// (PrefetchBlocks) for the end of its block list.
  void Prefetch() const {
    const auto* bytes = reinterpret_cast<const char*>(this);
    for (size_t at = 0; at < kHotBytes; at += kCacheLineBytes) __builtin_prefetch(bytes + at, 1);
    __builtin_prefetch(&views_, 1);
  }
  void PrefetchBlocks(int segment) const {
    const std::vector<BlockId>& blocks = segments_[segment].planes[0];
    __builtin_prefetch(blocks.data() + blocks.size(), 1);
  }
  /// Takes the blocks that AppendSlot would take now, so that it finds room; no slot counts yet.
  /// False, and nothing is taken, where there are none, or where it would do more than that: in a
  /// segment that refers to another layer's, or another layer to it, and in a full ring.
  bool TakeAhead(int segment);
  /// Releases what TakeAhead took, if no slot has come since.
  void ReleaseAhead(int segment);
  /// Blocks that `AppendSlot` called `tokens` times would allocate. O(1).
  size_t BlocksToAppend(int segment, size_t tokens) const {
    const Segment& s = segments_[segment];
    const auto room = static_cast<size_t>(s.append_limit - s.next_slot);
    return tokens <= room ? 0 : BlocksToAppendSlow(segment, tokens);
  }

  /// Releases every block and forgets all segments. Always safe.
  void Clear();

  int num_segments() const { return static_cast<int>(segments_.size()); }
  LayerView view() const { return views_; }
  /// Blocks of this layer's own planes (LayerOccupancy::blocks). O(segments).
  size_t blocks() const;
  /// The same without those of segments that refer to another layer's.
  size_t owned_blocks() const { return owned_blocks_; }
  /// All block references held by this table, shared and borrowed ones too, appended to `out` (for
  /// `BlockPool::CheckIntegrity`).
  void AppendReferences(std::vector<BlockId>* out) const;
  /// O(segments).
  LayerOccupancy occupancy() const;
  /// The same, apart for each format, added to `by_format`. Formats that hold nothing are left out.
  void AddOccupancyByFormat(OccupancyByFormat* by_format) const;
  /// Proves that blocks, slots, ring cursors and views of every segment agree, and that every block
  /// is in use. INTERNAL names the first segment that is wrong.
  absl::Status CheckIntegrity() const;

 private:
  /// Who else names a segment's blocks. It only ever rises: who no longer does is not noted.
  enum class Sharing : uint8_t {
    kAlone,   ///< nobody
    kLent,    ///< values-only segments of other layers read the keys
    kShared,  ///< segments of other layers refer to it as a whole
    kRefers,  ///< it refers to another layer's segment, which alone may grow
  };

  /// What a plain segment needs to grow comes first (kHotBytes).
  struct Segment {
    /// The slot that AppendSlot hands out, and where it must stop and think: at the end of the
    /// blocks, of the ring, of the borrowed keys, or (kRefers) at once, where the two are equal.
    int next_slot = 0;
    int append_limit = 0;
    bool grows_plainly = false;  ///< IsPlain(), kept here where what that looks at is not
    Sharing sharing = Sharing::kAlone;
    int num_planes = 0;
    uint32_t slots_per_block[kMaxPlanes] = {};  ///< of each plane
    std::vector<BlockId> planes[kMaxPlanes];    ///< block numbers of each plane, in slot order
    SegmentOptions options;                     ///< num_kv_heads is never 0
    /// Values-only: the other layer's blocks of codes, and of grouped or per-token scales.
    std::vector<BlockId> borrowed_keys;
    std::vector<BlockId> borrowed_scales;
    int borrowed_slots = 0;  ///< slots of the keys when last refreshed

    bool refers() const { return sharing == Sharing::kRefers; }
    bool borrows_keys() const { return options.format.values_only; }
    /// Grows by a block of its one plane whenever that is full, and in no other way.
    bool IsPlain() const {
      return num_planes == 1 && !options.ring && !borrows_keys() && !refers();
    }
    /// Of a plane, for so many slots.
    size_t BlocksFor(int plane, size_t slots) const {
      return DivideUp(slots, slots_per_block[plane]);
    }
  };

  /// A ring in which the next token overwrites the oldest one.
  bool IsFullRing(int segment) const {
    const std::optional<RingShape>& ring = segments_[segment].options.ring;
    return ring && views_[segment].num_slots == ring->slots();
  }
  absl::StatusOr<int> AppendSlotSlow(int segment);
  absl::Status TakeBlock(int segment);
  absl::Status TakeBlocks(int segment, int num_slots);
  void ReleaseBehind(int segment, int num_slots);
  size_t BlocksToAppendSlow(int segment, size_t tokens) const;
  size_t CountOwnedBlocks() const;
  SegmentOptions Normalized(SegmentOptions options) const;
  int PushSegment(Segment segment, SegmentView view);
  absl::Status Grow(int segment, int new_num_slots);
  void TakeReferences(const std::vector<BlockId>& theirs, std::vector<BlockId>* ours);
  static int AppendLimitOf(const Segment& s);
  void SetAppendLimit(int segment);
  void RefreshViewPointers(int segment);
  PlaneList PlanesOfSegment(const Segment& segment) const;
  LayerOccupancy SegmentOccupancy(int segment) const;
  absl::Status CheckSegment(int segment) const;
  absl::Status CheckPlanes(int segment) const;
  absl::Status CheckCursor(int segment) const;

  // Tables lie one behind the other, and most steps that look at one take a block for its only
  // segment, which is therefore kept in place, with what that needs in as few lines as can be.
  // views_[i] describes segments_[i] and alone holds its number of slots.
  BlockPool* pool_;
  const CacheGeometry* geometry_;
  size_t owned_blocks_ = 0;
  absl::InlinedVector<Segment, 1> segments_;
  absl::InlinedVector<SegmentView, 1> views_;

  static constexpr size_t kCacheLineBytes = 64;
  /// Of the table, up to the first plane of its first segment.
  static constexpr size_t kHotBytes =
      4 * sizeof(void*) + offsetof(Segment, planes) + sizeof(std::vector<BlockId>);
};

}  // namespace ziggurat

// Operations on many sequences' block tables, run on the real tables and on the model beside them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <ostream>
#include <vector>

#include "block_manager/sequence_cache.h"
#include "tests/block_manager/table_model.h"

namespace ziggurat {

enum class Kind : uint8_t {
  kAddSegment,
  kShareSegment,
  kRefreshShared,
  kAddValuesSegment,
  kRefreshKeys,
  kExtend,
  kAppend,
  kTakeAhead,
  kTruncate,
  kRemoveFirst,
  kMakeRing,
  kClearLayer,
  kClearSequence,
  kReplaceSequence,
  kMoveSequence,
};
inline constexpr const char* kKindNames[] = {
    "AddSegment", "ShareSegment", "RefreshShared", "AddValuesSegment", "RefreshKeys",
    "Extend",     "Append",       "TakeAhead",     "Truncate",         "RemoveFirst",
    "MakeRing",   "ClearLayer",   "ClearSequence", "ReplaceSequence",  "MoveSequence"};

/// One operation. The numbers are taken modulo what exists when it runs, so that any part of a list
/// of operations is again a valid list: that is what lets it shrink.
struct Operation {
  Kind kind = Kind::kAppend;
  uint32_t sequence = 0;
  uint32_t layer = 0;
  uint32_t segment = 0;
  uint32_t shape = 0;  ///< format, head group, ring
  uint32_t tokens = 0;
};

inline std::ostream& operator<<(std::ostream& os, const Operation& op) {
  return os << kKindNames[static_cast<int>(op.kind)] << "(" << op.sequence << ", " << op.layer
            << ", " << op.segment << ", shape " << op.shape << ", tokens " << op.tokens << ")";
}

/// How often what was to be tried was tried.
struct MachineCounts {
  size_t refused = 0;      ///< growth, for want of blocks
  size_t ahead = 0;        ///< blocks taken before the slot
  size_t overwritten = 0;  ///< slots of rings
  size_t shared = 0;
  size_t followed = 0;  ///< refreshes of a shared segment that gained or lost slots
  size_t shrunk = 0;    ///< of these, that lost some
  size_t lent = 0;
  size_t truncated = 0;     ///< segments that gave slots back
  size_t cut_in_front = 0;  ///< segments that gave up their first slots
  size_t ringed = 0;        ///< growing segments made rings
  size_t high_water = 0;

  void Add(const MachineCounts& other);
};
std::ostream& operator<<(std::ostream& os, const MachineCounts& counts);

/// The real tables and their model, driven together. Every disagreement fails the property.
class TableMachine {
 public:
  TableMachine(int num_sequences, size_t pool_blocks, CacheGeometry geometry);

  void Run(const Operation& op);
  /// Everything that one operation may have broken and that is cheap to see.
  void CheckPool(const Operation& op);
  /// Everything: blocks, their contents and reference counts, views, occupancy.
  void CheckAll();
  /// Clears everything; the pool must be whole.
  void Finish();

  const MachineCounts& counts() const { return counts_; }

 private:
  struct Place {
    int layer = 0;
    int segment = 0;
  };

  SegmentOptions AnyShape(const Operation& op) const;
  int Push(ModelLayer& model, ModelSegment segment);
  void AddSegment(const Operation& op, LayerBlockTable& table, ModelLayer& model);
  /// A segment of another layer of the same sequence, or nullptr where there is none.
  ModelSegment* Partner(const Operation& op, size_t sequence, int layer, Place* place);
  void ShareSegment(const Operation& op, size_t sequence, int layer);
  void AddValuesSegment(const Operation& op, size_t sequence, int layer);
  /// Where the segment of that identity is now; false where it is gone.
  bool Find(size_t sequence, uint64_t identity, Place* place) const;
  /// All segments of the layer that refer to others.
  void RefreshShared(size_t sequence, int layer);
  void Follow(size_t sequence, const Place& ours, const Place& theirs);
  void RefreshKeys(size_t sequence, int layer);
  static int AnySegment(const Operation& op, const ModelLayer& model);
  void Extend(const Operation& op, LayerBlockTable& table, ModelLayer& model);
  void Append(const Operation& op, LayerBlockTable& table, ModelLayer& model);
  /// The block of the next slot before the slot, and then the slots that there is room for, or
  /// none.
  void TakeAhead(const Operation& op, LayerBlockTable& table, ModelLayer& model);
  bool AppendOne(LayerBlockTable& table, int index, ModelSegment* segment);
  /// Whether it, and all that follow it, may get fewer slots.
  bool MayShrink(size_t sequence, const ModelSegment& segment) const;
  void Truncate(const Operation& op, size_t sequence, int layer);
  void RemoveFirst(const Operation& op, size_t sequence, int layer);
  void FollowAll(size_t sequence, const Place& place);
  void MakeRing(const Operation& op, LayerBlockTable& table, ModelLayer& model);
  void GrowModel(const LayerBlockTable& table, int index, ModelSegment* segment, int tokens);

  using BlockOfStamp = std::map<uint64_t, BlockId>;
  void CheckStamps(const BlockId* ids, const ModelBlocks& blocks, BlockOfStamp* block_of_stamp);
  void CheckSegment(const SegmentView& view, const ModelSegment& segment,
                    BlockOfStamp* block_of_stamp);
  void CheckOccupancy(const LayerBlockTable& table, const ModelLayer& model);
  LayerOccupancy Expected(const ModelSegment& segment) const;

  CacheGeometry geometry_;
  std::vector<CacheFormat> formats_;
  std::unique_ptr<BlockPool> pool_;
  size_t live_blocks_ = 0;  // before model_: its blocks count themselves out here
  std::vector<SequenceCache> real_;
  std::vector<ModelSequence> model_;
  uint64_t next_stamp_ = 0;
  MachineCounts counts_;
};

}  // namespace ziggurat

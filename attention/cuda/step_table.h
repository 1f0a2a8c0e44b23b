// A table (device_views.h) that lives as long as the daemon: the host's mirror of it, and what has
// changed since the device last heard.
//
// A sequence's records and block lists stay at their words, so a step sends what changed and
// nothing else. Of a layer that only grows that is a word where a block was added: the device
// counts its slots on by itself (DeviceGrowth). Changes go as patches, one for each word, which a
// kernel applies on the step's stream before anything reads the table (LaunchApplyPatches). Patches
// lie in pinned memory that the device reads itself.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "attention/backend.h"
#include "attention/cuda/device_views.h"
#include "attention/cuda/extents.h"
#include "attention/cuda/segment_record.h"
#include "attention/cuda/stream.h"

namespace ziggurat::cuda {

struct TablePatch {
  uint32_t word = 0;
  uint32_t value = 0;
};

/// Where a layer of a sequence stands in the table.
struct LayerTable {
  struct BlockList {
    uint32_t word = 0;
    uint32_t capacity = 0;
    uint32_t count = 0;
  };
  struct Segment {
    BlockList lists[kSegmentPlanes];
  };

  uint32_t records = 0;  ///< word of the first DeviceSegment
  std::vector<Segment> segments;
};

/// The device's copy must start as zeros: words that are 0 are never sent. Words that the device
/// changes itself (DeviceGrowth) are to be sent again before they are freed. Not thread-safe.
class StepTable {
 public:
  static constexpr uint32_t kFull = Extents::kFull;

  explicit StepTable(uint32_t capacity_words);

  uint32_t capacity_words() const { return static_cast<uint32_t>(mirror_.size()); }
  uint32_t used_words() const { return extents_.used(); }
  /// What the device has once all patches are applied, but for what it has changed itself.
  absl::Span<const uint32_t> mirror() const { return mirror_; }

  /// An extent of at least `words` words at an even word, never 0; kFull where there is none. Its
  /// content is what was there before.
  uint32_t Allocate(uint32_t words) { return extents_.Allocate(words); }
  /// `words` as it was asked for.
  void Free(uint32_t word, uint32_t words) { extents_.Free(word, words); }

  /// Changes a word. Costs a patch only where the value is another.
  void Set(uint32_t word, uint32_t value);
  template <typename Record>
  void Put(uint32_t word, const Record& record) {
    static_assert(sizeof(Record) % sizeof(uint32_t) == 0);
    PutWords(word, &record, sizeof(Record) / sizeof(uint32_t));
  }

  /// Sends a word again, though it has not changed here: the device may have changed it.
  void Resend(uint32_t word);

  /// Room for a layer of up to `max_segments` segments. False where the table is full.
  bool AddLayer(int max_segments, LayerTable* layer);
  /// Makes the layer's records those of the item's segments, at most as many as it has room for
  /// (CHECK), with their live slots (LiveSlots). False where the table is full: then records may
  /// name lists that have moved, and the layer must be removed before anything is launched.
  bool UpdateLayer(const DecodeItem& item, LayerTable* layer);
  /// Adds the blocks that the item's segments have got since, of which nothing else has changed but
  /// what the device counts on by itself. False, and nothing is changed, where a list has no room:
  /// then its record changes too.
  bool AddBlocks(const DecodeItem& item, LayerTable* layer);
  void RemoveLayer(LayerTable* layer);

  /// Changes since the last call of Sent(), one for each word, in no order.
  absl::Span<const TablePatch> patches();
  /// The patches have been handed over. Their memory is the caller's from then on.
  void Sent();

 private:
  /// False: there is one already.
  bool AddPatch(uint32_t word);
  void PutWords(uint32_t word, const void* data, size_t words);
  bool UpdateList(const PlaneView& plane, int slots, LayerTable::BlockList* list);
  void TellBlocks(const PlaneView& plane, uint32_t count, LayerTable::BlockList* list);

  std::vector<uint32_t> mirror_;
  std::vector<uint64_t> has_patch_;  ///< a bit of each word: few enough for a CPU's cache
  std::vector<TablePatch> patches_;
  bool are_outdated_ = false;  ///< a word has changed again since its patch was made
  Extents extents_;
};

/// How a layer of an item goes on from step to step without a patch: its new token goes one slot
/// on, in a segment that grows as far (DecodeInput::Layer). Words that are written here are the
/// device's: the mirror has them as of the last patch.
struct DeviceGrowth {
  uint32_t num_slots = 0;  ///< word of the growing segment's count; 0: nothing grows
  uint32_t slot = 0;       ///< word of the target's slot
  int32_t base_slots = 0;  ///< what both were in step `as_of`
  int32_t base_slot = 0;
  int32_t as_of = 0;
  int32_t padding = 0;
};

/// Where the items of all layers stand, and how they go on; those of a layer follow one another,
/// and so do the layers.
struct StepItems {
  uint32_t items = 0;    ///< word of the first DeviceItem: [layers, capacity]
  uint32_t growths = 0;  ///< word of the first DeviceGrowth: [layers, capacity]
  uint32_t count = 0;    ///< word that holds how many items a layer has
  int32_t layers = 0;
  int32_t capacity = 0;
};

/// Gives every item its position, and what has grown its slots of this step.
///   positions, steps  [items]
void LaunchBeginStep(const StepItems& items, const int32_t* positions, const int32_t* steps,
                     uint32_t* table, cudaStream_t stream);

/// table[patch.word] = patch.value for patches[0 .. *count). `patches` and `count` may be pinned
/// memory of the host; no more than `capacity` patches are applied.
void LaunchApplyPatches(const TablePatch* patches, const uint32_t* count, int capacity,
                        uint32_t* table, cudaStream_t stream);

}  // namespace ziggurat::cuda

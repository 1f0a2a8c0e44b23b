#include "attention/cuda/step_table.h"

#include <algorithm>
#include <cstring>

#include "attention/cuda/segment_record.h"
#include "block_manager/check.h"

namespace ziggurat::cuda {
namespace {

constexpr uint32_t kSegmentWords = sizeof(DeviceSegment) / sizeof(uint32_t);

}  // namespace

// Word 0 is nobody's: as a word of a record it stands for none.
StepTable::StepTable(uint32_t capacity_words)
    : mirror_(capacity_words, 0),
      has_patch_(capacity_words / 64 + 1, 0),
      extents_(Extents::kSmallest, capacity_words) {}

void StepTable::Set(uint32_t word, uint32_t value) {
  if (mirror_[word] == value) return;
  mirror_[word] = value;
  if (!AddPatch(word)) are_outdated_ = true;
}

void StepTable::Resend(uint32_t word) { AddPatch(word); }

bool StepTable::AddPatch(uint32_t word) {
  uint64_t& bits = has_patch_[word / 64];
  const uint64_t bit = uint64_t{1} << word % 64;
  if ((bits & bit) != 0) return false;
  bits |= bit;
  patches_.push_back({word, mirror_[word]});
  return true;
}

absl::Span<const TablePatch> StepTable::patches() {
  if (are_outdated_) {
    for (TablePatch& patch : patches_) patch.value = mirror_[patch.word];
    are_outdated_ = false;
  }
  return patches_;
}

void StepTable::PutWords(uint32_t word, const void* data, size_t words) {
  if (std::memcmp(mirror_.data() + word, data, words * sizeof(uint32_t)) == 0) return;
  for (size_t i = 0; i < words; ++i) {
    uint32_t value;
    std::memcpy(&value, static_cast<const std::byte*>(data) + i * sizeof(value), sizeof(value));
    Set(word + static_cast<uint32_t>(i), value);
  }
}

void StepTable::Sent() {
  for (const TablePatch& patch : patches_) has_patch_[patch.word / 64] = 0;
  patches_.clear();
  are_outdated_ = false;
}

bool StepTable::AddLayer(int max_segments, LayerTable* layer) {
  layer->segments.assign(max_segments, {});
  layer->records = Allocate(max_segments * kSegmentWords);
  return layer->records != kFull;
}

void StepTable::RemoveLayer(LayerTable* layer) {
  for (LayerTable::Segment& segment : layer->segments) {
    for (LayerTable::BlockList& list : segment.lists) {
      if (list.capacity != 0) Free(list.word, list.capacity);
    }
  }
  if (layer->records != kFull) {
    Free(layer->records, static_cast<uint32_t>(layer->segments.size()) * kSegmentWords);
  }
  *layer = {};
}

bool StepTable::UpdateList(const PlaneView& plane, int slots, LayerTable::BlockList* list) {
  const uint32_t count = BlocksOf(plane, slots);
  if (count > list->capacity) {
    // With room to grow: a list is moved, and sent again, a logarithmic number of times.
    const uint32_t capacity = Extents::RoomFor(count + count / 4);
    const uint32_t word = Allocate(capacity);
    if (word == kFull) return false;
    if (list->capacity != 0) Free(list->word, list->capacity);
    *list = {word, capacity, 0};
  }
  TellBlocks(plane, count, list);
  return true;
}

void StepTable::TellBlocks(const PlaneView& plane, uint32_t count, LayerTable::BlockList* list) {
  // What was told before is mostly the same, and one look at the whole of it is cheap.
  const uint32_t told = std::min(list->count, count);
  const bool same = std::equal(plane.blocks, plane.blocks + told, mirror_.data() + list->word);
  for (uint32_t i = same ? told : 0; i < count; ++i) Set(list->word + i, plane.blocks[i]);
  list->count = count;
}

bool StepTable::AddBlocks(const DecodeItem& item, LayerTable* layer) {
  // First whether there is room, then what there is to say.
  for (const bool tells : {false, true}) {
    for (size_t i = 0; i < item.segments.size(); ++i) {
      SegmentView view = item.segments[i];
      view.num_slots = LiveSlots(item, static_cast<int>(i));
      bool has_room = true;
      RecordOfSegment(view, [&](const PlaneView& plane, int p) {
        LayerTable::BlockList& list = layer->segments[i].lists[p];
        const uint32_t count = BlocksOf(plane, SlotsHeld(view));
        has_room = has_room && count <= list.capacity;
        if (tells) TellBlocks(plane, count, &list);
        return list.word;
      });
      if (!has_room) return false;
    }
  }
  return true;
}

bool StepTable::UpdateLayer(const DecodeItem& item, LayerTable* layer) {
  CheckThat(item.segments.size() <= layer->segments.size(), "a layer with too many segments");
  for (size_t i = 0; i < item.segments.size(); ++i) {
    SegmentView view = item.segments[i];
    view.num_slots = LiveSlots(item, static_cast<int>(i));
    bool has_room = true;
    const DeviceSegment record = RecordOfSegment(view, [&](const PlaneView& plane, int p) {
      LayerTable::BlockList& list = layer->segments[i].lists[p];
      has_room = has_room && UpdateList(plane, SlotsHeld(view), &list);
      return list.word;
    });
    if (!has_room) return false;
    Put(layer->records + static_cast<uint32_t>(i) * kSegmentWords, record);
  }
  return true;
}

}  // namespace ziggurat::cuda

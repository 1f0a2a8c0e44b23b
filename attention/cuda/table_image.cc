#include "attention/cuda/table_image.h"

#include <cstring>

#include "attention/cuda/segment_record.h"

namespace ziggurat::cuda {

template <typename Record>
uint32_t TableImage::Reserve(size_t count) {
  static_assert(sizeof(Record) % sizeof(uint32_t) == 0);
  words_.resize((words_.size() + 1) / 2 * 2);
  const auto word = static_cast<uint32_t>(words_.size());
  words_.resize(words_.size() + count * sizeof(Record) / sizeof(uint32_t));
  return word;
}

template <typename Record>
void TableImage::Put(uint32_t word, const Record& record) {
  std::memcpy(words_.data() + word, &record, sizeof(Record));
}

DeviceSegment TableImage::RecordOf(const SegmentView& segment, int first, int end) {
  return RecordOfSegment(segment, [&](const PlaneView& plane, int) {
    // A list is named by the word where its block 0 would stand, modulo 2^32, which must not come
    // out as DevicePlane::kNone.
    const uint32_t first_block = static_cast<uint32_t>(first) / plane.slots_per_block;
    if (words_.size() + 1 == first_block) words_.push_back(0);
    const auto word = static_cast<uint32_t>(words_.size()) - first_block;
    words_.insert(words_.end(), plane.blocks + first_block, plane.blocks + BlocksOf(plane, end));
    return word;
  });
}

uint32_t TableImage::AddSlots(const SegmentView& segment, int first, int count) {
  const DeviceSegment record = RecordOf(segment, first, first + count);
  const uint32_t word = Reserve<DeviceSegment>(1);
  Put(word, record);
  return word;
}

uint32_t TableImage::AddSegment(const SegmentView& segment) {
  return AddSlots(segment, 0, SlotsHeld(segment));
}

TargetSegment TableImage::AddTarget(const SegmentView& segment) {
  return {AddSegment(segment), segment.num_kv_heads, segment.UnitTokens()};
}

DeviceItems TableImage::AddItems(absl::Span<const DecodeItem> items, unsigned long long* counts) {
  std::vector<DeviceItem> records;
  for (const DecodeItem& item : items) {
    const size_t i = records.size();
    std::vector<DeviceSegment> segments;
    for (int s = 0; s < static_cast<int>(item.segments.size()); ++s) {
      SegmentView live = item.segments[s];
      live.num_slots = LiveSlots(item, s);
      segments.push_back(RecordOf(live, 0, SlotsHeld(live)));
    }
    DeviceItem& record = records.emplace_back();
    record.num_segments = static_cast<int32_t>(segments.size());
    record.segments = Reserve<DeviceSegment>(segments.size());
    for (size_t s = 0; s < segments.size(); ++s) {
      Put(record.segments + static_cast<uint32_t>(s * sizeof(DeviceSegment) / 4), segments[s]);
    }
    record.num_targets = static_cast<int32_t>(item.targets.size());
    record.targets = Reserve<DeviceTarget>(item.targets.size());
    for (size_t t = 0; t < item.targets.size(); ++t) {
      Put(record.targets + static_cast<uint32_t>(2 * t),
          DeviceTarget{item.targets[t].segment, item.targets[t].slot});
    }
    record.position = item.position;
    record.score_recent = item.score_recent;
    record.skip = static_cast<float>(item.skip);
    record.low_q = item.low_q;
    record.distant_lse = item.distant_lse;
    if (counts != nullptr) record.counts = counts + 2 * i;
  }
  DeviceItems device;
  device.capacity = static_cast<int>(items.size());
  device.first = Reserve<DeviceItem>(records.size());
  for (size_t i = 0; i < records.size(); ++i) {
    Put(device.first + static_cast<uint32_t>(i * sizeof(DeviceItem) / 4), records[i]);
  }
  device.count = Reserve<uint32_t>(1);
  Put(device.count, static_cast<uint32_t>(items.size()));
  return device;
}

}  // namespace ziggurat::cuda

// The words of a table (device_views.h) made of the host's views of the cache.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "attention/backend.h"
#include "attention/cuda/device_views.h"
#include "attention/cuda/segment_record.h"
#include "attention/cuda/writes.h"

namespace ziggurat::cuda {

/// A table that is built from nothing; records refer to one another by word, so it may be copied to
/// any place.
class TableImage {
 public:
  const std::vector<uint32_t>& words() const { return words_; }
  void Clear() { words_.clear(); }

  /// The word at which the record of `segment` stands.
  uint32_t AddSegment(const SegmentView& segment);
  TargetSegment AddTarget(const SegmentView& segment);
  /// As AddSegment, with the blocks of slots [first, first + count) alone.
  uint32_t AddSlots(const SegmentView& segment, int first, int count);
  /// One step's items in one layer, whose pointers are the device's. For tests and benchmarks: the
  /// table of a step stays with the device.
  ///   counts  [items, 2] attended, skipped: the device's in place of each item's own; may be null
  DeviceItems AddItems(absl::Span<const DecodeItem> items, unsigned long long* counts = nullptr);

 private:
  /// Room for a record, at an even word.
  template <typename Record>
  uint32_t Reserve(size_t count);
  template <typename Record>
  void Put(uint32_t word, const Record& record);
  DeviceSegment RecordOf(const SegmentView& segment, int first, int end);

  std::vector<uint32_t> words_;
};

}  // namespace ziggurat::cuda

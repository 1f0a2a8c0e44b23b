// What kernels see of the cache, in the memory of the device.
//
// The *table* is one array of 32-bit words on the device: records of segments and items, and the
// lists of block numbers, at places that stay. A record names other parts of the table by the word
// at which they stand, so it has the same meaning in the host's mirror and on the device, and a
// step sends only the words that changed (step_table.h). Kernels read counts from here and never
// take them as launch parameters, so a captured graph of a step stays valid while tables grow.
//
// Everything here is plain data of 4-byte words; records of pointers begin at an even word.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/attention_shape.h"
#include "attention/host_device.h"
#include "block_manager/cache_format.h"
#include "block_manager/segment_view.h"

namespace ziggurat::cuda {

/// Whether rows of a prompt go to the kernels for tensor cores.
inline bool RunsOnTensorCores(const AttentionShape& shape, ElementType element) {
  return element == ElementType::kBf16 && shape.head_dim % 8 == 0 && shape.head_dim <= 256;
}

/// A plane of a segment, as PlaneView (block_manager/segment_view.h), whose words explain the
/// layout: the device has the same.
struct DevicePlane {
  static constexpr uint32_t kNone = 0xffffffffu;

  uint32_t blocks = kNone;  ///< word at which its block numbers begin; kNone: no such plane
  uint32_t slots_per_block = 1;
  uint32_t head_stride_bytes = 0;
  uint32_t offset_bytes = 0;
  uint32_t unit_bytes = 0;

  ZIGGURAT_HOST_DEVICE bool exists() const { return blocks != kNone; }
};

/// As SegmentView.
struct DeviceSegment {
  int32_t encoding = 0;  ///< an Encoding
  int32_t group = 0;
  int32_t first_kv_head = 0;
  int32_t num_kv_heads = 0;
  int32_t num_slots = 0;
  int32_t use = 0;  ///< a SegmentUse
  DevicePlane keys;
  DevicePlane values;
  DevicePlane key_scales;
  DevicePlane value_scales;
  DevicePlane key_norms;
  DevicePlane value_norms;
  DevicePlane scores;
  DevicePlane positions;

  ZIGGURAT_HOST_DEVICE bool covers(int kv_head) const {
    return kv_head >= first_kv_head && kv_head < first_kv_head + num_kv_heads;
  }
  ZIGGURAT_HOST_DEVICE Encoding code() const { return static_cast<Encoding>(encoding); }
  ZIGGURAT_HOST_DEVICE bool borrows_keys() const {
    return use == static_cast<int32_t>(SegmentUse::kBorrowedKeys);
  }
};

/// As TokenTarget (attention/cache_orders.h).
struct DeviceTarget {
  int32_t segment = 0;  ///< index among the item's segments
  int32_t slot = 0;     ///< -1: the one with the lowest score
};

/// One sequence of a decode step, in one layer; as DecodeItem (attention/backend.h). The pointers
/// are null where the item has no part in PoD.
struct DeviceItem {
  uint32_t segments = 0;  ///< word of its first DeviceSegment; the others follow
  int32_t num_segments = 0;
  uint32_t targets = 0;  ///< word of its first DeviceTarget
  int32_t num_targets = 0;
  int32_t position = 0;
  int32_t score_recent = 0;
  float skip = 2;
  int32_t padding = 0;
  float* low_q = nullptr;                ///< [num_q_heads, head_dim]
  float* distant_lse = nullptr;          ///< [num_q_heads]
  unsigned long long* counts = nullptr;  ///< attended, skipped
};
static_assert(sizeof(DeviceSegment) == 46 * 4 && sizeof(DeviceTarget) == 2 * 4 &&
              sizeof(DeviceItem) == 14 * 4);

/// The pool and the table, as every kernel over blocks takes them.
struct DeviceCache {
  unsigned char* pool = nullptr;
  size_t block_bytes = 0;
  const uint32_t* table = nullptr;

  ZIGGURAT_HOST_DEVICE const DeviceSegment& segment(uint32_t word) const {
    return *reinterpret_cast<const DeviceSegment*>(table + word);
  }
  ZIGGURAT_HOST_DEVICE const DeviceSegment& segment(const DeviceItem& item, int index) const {
    return reinterpret_cast<const DeviceSegment*>(table + item.segments)[index];
  }
  ZIGGURAT_HOST_DEVICE const DeviceTarget& target(const DeviceItem& item, int index) const {
    return reinterpret_cast<const DeviceTarget*>(table + item.targets)[index];
  }
};

/// The items of a step: `count` is read on the device.
struct DeviceItems {
  uint32_t first = 0;  ///< word of the first DeviceItem; the others follow
  uint32_t count = 0;  ///< word that holds how many there are
  int capacity = 0;    ///< never more than this: what launches and scratch memory are sized for

  ZIGGURAT_HOST_DEVICE const DeviceItem& item(const DeviceCache& cache, int index) const {
    return reinterpret_cast<const DeviceItem*>(cache.table + first)[index];
  }
  ZIGGURAT_HOST_DEVICE int size(const DeviceCache& cache) const {
    const int live = static_cast<int>(cache.table[count]);
    return live < capacity ? live : capacity;
  }
};

/// Rows or slots per head, in device memory; as TokenChoice (attention/backend.h).
struct DeviceIndices {
  const int32_t* of_head = nullptr;  ///< null: first + i for every head
  size_t stride = 0;
  int32_t first = 0;

  ZIGGURAT_HOST_DEVICE int at(int head, int i) const {
    return of_head == nullptr ? first + i : of_head[head * stride + i];
  }
};

}  // namespace ziggurat::cuda

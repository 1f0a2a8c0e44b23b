// Keys and values go from the workspace, or from a decode step, into blocks.

#include <algorithm>
#include <cstring>

#include "attention/cpu/cpu_backend.h"
#include "attention/cpu/parallel.h"

namespace ziggurat::cpu {
namespace {

/// Writes one key into lane `lane` of an area [D / x][slots][x]: a cell of 4 bytes per row.
void ScatterKey(const std::byte* key, int rows, uint32_t slots_per_block, uint32_t lane,
                std::byte* area) {
  std::byte* to = area + static_cast<size_t>(lane) * 4;
  for (int r = 0; r < rows; ++r) {
    std::memcpy(to + static_cast<size_t>(r) * slots_per_block * 4, key + static_cast<size_t>(r) * 4,
                4);
  }
}

std::byte* AreaOf(PoolView pool, const PlaneView& plane, int head, int slot) {
  return pool.Block(plane.blocks[slot / plane.slots_per_block]) +
         static_cast<size_t>(head) * plane.head_stride_bytes + plane.offset_bytes;
}

/// Writes one token of one head; `key` (may be null: keep what is there) and `value` have the
/// segment's element type. `head` counts from the segment's first.
void WriteSlot(PoolView pool, const SegmentView& segment, int head_dim, int head, int slot,
               const std::byte* key, const std::byte* value) {
  const size_t bytes = head_dim * ElementBytes(segment.element);
  const uint32_t value_slot = slot % segment.values.slots_per_block;
  std::memcpy(AreaOf(pool, segment.values, head, slot) + value_slot * bytes, value, bytes);
  if (key == nullptr) return;
  ScatterKey(key, static_cast<int>(bytes / 4), segment.keys.slots_per_block,
             slot % segment.keys.slots_per_block, AreaOf(pool, segment.keys, head, slot));
}

}  // namespace

void CpuBackend::WriteTokens(const AttentionShape& shape, ElementType element, const void* k,
                             const void* v, const int32_t* indices, int first_row, int count,
                             PoolView pool, const SegmentView& segment, int first_slot) {
  const size_t dim = shape.head_dim, heads = segment.num_kv_heads;
  const size_t from_bytes = dim * ElementBytes(element);
  const bool converts = element != segment.element;
  ParallelRanges(threads_, count, heads * dim, [&](size_t begin, size_t end) {
    float buffer[2][256];  // one key and one value in the segment's element type
    for (size_t head = 0; head < heads; ++head) {
      for (size_t i = begin; i < end; ++i) {
        const size_t row = indices != nullptr ? indices[head * count + i] : first_row + i;
        const size_t offset =
            (row * shape.num_kv_heads + segment.first_kv_head + head) * from_bytes;
        const std::byte* key = k == nullptr ? nullptr : static_cast<const std::byte*>(k) + offset;
        const std::byte* value = static_cast<const std::byte*>(v) + offset;
        if (converts) {
          ConvertRange(element, value, dim, segment.element, buffer[1]);
          value = reinterpret_cast<const std::byte*>(buffer[1]);
          if (key != nullptr) {
            ConvertRange(element, key, dim, segment.element, buffer[0]);
            key = reinterpret_cast<const std::byte*>(buffer[0]);
          }
        }
        WriteSlot(pool, segment, shape.head_dim, static_cast<int>(head),
                  first_slot + static_cast<int>(i), key, value);
      }
    }
  });
}

void CpuBackend::WriteStep(const AttentionShape& shape, absl::Span<const DecodeItem> items,
                           absl::Span<const int> segment_index, absl::Span<const int> slots,
                           const float* k, const float* v, PoolView pool) {
  const size_t dim = shape.head_dim;
  ParallelRanges(threads_, items.size(), shape.num_kv_heads * dim, [&](size_t begin, size_t end) {
    float buffer[2][256];
    for (size_t i = begin; i < end; ++i) {
      const SegmentView& segment = items[i].segments[segment_index[i]];
      for (int head = 0; head < segment.num_kv_heads; ++head) {
        const size_t offset = (i * shape.num_kv_heads + segment.first_kv_head + head) * dim;
        ConvertRange(ElementType::kF32, v + offset, dim, segment.element, buffer[1]);
        if (k != nullptr)
          ConvertRange(ElementType::kF32, k + offset, dim, segment.element, buffer[0]);
        WriteSlot(pool, segment, shape.head_dim, head, slots[i],
                  k == nullptr ? nullptr : reinterpret_cast<const std::byte*>(buffer[0]),
                  reinterpret_cast<const std::byte*>(buffer[1]));
      }
    }
  });
}

}  // namespace ziggurat::cpu

// What a kernel sees of a layer's cache: raw block numbers and strides, no ownership.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "block_manager/cache_format.h"

namespace ziggurat {

using BlockId = uint32_t;

/// The memory of the pool. Block b lies at `base + b * block_bytes`.
struct PoolView {
  std::byte* base = nullptr;
  size_t block_bytes = 0;

  std::byte* Block(BlockId id) const { return base + static_cast<size_t>(id) * block_bytes; }
};

/// Where the keys, or the values, of a segment lie. Slot s of the g-th head of the segment is in
/// block `blocks[s / slots_per_block]`, inside the area that starts at
/// `g * head_stride_bytes + offset_bytes` of that block.
///
/// With S = slots_per_block, D = head_dim and x = 4 / element bytes, the area holds
///   keys    as [D / x][S][x]   (x neighbouring channels of one slot side by side: 4 bytes)
///   values  as [S][D]
struct PlaneView {
  const BlockId* blocks = nullptr;  ///< [ceil(num_slots / slots_per_block)]
  uint32_t slots_per_block = 0;
  uint32_t head_stride_bytes = 0;
  uint32_t offset_bytes = 0;
};

/// One segment of a layer as a kernel attends to it. Slots [0, num_slots) hold live tokens in any
/// order; slot i may hold another token for each head. `keys` may belong to another layer's segment
/// (attending with another layer's keys), and then may have another number of slots per block.
struct SegmentView {
  ElementType element = ElementType::kF32;
  int first_kv_head = 0;  ///< head group: the KV heads this segment covers
  int num_kv_heads = 0;
  int num_slots = 0;
  PlaneView keys;
  PlaneView values;
};

/// The segments of one layer of one sequence. Valid until the table it came from changes.
using LayerView = absl::Span<const SegmentView>;

}  // namespace ziggurat

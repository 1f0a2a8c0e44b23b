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

/// Where one kind of data of a segment lies. Slot s of the g-th head of the segment is in block
/// `blocks[s / slots_per_block]`, inside the area that starts at
/// `g * head_stride_bytes + offset_bytes` of that block.
///
/// With S = slots_per_block, D = head_dim, b = bits of the encoding and x = 32 / b, an area holds
///   keys        [D / x][S] cells of 4 bytes   (x neighbouring channels of one slot side by side;
///                                             codes of less than 8 bits: lowest channel lowest)
///   values      [S][D * b / 8 bytes]          (lowest channel in the lowest bits)
///   per-token scales, norms, scores           [S] f32;   positions [S] i32
///   grouped scales  [S / group] units, `unit_bytes` apart, of
///                   keys    scales [D] bf16, zeros [D] bf16
///                   values  scales [group][D / group] bf16, zeros [group][D / group] bf16
struct PlaneView {
  const BlockId* blocks = nullptr;  ///< [ceil(num_slots / slots_per_block)]; null: there is none
  uint32_t slots_per_block = 0;
  uint32_t head_stride_bytes = 0;
  uint32_t offset_bytes = 0;
  uint32_t unit_bytes = 0;  ///< grouped scales only
};

/// Which query attends to a segment, and with what weight it may be left out (PoD).
enum class SegmentUse : uint8_t {
  kOwn,           ///< the layer's own query and keys
  kDistantKeys,   ///< the same, and the log-sum-exp over it is wanted by layers above
  kBorrowedKeys,  ///< with the keys, and the query, of the lowest layer of its group
};

/// One segment of a layer as a kernel attends to it. Slots [0, num_slots) hold live tokens in any
/// order; slot i may hold another token for each head. Keys may belong to another layer's segment
/// (attending with another layer's keys), and then may have another number of slots per block.
///
/// A stored channel x stands for
///   plain            x
///   per token        scale[slot] * x
///   grouped          scale * x + zero
/// and in a merged segment for norm[slot] times that.
struct SegmentView {
  Encoding encoding = Encoding::kF32;
  int group = 0;          ///< grouped encodings: tokens, or channels, of a group
  int first_kv_head = 0;  ///< head group: the KV heads this segment covers
  int num_kv_heads = 0;
  int num_slots = 0;
  PlaneView keys;
  PlaneView values;
  PlaneView key_scales;
  PlaneView value_scales;
  PlaneView key_norms;  ///< merged: this layer's
  PlaneView value_norms;
  PlaneView scores;  ///< scored: accumulated attention
  PlaneView positions;
  SegmentUse use = SegmentUse::kOwn;

  int UnitTokens() const { return UnitTokensOf(encoding, group); }
};

/// The segments of one layer of one sequence. Valid until the table it came from changes.
using LayerView = absl::Span<const SegmentView>;

}  // namespace ziggurat

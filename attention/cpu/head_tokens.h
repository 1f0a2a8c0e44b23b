// The keys, or the values, of one head of a segment: where a token lies, and what it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention/cpu/kernels.h"
#include "block_manager/segment_view.h"

namespace ziggurat::cpu {

/// The area of the `head`-th head of a segment in the block that holds `slot`.
inline std::byte* AreaOf(PoolView pool, const PlaneView& plane, int head, int slot) {
  return pool.Block(plane.blocks[slot / plane.slots_per_block]) +
         static_cast<size_t>(head) * plane.head_stride_bytes + plane.offset_bytes;
}
/// A slot's number in a plane of scales, norms, scores or positions.
template <typename Number>
Number* EntryOf(PoolView pool, const PlaneView& plane, int head, int slot) {
  return reinterpret_cast<Number*>(AreaOf(pool, plane, head, slot)) + slot % plane.slots_per_block;
}

/// Not for several threads on one group at a time. Copyable; points into the view it is made of.
class HeadTokens {
 public:
  enum Side : uint8_t { kKeys, kValues };

  /// `head` counts from the segment's first. Norms are no business of this class: of a merged
  /// segment it reads and writes directions.
  HeadTokens(PoolView pool, const SegmentView& segment, Side side, int head, int head_dim)
      : pool_(pool),
        codes_(side == kKeys ? segment.keys : segment.values),
        scales_(side == kKeys ? segment.key_scales : segment.value_scales),
        encoding_(segment.encoding),
        group_(segment.group),
        side_(side),
        head_(head),
        head_dim_(head_dim) {}

  size_t token_bytes() const {
    return static_cast<size_t>(head_dim_) * EncodingBits(encoding_) / 8;
  }

  /// Codes as they are.
  ///   codes  [token_bytes], the lowest channel in the lowest bits
  void LoadCodes(int slot, std::byte* codes) const;
  void StoreCodes(int slot, const std::byte* codes) const { StoreCodes(slot, 1, codes); }
  /// The same for `count` neighbouring slots; for keys kTokensAtATime of them cost little more than
  /// one.
  ///   codes  [count, token_bytes]
  void StoreCodes(int first_slot, int count, const std::byte* codes) const;
  static constexpr int kTokensAtATime = 8;
  /// Per-token encodings.
  float* Scale(int slot) const { return EntryOf<float>(pool_, scales_, head_, slot); }
  /// Grouped encodings: scales and zeros of the group that holds `slot`, 4 * head_dim bytes.
  std::byte* GroupScales(int slot) const {
    return AreaOf(pool_, scales_, head_, slot) +
           static_cast<size_t>(slot % scales_.slots_per_block / group_) * scales_.unit_bytes;
  }

  /// Plain and per-token encodings: the scale of a slot, and codes for StoreCodes.
  ///   x      [head_dim]
  ///   codes  [token_bytes]
  void Encode(int slot, const float* x, std::byte* codes) const;
  /// Both.
  void Write(int slot, const float* x) const;
  /// Grouped encodings, the group that starts at `first_slot`.
  ///   x     [group, head_dim]
  ///   room  grows as needed
  void WriteGroup(int first_slot, const float* x, std::vector<uint32_t>* room) const;
  /// Decodes, whatever the encoding.
  ///   x  [head_dim]
  void Read(int slot, float* x) const;

 private:
  /// Codes of the slots [first_slot, first_slot + group): keys as [cells, group], values as
  /// [group, token_bytes].
  void StoreGroupCodes(int first_slot, const std::byte* codes) const;
  void EncodeValue(const float* x, uint16_t* scales, uint16_t* zeros, std::byte* codes) const;

  PoolView pool_;
  PlaneView codes_;
  PlaneView scales_;
  Encoding encoding_;
  int group_;
  Side side_;
  int head_;
  int head_dim_;
};

}  // namespace ziggurat::cpu

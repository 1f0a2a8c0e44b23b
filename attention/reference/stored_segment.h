// A segment's memory read and written one channel at a time, by the words of
// block_manager/segment_view.h. Nothing else in the reference knows where anything lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "block_manager/segment_view.h"

namespace ziggurat::reference {

enum class Side : uint8_t { kKeys, kValues };
inline constexpr Side kSides[] = {Side::kKeys, Side::kValues};

/// A channel as it is stored: its code, and the scale (and zero) that it shares with others.
struct ChannelBits {
  uint32_t code = 0;
  float token_scale = 0;
  uint16_t group_scale = 0;
  uint16_t group_zero = 0;

  bool operator==(const ChannelBits&) const = default;
};

/// KV heads are those of the model. Neither owns nor outlives pool and view.
class StoredSegment {
 public:
  StoredSegment(PoolView pool, const SegmentView& segment, int head_dim)
      : pool_(pool), s_(segment), dim_(head_dim) {}

  const SegmentView& view() const { return s_; }
  bool covers(int kv_head) const {
    return kv_head >= s_.first_kv_head && kv_head < s_.first_kv_head + s_.num_kv_heads;
  }
  /// Keys that are borrowed are another layer's, and are never written.
  bool owns(Side side) const {
    return side == Side::kValues || s_.use != SegmentUse::kBorrowedKeys;
  }
  bool is_merged() const { return s_.key_norms.blocks != nullptr; }
  bool is_scored() const { return s_.scores.blocks != nullptr; }

  /// What a channel stands for.
  double Decoded(Side side, int kv_head, int slot, int channel) const {
    return (is_merged() ? Norm(side, kv_head, slot) : 1.0) *
           Direction(side, kv_head, slot, channel);
  }
  /// The same without the norm of a merged segment.
  double Direction(Side side, int kv_head, int slot, int channel) const;

  /// All channels.
  std::vector<double> DecodedVector(Side side, int kv_head, int slot) const;

  /// Encodes one token of one head: plain and per-token encodings.
  ///   x  [head_dim]
  void WriteToken(Side side, int kv_head, int slot, const float* x) const;
  /// Encodes one group of tokens of one head: grouped encodings.
  ///   x  [group, head_dim]
  void WriteGroup(Side side, int kv_head, int first_slot, const float* x) const;
  /// A channel bit for bit; StoreBits into a segment of the same encoding (and group).
  ChannelBits LoadBits(Side side, int kv_head, int slot, int channel) const;
  void StoreBits(Side side, int kv_head, int slot, int channel, ChannelBits bits) const;

  /// Bits of the code of a channel, as they are.
  uint32_t Code(Side side, int kv_head, int slot, int channel) const;
  void SetCode(Side side, int kv_head, int slot, int channel, uint32_t code) const;
  /// Per token.
  float Scale(Side side, int kv_head, int slot) const;
  void SetScale(Side side, int kv_head, int slot, float scale) const;
  /// Grouped: bf16, of the group that a channel of a slot belongs to.
  uint16_t GroupScaleBits(Side side, int kv_head, int slot, int channel) const;
  uint16_t GroupZeroBits(Side side, int kv_head, int slot, int channel) const;
  void SetGroup(Side side, int kv_head, int slot, int channel, uint16_t scale, uint16_t zero) const;

  float Norm(Side side, int kv_head, int slot) const;
  void SetNorm(Side side, int kv_head, int slot, float norm) const;
  /// Norm `index` of the four that a merged segment has for each slot and head: of the keys and the
  /// values of the lower layer, and of those of the upper one.
  float AnyNorm(int index, int kv_head, int slot) const;
  void SetAnyNorm(int index, int kv_head, int slot, float norm) const;

  float Score(int kv_head, int slot) const;
  int32_t Position(int kv_head, int slot) const;
  void SetScore(int kv_head, int slot, float score) const;
  void SetPosition(int kv_head, int slot, int32_t position) const;

 private:
  std::byte* Area(const PlaneView& plane, int kv_head, int slot) const;
  std::byte* Entry(const PlaneView& plane, int kv_head, int slot) const;
  std::byte* GroupEntry(Side side, int kv_head, int slot, int channel) const;
  PlaneView NormPlane(int index) const;

  PoolView pool_;
  const SegmentView& s_;
  int dim_;
};

}  // namespace ziggurat::reference

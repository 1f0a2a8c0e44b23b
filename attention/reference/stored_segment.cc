#include "attention/reference/stored_segment.h"

#include <bit>
#include <cstring>

#include "attention/quantization.h"

namespace ziggurat::reference {
namespace {

template <typename T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <typename T>
void Store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

}  // namespace

/// The area of a head in the block that holds `slot`.
std::byte* StoredSegment::Area(const PlaneView& plane, int kv_head, int slot) const {
  const auto head = static_cast<size_t>(kv_head - s_.first_kv_head);
  return pool_.Block(plane.blocks[slot / plane.slots_per_block]) + head * plane.head_stride_bytes +
         plane.offset_bytes;
}

/// Of areas with one number of 4 bytes for each slot.
std::byte* StoredSegment::Entry(const PlaneView& plane, int kv_head, int slot) const {
  return Area(plane, kv_head, slot) + size_t{4} * (slot % plane.slots_per_block);
}

// ---- Codes -------------------------------------------------------------------------------------

namespace {

/// Index of the first bit of a channel's code inside its area.
size_t BitOf(Side side, const PlaneView& plane, int bits, int head_dim, int slot, int channel) {
  const size_t in_block = slot % plane.slots_per_block;
  if (side == Side::kValues) return (in_block * head_dim + channel) * bits;
  const int x = 32 / bits;  // channels of a cell
  return (static_cast<size_t>(channel / x) * plane.slots_per_block + in_block) * 32 +
         static_cast<size_t>(channel % x) * bits;
}

}  // namespace

uint32_t StoredSegment::Code(Side side, int kv_head, int slot, int channel) const {
  const PlaneView& plane = side == Side::kKeys ? s_.keys : s_.values;
  const int bits = EncodingBits(s_.encoding);
  const size_t bit = BitOf(side, plane, bits, dim_, slot, channel);
  const std::byte* from = Area(plane, kv_head, slot) + bit / 8;
  if (bits == 32) return Load<uint32_t>(from);
  if (bits == 16) return Load<uint16_t>(from);
  return (Load<uint8_t>(from) >> (bit % 8)) & ((1u << bits) - 1);
}

void StoredSegment::SetCode(Side side, int kv_head, int slot, int channel, uint32_t code) const {
  const PlaneView& plane = side == Side::kKeys ? s_.keys : s_.values;
  const int bits = EncodingBits(s_.encoding);
  const size_t bit = BitOf(side, plane, bits, dim_, slot, channel);
  std::byte* to = Area(plane, kv_head, slot) + bit / 8;
  if (bits == 32) return Store(to, code);
  if (bits == 16) return Store(to, static_cast<uint16_t>(code));
  const uint32_t mask = ((1u << bits) - 1) << (bit % 8);
  Store(to, static_cast<uint8_t>((Load<uint8_t>(to) & ~mask) | code << (bit % 8)));
}

// ---- Scales ------------------------------------------------------------------------------------

float StoredSegment::Scale(Side side, int kv_head, int slot) const {
  return Load<float>(Entry(side == Side::kKeys ? s_.key_scales : s_.value_scales, kv_head, slot));
}

void StoredSegment::SetScale(Side side, int kv_head, int slot, float scale) const {
  Store(Entry(side == Side::kKeys ? s_.key_scales : s_.value_scales, kv_head, slot), scale);
}

/// The scale of a group; its zero lies head_dim scales behind it.
std::byte* StoredSegment::GroupEntry(Side side, int kv_head, int slot, int channel) const {
  const PlaneView& plane = side == Side::kKeys ? s_.key_scales : s_.value_scales;
  const size_t unit = slot % plane.slots_per_block / s_.group;
  const int index = side == Side::kKeys
                        ? channel                                                    // [D]
                        : slot % s_.group * (dim_ / s_.group) + channel / s_.group;  // [group][D/g]
  return Area(plane, kv_head, slot) + unit * plane.unit_bytes + size_t{2} * index;
}

uint16_t StoredSegment::GroupScaleBits(Side side, int kv_head, int slot, int channel) const {
  return Load<uint16_t>(GroupEntry(side, kv_head, slot, channel));
}

uint16_t StoredSegment::GroupZeroBits(Side side, int kv_head, int slot, int channel) const {
  return Load<uint16_t>(GroupEntry(side, kv_head, slot, channel) + size_t{2} * dim_);
}

void StoredSegment::SetGroup(Side side, int kv_head, int slot, int channel, uint16_t scale,
                             uint16_t zero) const {
  std::byte* entry = GroupEntry(side, kv_head, slot, channel);
  Store(entry, scale);
  Store(entry + size_t{2} * dim_, zero);
}

// ---- Norms, scores -----------------------------------------------------------------------------

float StoredSegment::Norm(Side side, int kv_head, int slot) const {
  return Load<float>(Entry(side == Side::kKeys ? s_.key_norms : s_.value_norms, kv_head, slot));
}

void StoredSegment::SetNorm(Side side, int kv_head, int slot, float norm) const {
  Store(Entry(side == Side::kKeys ? s_.key_norms : s_.value_norms, kv_head, slot), norm);
}

/// A head's four areas of norms lie side by side; this layer's are the first two, or the last.
PlaneView StoredSegment::NormPlane(int index) const {
  PlaneView plane = s_.key_norms;
  const uint32_t area_bytes = plane.slots_per_block * 4;
  plane.offset_bytes =
      plane.offset_bytes / (4 * area_bytes) * (4 * area_bytes) + index * area_bytes;
  return plane;
}

float StoredSegment::AnyNorm(int index, int kv_head, int slot) const {
  return Load<float>(Entry(NormPlane(index), kv_head, slot));
}

void StoredSegment::SetAnyNorm(int index, int kv_head, int slot, float norm) const {
  Store(Entry(NormPlane(index), kv_head, slot), norm);
}

float StoredSegment::Score(int kv_head, int slot) const {
  return Load<float>(Entry(s_.scores, kv_head, slot));
}

int32_t StoredSegment::Position(int kv_head, int slot) const {
  return Load<int32_t>(Entry(s_.positions, kv_head, slot));
}

void StoredSegment::SetScore(int kv_head, int slot, float score) const {
  Store(Entry(s_.scores, kv_head, slot), score);
}

void StoredSegment::SetPosition(int kv_head, int slot, int32_t position) const {
  Store(Entry(s_.positions, kv_head, slot), position);
}

// ---- Whole channels, tokens and groups ---------------------------------------------------------

double StoredSegment::Direction(Side side, int kv_head, int slot, int channel) const {
  const uint32_t code = Code(side, kv_head, slot, channel);
  switch (s_.encoding) {
    case Encoding::kF32:
      return std::bit_cast<float>(code);
    case Encoding::kBf16:
      return Bf16ToFloat(static_cast<uint16_t>(code));
    case Encoding::kInt8:
      return double{Scale(side, kv_head, slot)} * static_cast<int8_t>(code);
    case Encoding::kFp8:
      return double{Scale(side, kv_head, slot)} * E4m3ToFloat(static_cast<uint8_t>(code));
    case Encoding::kInt4:
    case Encoding::kInt2:
      break;
  }
  const double scale = Bf16ToFloat(GroupScaleBits(side, kv_head, slot, channel));
  return scale * code + Bf16ToFloat(GroupZeroBits(side, kv_head, slot, channel));
}

std::vector<double> StoredSegment::DecodedVector(Side side, int kv_head, int slot) const {
  std::vector<double> vector;
  for (int c = 0; c < dim_; ++c) vector.push_back(Decoded(side, kv_head, slot, c));
  return vector;
}

void StoredSegment::WriteToken(Side side, int kv_head, int slot, const float* x) const {
  float scale = 0;
  if (IsPerToken(s_.encoding)) {
    scale = TokenScale(s_.encoding, LargestMagnitude(x, dim_));
    SetScale(side, kv_head, slot, scale);
  }
  for (int c = 0; c < dim_; ++c) {
    uint32_t code = 0;
    if (s_.encoding == Encoding::kF32) code = std::bit_cast<uint32_t>(x[c]);
    if (s_.encoding == Encoding::kBf16) code = FloatToBf16(x[c]);
    if (s_.encoding == Encoding::kInt8) code = static_cast<uint8_t>(Int8Code(x[c], scale));
    if (s_.encoding == Encoding::kFp8) code = Fp8Code(x[c], scale);
    SetCode(side, kv_head, slot, c, code);
  }
}

void StoredSegment::WriteGroup(Side side, int kv_head, int first_slot, const float* x) const {
  const int bits = EncodingBits(s_.encoding), group = s_.group;
  const auto write = [&](int token, int channel, GroupScale scale) {
    const int slot = first_slot + token;
    SetGroup(side, kv_head, slot, channel, FloatToBf16(scale.scale), FloatToBf16(scale.zero));
    SetCode(side, kv_head, slot, channel,
            GroupCode(x[static_cast<size_t>(token) * dim_ + channel], scale, bits));
  };
  if (side == Side::kKeys) {  // a channel of all tokens
    for (int c = 0; c < dim_; ++c) {
      const GroupScale scale = GroupScaleOf(x + c, group, dim_, bits);
      for (int t = 0; t < group; ++t) write(t, c, scale);
    }
    return;
  }
  for (int t = 0; t < group; ++t) {  // neighbouring channels of one token
    for (int first = 0; first < dim_; first += group) {
      const float* part = x + static_cast<size_t>(t) * dim_ + first;
      const GroupScale scale = GroupScaleOf(part, group, 1, bits);
      for (int c = first; c < first + group; ++c) write(t, c, scale);
    }
  }
}

ChannelBits StoredSegment::LoadBits(Side side, int kv_head, int slot, int channel) const {
  ChannelBits bits{Code(side, kv_head, slot, channel)};
  if (IsPerToken(s_.encoding)) bits.token_scale = Scale(side, kv_head, slot);
  if (IsGrouped(s_.encoding)) {
    bits.group_scale = GroupScaleBits(side, kv_head, slot, channel);
    bits.group_zero = GroupZeroBits(side, kv_head, slot, channel);
  }
  return bits;
}

void StoredSegment::StoreBits(Side side, int kv_head, int slot, int channel,
                              ChannelBits bits) const {
  SetCode(side, kv_head, slot, channel, bits.code);
  if (IsPerToken(s_.encoding)) SetScale(side, kv_head, slot, bits.token_scale);
  if (IsGrouped(s_.encoding)) {
    SetGroup(side, kv_head, slot, channel, bits.group_scale, bits.group_zero);
  }
}

}  // namespace ziggurat::reference

// Numbers become codes, scales and zeros, by attention/quantization.h. One warp for each token of a
// head (plain and per-token encodings) or group of tokens of a head (grouped ones).
#pragma once

#include "attention/cuda/cells.cuh"
#include "attention/quantization.h"

namespace ziggurat::cuda {

/// The code of one channel in the lowest bits: encodings that have no groups.
__device__ inline uint32_t CodeOf(Encoding encoding, float x, float scale) {
  switch (encoding) {
    case Encoding::kF32:
      return __float_as_uint(x);
    case Encoding::kBf16:
      return FloatToBf16(x);
    case Encoding::kInt8:
      return static_cast<uint8_t>(Int8Code(x, scale));
    default:
      return Fp8Code(x, scale);
  }
}

/// source(channel) is the token's; it is asked for every channel twice.
template <class Source>
__device__ void EncodeToken(const DeviceCache& cache, const DeviceSegment& s, Side side, int head,
                            int slot, int head_dim, Source source) {
  const Encoding encoding = s.code();
  const int bits = EncodingBits(encoding), channels = 32 / bits, lane = LaneOfThread();
  float scale = 0;
  if (IsPerToken(encoding)) {
    float largest = 0;
    for (int c = lane; c < head_dim; c += kWarp) {
      const float magnitude = fabsf(source(c));
      largest = magnitude > largest ? magnitude : largest;
    }
    scale = TokenScale(encoding, WarpMax(largest));
    if (lane == 0) EntryOf<float>(cache, ScalesOf(s, side), head, slot) = scale;
  }
  for (int p = lane; p < CellsOf(encoding, head_dim); p += kWarp) {
    uint32_t cell = 0;
    for (int i = 0; i < channels; ++i) {
      cell |= CodeOf(encoding, source(p * channels + i), scale) << (i * bits);
    }
    CellOf(cache, s, side, head, slot, p, head_dim) = cell;
  }
}

struct UnitPlace {
  int token;
  int cell;
};
/// The i-th cell of a unit in the order in which they lie: those of a key one token behind the
/// other, those of a value within the token.
__device__ inline UnitPlace PlaceInUnit(Side side, int i, int tokens, int cells) {
  if (side == Side::kKeys) return {i % tokens, i / tokens};
  return {i / cells, i % cells};
}

/// Tokens first_slot .. first_slot + group - 1; source(token of the group, channel).
template <class Source>
__device__ void EncodeGroup(const DeviceCache& cache, const DeviceSegment& s, Side side, int head,
                            int first_slot, int head_dim, Source source) {
  const int bits = EncodingBits(s.code()), channels = 32 / bits, lane = LaneOfThread();
  // Scales: of keys for each channel, of values for each token and group of channels; head_dim of
  // them either way.
  const int parts = head_dim / s.group;
  for (int i = lane; i < head_dim; i += kWarp) {
    const bool keys = side == Side::kKeys;
    const int token = keys ? 0 : i / parts, channel = keys ? i : i % parts * s.group;
    float lowest = INFINITY, highest = -INFINITY;
    for (int j = 0; j < s.group; ++j) {
      const float x = keys ? source(j, channel) : source(token, channel + j);
      lowest = x < lowest ? x : lowest;
      highest = x > highest ? x : highest;
    }
    const GroupScale scale = GroupScaleOf(lowest, highest, bits);
    uint16_t* entry = GroupEntryOf(cache, s, side, head, first_slot + token, channel, head_dim);
    entry[0] = FloatToBf16(scale.scale);
    entry[head_dim] = FloatToBf16(scale.zero);
  }
  __syncwarp();  // every lane reads scales that others wrote
  const int cells = CellsOf(s.code(), head_dim);
  for (int i = lane; i < s.group * cells; i += kWarp) {
    const auto [token, p] = PlaceInUnit(side, i, s.group, cells);
    const int slot = first_slot + token, first = p * channels;
    const uint16_t* entries = GroupEntryOf(cache, s, side, head, slot, first, head_dim);
    uint32_t cell = 0;
    for (int j = 0; j < channels; ++j) {
      const int c = first + j;
      const uint16_t* entry = entries + (side == Side::kKeys ? j : c / s.group - first / s.group);
      const GroupScale scale = {Bf16ToFloat(entry[0]), Bf16ToFloat(entry[head_dim])};
      cell |= uint32_t{GroupCode(source(token, c), scale, bits)} << (j * bits);
    }
    CellOf(cache, s, side, head, slot, p, head_dim) = cell;
  }
}

ZIGGURAT_HOST_DEVICE inline int UnitTokens(const DeviceSegment& s) {
  return UnitTokensOf(s.code(), s.group);
}

/// One unit of a segment, at `first_slot`; source(token of the unit, channel).
template <class Source>
__device__ void EncodeUnit(const DeviceCache& cache, const DeviceSegment& s, Side side, int head,
                           int first_slot, int head_dim, Source source) {
  if (IsGrouped(s.code())) {
    EncodeGroup(cache, s, side, head, first_slot, head_dim, source);
  } else {
    EncodeToken(cache, s, side, head, first_slot, head_dim, [&](int c) { return source(0, c); });
  }
}

/// Keys that are borrowed are another layer's, and are never written.
__device__ inline bool Owns(const DeviceSegment& s, Side side) {
  return side == Side::kValues || !s.borrows_keys();
}

}  // namespace ziggurat::cuda

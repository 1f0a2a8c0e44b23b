// Values of codes, read in one of two ways: as they are by the micro kernel (value_tiles.h), or
// unpacked into small tiles of f32 that never leave the first level cache.
//
// Grouped codes become what they stand for. Codes with one scale per token stay as they are: the
// scale belongs on the token's weight.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/cpu/codes.h"
#include "attention/cpu/value_tiles.h"

namespace ziggurat::cpu {
namespace {

/// int4 and int2 in groups of a multiple of 32 channels, looked up in a table of what the codes of
/// a group stand for.   V: one with Lookup
template <class Codes>
struct LookedUpValues : SingleValues<typename Codes::Simd> {
  using Simd = typename Codes::Simd;
  static constexpr bool kIsAtHand = Simd::kHasLookup;
  static constexpr int kVectors = 2;
  static constexpr int kChannels = 2 * Simd::kLanes;
  static constexpr int kUnitBytes = kChannels * Codes::kBits / 8;
  static constexpr int kAheadBytes = kUnitBytes + 4;  // a scale and a zero in bf16
  static constexpr bool kWholeUnits = true;

  static bool Takes(int head_dim, int group) {
    return head_dim % kChannels == 0 && group % kChannels == 0;
  }
  template <class Load>
  static void Read(Load /*load*/, const ValueRows& values, int t, int /*count*/, int unit,
                   typename Simd::Float* out) {
    const int group = t * values.groups + unit / values.units_per_group;
    const typename Simd::Float table =
        Simd::Fma(Codes::Steps(), Simd::Set(values.scales[group]), Simd::Set(values.zeros[group]));
    typename Simd::Bits codes[kVectors];
    Codes::Spread32(values.at(t, unit * kUnitBytes), codes);
    out[0] = Simd::Lookup(table, codes[0]);
    out[1] = Simd::Lookup(table, codes[1]);
  }
  static void PutInOrder(const float* sums, float factor, float* out) {
    for (int i = 0; i < kChannels; ++i) out[Codes::ChannelOf(i)] = sums[i] * factor;
  }
};

/// int8 and fp8, whole vectors of channels.
template <class Codes>
struct WidenedValues : SingleValues<typename Codes::Simd> {
  using Simd = typename Codes::Simd;
  static constexpr bool kIsAtHand = true;
  static constexpr int kVectors = 1;
  static constexpr int kChannels = Simd::kLanes;
  static constexpr int kUnitBytes = kChannels;
  static constexpr int kAheadBytes = kUnitBytes;
  static constexpr bool kWholeUnits = true;

  static bool Takes(int head_dim, int /*group*/) { return head_dim % kChannels == 0; }
  template <class Load>
  static void Read(Load /*load*/, const ValueRows& values, int t, int /*count*/, int unit,
                   typename Simd::Float* out) {
    out[0] = Codes::Load(values.at(t, unit * kUnitBytes));
  }
};

// ---- Tiles -------------------------------------------------------------------------------------

constexpr int kValueTileFloats = 4096;

/// All channels of one value, as they are; a whole number of vectors is stored.
template <class Codes>
inline void UnpackChannels(const std::byte* row, int head_dim, float* to) {
  using V = typename Codes::Simd;
  constexpr size_t kBytes = V::kLanes * Codes::kBits / 8;
  int left = head_dim;
  for (; left >= V::kLanes; left -= V::kLanes, row += kBytes, to += V::kLanes) {
    V::Store(to, Codes::Load(row));
  }
  if (left > 0) {
    std::byte rest[V::kLanes] = {};
    __builtin_memcpy(rest, row, left * Codes::kBits / 8);
    V::Store(to, Codes::Load(rest));
  }
}

/// The same of `count` channels, times `scale`, plus `zero`.
template <class Codes>
inline void UnpackScaled(const std::byte* row, int count, float scale, float zero, float* to) {
  using V = typename Codes::Simd;
  constexpr size_t kBytes = V::kLanes * Codes::kBits / 8;
  if (count % V::kLanes == 0) {
    const typename V::Float factor = V::Set(scale), shift = V::Set(zero);
    for (int c = 0; c < count; c += V::kLanes, row += kBytes) {
      V::Store(to + c, V::Fma(Codes::Load(row), factor, shift));
    }
  } else {
    float codes[kMaxHeadDim];
    UnpackChannels<Codes>(row, count, codes);
    for (int c = 0; c < count; ++c) to[c] = codes[c] * scale + zero;
  }
}

/// tile[t][channel] of `count` values, rows `stride` apart, a multiple of kLanes. Takes a copy: a
/// store to the tile might else be one to the arguments.
template <class Codes>
void UnpackValues(const ValueRows values, int count, int head_dim, int stride, float* tile) {
  for (int t = 0; t < count; ++t, tile += stride) {
    const std::byte* row = values.at(t, 0);
    if constexpr (Codes::kGrouped) {
      const int group = head_dim / values.groups;
      for (int g = 0; g < values.groups; ++g, row += group * Codes::kBits / 8) {
        UnpackScaled<Codes>(row, group, values.scales[t * values.groups + g],
                            values.zeros[t * values.groups + g], tile + g * group);
      }
    } else {
      UnpackChannels<Codes>(row, head_dim, tile);
    }
  }
}

}  // namespace
}  // namespace ziggurat::cpu

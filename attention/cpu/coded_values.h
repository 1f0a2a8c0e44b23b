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

/// The same of groups of a multiple of kLanes channels, times their scales, plus their zeros.
template <class Codes>
inline void UnpackGroups(const std::byte* row, int groups, int group, const float* scales,
                         const float* zeros, float* to) {
  using V = typename Codes::Simd;
  constexpr size_t kBytes = V::kLanes * Codes::kBits / 8;
  for (int g = 0; g < groups; ++g) {
    const typename V::Float scale = V::Set(scales[g]), zero = V::Set(zeros[g]);
    for (int c = 0; c < group; c += V::kLanes, row += kBytes, to += V::kLanes) {
      V::Store(to, V::Add(V::Mul(Codes::Load(row), scale), zero));
    }
  }
}

/// tile[t][channel] of `count` values, rows `stride` apart, a multiple of kLanes. Takes a copy: a
/// store to the tile might else be one to the arguments.
template <class Codes>
void UnpackValues(const ValueRows values, int count, int head_dim, int stride, float* tile) {
  const int groups = values.groups, group = Codes::kGrouped ? head_dim / groups : 0;
  for (int t = 0; t < count; ++t, tile += stride) {
    const float *scales = values.scales + t * groups, *zeros = values.zeros + t * groups;
    if (Codes::kGrouped && group % Codes::Simd::kLanes == 0) {
      UnpackGroups<Codes>(values.at(t, 0), groups, group, scales, zeros, tile);
      continue;
    }
    UnpackChannels<Codes>(values.at(t, 0), head_dim, tile);
    if constexpr (Codes::kGrouped) {
      float* to = tile;
      for (int g = 0; g < groups; ++g, to += group) {
        const float scale = scales[g], zero = zeros[g];
        for (int c = 0; c < group; ++c) to[c] = to[c] * scale + zero;
      }
    }
  }
}

}  // namespace
}  // namespace ziggurat::cpu

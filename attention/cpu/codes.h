// How codes (int8, fp8, int4, int2) become numbers in registers, and keys of codes (score_tiles.h).
//
// A scale never multiplies codes of keys: it belongs on the query where it is that of a channel,
// and on the score where it is that of a token.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/cpu/score_tiles.h"
#include "attention/cpu/vector_math.h"

namespace ziggurat::cpu {
namespace {

// ---- Encodings ---------------------------------------------------------------------------------
//
//   kBits            of one code
//   kGrouped         scales and zeros are those of groups; else a scale is that of a token
//   kFactor          what is unpacked, times this, is what the code stands for
//   Channels(x, to)  the 32 / kBits channels of cells of keys
//   Load(p)          kLanes neighbouring channels of a value

template <class V>
struct Int8Codes {
  using Simd = V;
  static constexpr int kBits = 8;
  static constexpr bool kGrouped = false;
  static constexpr float kFactor = 1;

  static void Channels(typename V::Bits cells, typename V::Float* channels) {
    // Behind the exponent of 2^23, or of 2^15 a byte further up, an unsigned byte is a number.
    const typename V::Bits low = V::Xor(cells, V::SetBits(0x80808080));
    const typename V::Bits high = V::template ShiftRight<16>(low);
    const typename V::Float first = V::Set(8388608 + 128), second = V::Set(32768 + 128);
    channels[0] = V::Sub(V::AsFloat(V::AndOr(low, 0xff, 0x4b000000)), first);
    channels[1] = V::Sub(V::AsFloat(V::AndOr(low, 0xff00, 0x47000000)), second);
    channels[2] = V::Sub(V::AsFloat(V::AndOr(high, 0xff, 0x4b000000)), first);
    channels[3] = V::Sub(V::AsFloat(V::AndOr(high, 0xff00, 0x47000000)), second);
  }
  static typename V::Float Load(const std::byte* p) { return V::ToFloat(V::LoadSignedBytes(p)); }
};

/// e4m3: a sign, 4 bits of exponent with bias 7, 3 of mantissa. NaN is never stored.
template <class V>
struct Fp8Codes {
  using Simd = V;
  static constexpr int kBits = 8;
  static constexpr bool kGrouped = false;
  static constexpr float kFactor = 256;

  /// `x`: the sign in bits 27 to 31, exponent and mantissa from bit 26 down to 20.
  static typename V::Float FromFields(typename V::Bits x) {
    // An exponent 15 too low but for bits that need only be set; kFactor makes up for the rest. A
    // subnormal then has a leading 1 that it should not have, and half the weight.
    const typename V::Float fraction = V::AsFloat(V::AndOr(x, 0x87f00000, 112u << 23));
    const typename V::Float leading = V::AsFloat(V::AndOr(x, 0x80000000, 113u << 23));
    return V::FixSubnormals(x, 0x07800000, fraction, leading);
  }
  static void Channels(typename V::Bits cells, typename V::Float* channels) {
    channels[0] = FromFields(V::template ShiftRightSigned<4>(V::template ShiftLeft<24>(cells)));
    channels[1] = FromFields(V::template ShiftRightSigned<4>(V::template ShiftLeft<16>(cells)));
    channels[2] = FromFields(V::template ShiftRightSigned<4>(V::template ShiftLeft<8>(cells)));
    channels[3] = FromFields(V::template ShiftRightSigned<4>(cells));
  }
  static typename V::Float Load(const std::byte* p) {
    return FromFields(V::template ShiftLeft<20>(V::LoadSignedBytes(p)));
  }
};

/// `kCount` floats, as many channels as a cell has.
template <int kCount>
struct FloatCells;
template <>
struct FloatCells<8> {
  using Type = float __attribute__((vector_size(8 * sizeof(float))));
};
template <>
struct FloatCells<16> {
  using Type = float __attribute__((vector_size(16 * sizeof(float))));
};

/// int4 and int2.
template <class V, int kBits_>
struct GroupedCodes {
  using Simd = V;
  static constexpr int kBits = kBits_;
  static constexpr bool kGrouped = true;
  static constexpr float kFactor = 1;
  static constexpr int kChannelsPerCell = 32 / kBits;
  using QueryCells = typename FloatCells<kChannelsPerCell>::Type;

  static void Channels(typename V::Bits cells, typename V::Float* channels) {
    Unpack<0>(cells, channels);
  }
  static typename V::Float Load(const std::byte* p) {
    return V::template Low<kBits>(V::template Spread<kBits>(p));
  }

  // LookedUpValues:
  static typename V::Float Steps() { return V::template Low<kBits>(V::Counting()); }
  static void Spread32(const std::byte* p, typename V::Bits* codes) {
    V::template Spread32<kBits>(p, codes);
  }
  /// That entry i of what Spread32 gives belongs to.
  static constexpr int ChannelOf(int i) { return i % kBits * kChannelsPerCell + i / kBits; }

 private:
  template <int kFirst>
  static void Unpack(typename V::Bits cells, typename V::Float* channels) {
    if constexpr (kFirst < kChannelsPerCell) {
      channels[kFirst] = V::template Low<kBits>(V::template ShiftRight<kBits * kFirst>(cells));
      Unpack<kFirst + 1>(cells, channels);
    }
  }
};

// ---- Keys --------------------------------------------------------------------------------------

/// Row of codes: a cell has 32 / kBits channels, a query one float for each.
template <class Codes>
struct CodedKeys {
  using Simd = typename Codes::Simd;
  using One = CodedKeys;
  using Many = CodedKeys;
  static constexpr int kChannelsPerRow = 32 / Codes::kBits;
  static constexpr int kCells = kChannelsPerRow;
  struct Row {
    typename Simd::Float channels[kChannelsPerRow];
  };

  static Row Unpack(typename Simd::Bits cells) {
    Row row;
    Codes::Channels(cells, row.channels);
    return row;
  }
  static Row Load(const std::byte* p) { return Unpack(Simd::LoadBits(p)); }
  static Row Load(const std::byte* p, int slots) { return Unpack(Simd::LoadBits(p, slots)); }
  static typename Simd::Float Dot(typename Simd::Float sum, const Row& row, const float* query) {
#pragma GCC unroll 16
    for (int c = 0; c < kChannelsPerRow; ++c) {
      sum = Simd::Fma(row.channels[c], Simd::Set(query[c]), sum);
    }
    return sum;
  }
  static void PackRow(const float* channels, float* cells) {
    __builtin_memcpy(cells, channels, sizeof(float) * kCells);
  }
};

}  // namespace
}  // namespace ziggurat::cpu

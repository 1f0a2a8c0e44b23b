// Unpacks codes into small tiles of f32, in which the micro kernels of plain keys and values work.
//
// Codes are read where they lie, a vector of slots (keys) or of channels (values) at a time; what
// is unpacked never leaves the first level cache. Grouped codes become what they stand for. Codes
// with one scale per slot stay as they are: their scale belongs on the slot's score, or weight, one
// multiplication instead of head_dim.
#pragma once

#include <xmmintrin.h>

#include <cstddef>
#include <cstdint>

#include "attention/cpu/vector_math.h"

namespace ziggurat::cpu {
namespace {

/// Floats of a tile of values; of keys a tile has head_dim vectors.
constexpr int kValueTileFloats = 4096;
constexpr int kMaxHeadDim = 256;

// ---- Encodings ---------------------------------------------------------------------------------
//
//   kBits            of one code
//   kFactor          what is unpacked, times this, is what the code stands for
//   Channels(x, to)  the 32 / kBits channels of cells of keys
//   Load(p)          kLanes neighbouring channels of a value

template <class V>
struct Int8Codes {
  using Simd = V;
  static constexpr int kBits = 8;
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

template <class V>
struct Int4Codes {
  using Simd = V;
  static constexpr int kBits = 4;
  static constexpr float kFactor = 1;

  static void Channels(typename V::Bits cells, typename V::Float* channels) {
    channels[0] = V::Low4(cells);
    channels[1] = V::Low4(V::template ShiftRight<4>(cells));
    channels[2] = V::Low4(V::template ShiftRight<8>(cells));
    channels[3] = V::Low4(V::template ShiftRight<12>(cells));
    channels[4] = V::Low4(V::template ShiftRight<16>(cells));
    channels[5] = V::Low4(V::template ShiftRight<20>(cells));
    channels[6] = V::Low4(V::template ShiftRight<24>(cells));
    channels[7] = V::Low4(V::template ShiftRight<28>(cells));
  }
  static typename V::Float Load(const std::byte* p) { return V::Low4(V::Spread4(p)); }
};

template <class V>
struct Int2Codes {
  using Simd = V;
  static constexpr int kBits = 2;
  static constexpr float kFactor = 1;

  static void Channels(typename V::Bits cells, typename V::Float* channels) {
    Unpack<0>(cells, channels);
  }
  static typename V::Float Load(const std::byte* p) { return V::Low2(V::Spread2(p)); }

 private:
  template <int kFirst>
  static void Unpack(typename V::Bits cells, typename V::Float* channels) {
    if constexpr (kFirst < 16) {
      channels[kFirst] = V::Low2(V::template ShiftRight<2 * kFirst>(cells));
      Unpack<kFirst + 1>(cells, channels);
    }
  }
};

// ---- Tiles -------------------------------------------------------------------------------------

/// `slots` <= kLanes keys of one head.
struct CodedKeys {
  const std::byte* cells;  ///< of the first slot and channels
  size_t row_bytes;        ///< from cells to those of the next channels
  int head_dim;
  int slots;
  const float* scale_zero;  ///< grouped: [head_dim] scales, [head_dim] zeros, of all the slots
  const std::byte* ahead;   ///< what is fetched into L2 meanwhile
  size_t ahead_bytes;       ///< of it for each row of cells
};

/// `count` values of one head.
struct CodedValues {
  const std::byte* const* rows;  ///< [count]
  size_t offset;                 ///< of the head in each row
  int count;
  int head_dim;
  int group;               ///< grouped: channels of a group
  const float* scales;     ///< grouped: [count, head_dim / group]
  const float* zeros;      ///< the same
  const std::byte* ahead;  ///< what is fetched into L2 meanwhile
  size_t ahead_bytes;      ///< of it for each value
};

inline void Prefetch(const std::byte* p, size_t bytes) {
  for (size_t line = 0; line < bytes; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(p + line), _MM_HINT_T1);
  }
}

/// tile[channel][lane]; lanes from `slots` on hold anything. Takes copies: a store to the tile
/// might else be one to the arguments.
template <class Codes, bool kGrouped>
void UnpackKeys(const CodedKeys keys, float* tile) {
  using V = typename Codes::Simd;
  constexpr int kChannels = 32 / Codes::kBits;
  const std::byte* cells = keys.cells;
  const std::byte* ahead = keys.ahead;
  const float* scales = keys.scale_zero;
  const float* const end = tile + static_cast<size_t>(keys.head_dim) * V::kLanes;
  for (; tile < end; tile += kChannels * V::kLanes, cells += keys.row_bytes) {
    typename V::Float channels[kChannels];
    Prefetch(ahead, keys.ahead_bytes);
    ahead += keys.ahead_bytes;
    Codes::Channels(keys.slots == V::kLanes ? V::LoadBits(cells) : V::LoadBits(cells, keys.slots),
                    channels);
#pragma GCC unroll 16
    for (int i = 0; i < kChannels; ++i) {
      if constexpr (kGrouped) {
        channels[i] = V::Fma(channels[i], V::Set(scales[i]), V::Set(scales[keys.head_dim + i]));
      }
      V::Store(tile + i * V::kLanes, channels[i]);
    }
    scales += kChannels;
  }
}

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

/// tile[t][channel], rows `stride` apart, a multiple of kLanes.
template <class Codes, bool kGrouped>
void UnpackValues(const CodedValues values, int stride, float* tile) {
  using V = typename Codes::Simd;
  constexpr size_t kBytes = V::kLanes * Codes::kBits / 8;
  const int dim = values.head_dim, group = values.group;
  const std::byte* ahead = values.ahead;
  const float* scales = values.scales;
  const float* zeros = values.zeros;
  for (int t = 0; t < values.count; ++t, tile += stride) {
    Prefetch(ahead, values.ahead_bytes);
    ahead += values.ahead_bytes;
    const std::byte* row = values.rows[t] + values.offset;
    if (!kGrouped || group % V::kLanes != 0) {
      UnpackChannels<Codes>(row, dim, tile);
      if constexpr (kGrouped) {
        for (int c = 0; c < dim; ++c) tile[c] = tile[c] * scales[c / group] + zeros[c / group];
        scales += dim / group;
        zeros += dim / group;
      }
      continue;
    }
    float* to = tile;
    for (const float* const end = tile + dim; to < end; ++scales, ++zeros) {
      const typename V::Float scale = V::Set(*scales), zero = V::Set(*zeros);
      for (const float* const group_end = to + group; to < group_end;
           to += V::kLanes, row += kBytes) {
        V::Store(to, V::Fma(Codes::Load(row), scale, zero));
      }
    }
  }
}

/// What unpacking one encoding takes; so that what follows is compiled once for all.
struct CodeTiles {
  void (*unpack_keys)(CodedKeys keys, float* tile);
  void (*unpack_values)(CodedValues values, int stride, float* tile);
  float factor;
};

template <class Codes, bool kGrouped>
constexpr CodeTiles kCodeTiles = {UnpackKeys<Codes, kGrouped>, UnpackValues<Codes, kGrouped>,
                                  Codes::kFactor};

}  // namespace
}  // namespace ziggurat::cpu

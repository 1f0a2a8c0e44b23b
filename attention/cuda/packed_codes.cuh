// Codes as pairs of bf16, which is what tensor cores take, without a detour over single numbers.
#pragma once

#include "attention/cuda/tensor_core.cuh"

namespace ziggurat::cuda {

template <Encoding kEncoding>
struct CellTraits {
  static constexpr int kChannels = 32 / EncodingBits(kEncoding);
  static constexpr int kPairs = kChannels / 2;
  /// Codes of 4 and 2 bits come out of shifts and masks as (j, j + kPairs); others as neighbours.
  static constexpr bool kApart = IsGrouped(kEncoding);

  /// Channel of a cell that stands in the lower (0) or upper (1) half of pair `pair`.
  __device__ static constexpr int ChannelOf(int pair, int half) {
    return kApart ? pair + half * kPairs : 2 * pair + half;
  }
};

/// 128 + code in both halves: the seven bits of a bf16's mantissa count ones from 128 on.
constexpr uint32_t kBiasPair = 0x43004300u;
constexpr uint32_t kMinusBiasPair = 0xc300c300u;
constexpr uint32_t kOnePair = 0x3f803f80u;

/// An int8 as f32: its bits in the mantissa of 2^23, which then is taken away again.
__device__ inline float Int8ToFloat(uint32_t cell, int byte) {
  const uint32_t biased = (cell >> (8 * byte) & 0xff) ^ 0x80;
  return __uint_as_float(0x4b000000u | biased) - 8388736.0f;
}

/// An e4m3 that is a number: its exponent and mantissa as those of an f32 2^120 times smaller.
__device__ inline float Fp8ToFloat(uint32_t cell, int byte) {
  const uint32_t code = cell >> (8 * byte);
  return __uint_as_float((code & 0x80) << 24 | (code & 0x7f) << 20) * 0x1p120f;
}

/// Two numbers that are bf16 already.
__device__ inline uint32_t PackExact(float low, float high) {
  return __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
}

/// Pair `pair` of a cell; of codes of 4 and 2 bits without scale and zero.
template <Encoding kEncoding>
__device__ uint32_t PairOfCell(uint32_t cell, int pair) {
  if constexpr (kEncoding == Encoding::kBf16) return cell;
  if constexpr (kEncoding == Encoding::kInt8) {
    return PackExact(Int8ToFloat(cell, 2 * pair), Int8ToFloat(cell, 2 * pair + 1));
  }
  if constexpr (kEncoding == Encoding::kFp8) {
    return PackExact(Fp8ToFloat(cell, 2 * pair), Fp8ToFloat(cell, 2 * pair + 1));
  }
  constexpr uint32_t kMask = kEncoding == Encoding::kInt4 ? 0x000f000fu : 0x00030003u;
  const int shift = pair * EncodingBits(kEncoding);
  return FusedBf16((cell >> shift & kMask) | kBiasPair, kOnePair, kMinusBiasPair);
}

/// Channel `channel` of the cells of two slots: the first slot's in the lower half.
template <Encoding kEncoding>
__device__ uint32_t PairOfSlots(uint32_t first, uint32_t second, int channel) {
  if constexpr (kEncoding == Encoding::kBf16) {
    return __byte_perm(first, second, channel == 0 ? 0x5410 : 0x7632);
  }
  if constexpr (kEncoding == Encoding::kInt8) {
    return PackExact(Int8ToFloat(first, channel), Int8ToFloat(second, channel));
  }
  if constexpr (kEncoding == Encoding::kFp8) {
    return PackExact(Fp8ToFloat(first, channel), Fp8ToFloat(second, channel));
  }
  constexpr int kHalf = CellTraits<kEncoding>::kPairs;
  const uint32_t halves = __byte_perm(first, second, channel < kHalf ? 0x5410 : 0x7632);
  return PairOfCell<kEncoding>(halves, channel % kHalf);
}

}  // namespace ziggurat::cuda

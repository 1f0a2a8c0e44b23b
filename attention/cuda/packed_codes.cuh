// Codes as pairs of bf16, which is what tensor cores take, without a detour over single numbers.
#pragma once

#include "attention/cuda/tensor_core.cuh"

namespace ziggurat::cuda {

template <Encoding kEncoding>
struct CellTraits {
  static constexpr int kChannels = 32 / EncodingBits(kEncoding);
  static constexpr int kPairs = kChannels / 2;

  /// Channel of a cell that stands in the lower (0) or upper (1) half of pair `pair`: shifts and
  /// masks bring out those that are half a cell apart.
  __device__ static constexpr int ChannelOf(int pair, int half) { return pair + half * kPairs; }
  /// In which order pairs are multiplied. Two that follow one another are a step of tensor cores:
  /// they stand in the same place of a byte.
  __device__ static constexpr int PairAt(int index) {
    return kPairs == 1 ? 0 : index / 2 + index % 2 * (kPairs / 2);
  }
};

/// 128 + code in both halves: the seven bits of a bf16's mantissa count ones from 128 on.
constexpr uint32_t kBiasPair = 0x43004300u;
constexpr uint32_t kMinusBiasPair = 0xc300c300u;
constexpr uint32_t kOnePair = 0x3f803f80u;
constexpr uint32_t kMinusZeroPair = 0x80008000u;
/// The lowest code of both halves.
template <Encoding kEncoding>
constexpr uint32_t kCodeMaskPair = kEncoding == Encoding::kInt4 ? 0x000f000fu : 0x00030003u;

/// What the whole numbers of TinyPairOfCell count: 2^kTinyExponent.
constexpr int kTinyExponent = -133;
/// What meets them has this power of two in it, so that neither products nor sums leave f32.
constexpr int kPowerForTiny = 60;

/// 2^exponent, of a normal float.
__device__ inline float PowerOfTwo(int exponent) {
  return __uint_as_float(static_cast<uint32_t>(127 + exponent) << 23);
}

/// Codes of pair `pair` come with this power of two besides.
template <Encoding kEncoding>
__device__ constexpr int TinyShift(int pair) {
  return EncodingBits(kEncoding) * pair % 8;
}

/// Pair `pair` of a cell of 4 or 2 bits as tiny numbers: code 2^(kTinyExponent + TinyShift(pair)).
/// The bits of a code are left where they stand in their byte, since the first 256 bf16, subnormal
/// ones and those of the lowest exponent, count evenly. Tensor cores multiply subnormal numbers as
/// any other.
template <Encoding kEncoding>
__device__ uint32_t TinyPairOfCell(uint32_t cell, int pair) {
  static_assert(IsGrouped(kEncoding));
  const int at = pair * EncodingBits(kEncoding);
  return cell >> (at / 8 * 8) & kCodeMaskPair<kEncoding> << (at % 8);
}

/// Pair `pair` of a cell; of codes of 4 and 2 bits without scale and zero. Exact.
template <Encoding kEncoding>
__device__ uint32_t PairOfCell(uint32_t cell, int pair) {
  if constexpr (kEncoding == Encoding::kBf16) return cell;
  if constexpr (kEncoding == Encoding::kInt8) {
    // Seven bits count from 128 on; from that, 128 is taken away, or 256 where the sign is set.
    const uint32_t codes = cell >> (8 * pair);
    return FusedBf16(AndOr(codes, 0x007f007fu, kBiasPair), kOnePair,
                     AndOr(codes, 0x00800080u, kMinusBiasPair));
  }
  if constexpr (kEncoding == Encoding::kFp8) {
    // Exponent and mantissa as those of a bf16 2^120 times smaller.
    constexpr uint32_t kPower = 0x7b807b80u;
    const uint32_t codes = cell << (8 - 8 * pair);
    return FusedBf16(AndOr(codes >> 4, 0x07f007f0u, codes & 0x80008000u), kPower, kMinusZeroPair);
  }
  if constexpr (IsGrouped(kEncoding)) {
    const uint32_t codes = cell >> (pair * EncodingBits(kEncoding));
    return FusedBf16(AndOr(codes, kCodeMaskPair<kEncoding>, kBiasPair), kOnePair, kMinusBiasPair);
  }
}

/// Channel `channel` of the cells of two slots: the first slot's in the lower half.
template <Encoding kEncoding>
__device__ uint32_t PairOfSlots(uint32_t first, uint32_t second, int channel) {
  constexpr int kHalf = CellTraits<kEncoding>::kPairs;
  const uint32_t halves = __byte_perm(first, second, channel < kHalf ? 0x5410 : 0x7632);
  return PairOfCell<kEncoding>(halves, channel % kHalf);
}

/// The bf16 of channels (pair, pair + kPairs) of a cell, out of the words of all its channels.
template <Encoding kEncoding>
__device__ uint32_t PairOfChannels(const uint32_t* words, int pair) {
  constexpr int kPairs = CellTraits<kEncoding>::kPairs;
  return __byte_perm(words[pair / 2], words[(pair + kPairs) / 2], pair % 2 == 0 ? 0x5410 : 0x7632);
}

}  // namespace ziggurat::cuda

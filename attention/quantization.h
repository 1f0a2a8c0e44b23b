// What the codes of a quantized cache are, number by number, in f32. Every backend gives exactly
// these codes, scales and zeros.
//
// Numbers that are none: a NaN has code 0 and is left out when a scale is made, so it spreads to
// nothing else. An infinity leaves its token (int8, fp8) or its group (int4, int2) without a finite
// scale, and with it nothing else.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "attention/bfloat16.h"
#include "attention/fp8.h"
#include "attention/host_device.h"
#include "block_manager/cache_format.h"

namespace ziggurat {

// ---- int8, fp8: one scale for a token of a head, symmetric -------------------------------------

/// The largest |x|; 0 for an empty or all-NaN span.
ZIGGURAT_HOST_DEVICE inline float LargestMagnitude(const float* x, size_t count) {
  float largest = 0;
  for (size_t i = 0; i < count; ++i) {
    const float magnitude = std::fabs(x[i]);
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

/// A stored channel stands for scale times its code.
ZIGGURAT_HOST_DEVICE inline float TokenScale(Encoding encoding, float largest_magnitude) {
  return largest_magnitude / (encoding == Encoding::kInt8 ? 127.0f : kLargestE4m3);
}

/// Round half to even, in [-127, 127].
ZIGGURAT_HOST_DEVICE inline int8_t Int8Code(float x, float scale) {
  if (scale == 0) return 0;
  const float rounded = std::nearbyint(x / scale);
  if (rounded != rounded) return 0;
  return static_cast<int8_t>(rounded > 127 ? 127.0f : rounded < -127 ? -127.0f : rounded);
}

ZIGGURAT_HOST_DEVICE inline uint8_t Fp8Code(float x, float scale) {
  if (scale == 0) return 0;
  const float scaled = x / scale;
  return scaled != scaled ? uint8_t{0} : FloatToE4m3(scaled);
}

// ---- int4, int2: a scale and a zero for a group, asymmetric (KIVI, arXiv:2402.02750) ----

/// A stored channel stands for scale times its code, plus zero.
struct GroupScale {
  float scale = 0;
  float zero = 0;
};

/// How scale and zero are rounded before codes are made from them: as they are stored.
struct RoundToBf16 {
  ZIGGURAT_HOST_DEVICE float operator()(float x) const { return Bf16ToFloat(FloatToBf16(x)); }
};

constexpr int LargestCode(int bits) { return (1 << bits) - 1; }

/// zero = lowest, scale = (highest - lowest) / (2^bits - 1). A zero is never -0.
template <class Rounding = RoundToBf16>
ZIGGURAT_HOST_DEVICE GroupScale GroupScaleOf(float lowest, float highest, int bits,
                                             Rounding round = {}) {
  return {round((highest - lowest) / static_cast<float>(LargestCode(bits))), round(lowest + 0.0f)};
}

/// Of `count` numbers `stride` apart.
template <class Rounding = RoundToBf16>
GroupScale GroupScaleOf(const float* x, size_t count, size_t stride, int bits,
                        Rounding round = {}) {
  float lowest = std::numeric_limits<float>::infinity(), highest = -lowest;
  for (size_t i = 0; i < count; ++i) {
    const float value = x[i * stride];
    lowest = value < lowest ? value : lowest;
    highest = value > highest ? value : highest;
  }
  return GroupScaleOf(lowest, highest, bits, round);
}

/// Round half to even, in [0, 2^bits - 1]; 0 where the scale is 0 (a constant group).
ZIGGURAT_HOST_DEVICE inline uint8_t GroupCode(float x, GroupScale group, int bits) {
  if (group.scale == 0) return 0;
  const float rounded = std::nearbyint((x - group.zero) / group.scale);
  if (!(rounded > 0)) return 0;
  const auto largest = static_cast<float>(LargestCode(bits));
  return static_cast<uint8_t>(rounded > largest ? largest : rounded);
}

}  // namespace ziggurat

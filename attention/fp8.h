// e4m3 as it lies in memory (OCP 8-bit floating point): a sign, 4 bits of exponent with bias 7, 3
// of mantissa; the largest number is 448, there is no infinity, and 0x7f and 0xff are NaN.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "attention/host_device.h"

namespace ziggurat {

inline constexpr float kLargestE4m3 = 448;

ZIGGURAT_HOST_DEVICE inline float E4m3ToFloat(uint8_t code) {
  const uint32_t magnitude = code & 0x7f;
  float value = 0;
  if (magnitude == 0x7f) {
    value = std::numeric_limits<float>::quiet_NaN();
  } else if (magnitude < 8) {
    value = static_cast<float>(magnitude) * 0x1p-9f;
  } else {
    value = std::bit_cast<float>((magnitude << 20) + ((127u - 7u) << 23));
  }
  return (code & 0x80) != 0 ? -value : value;
}

/// Rounds to nearest, ties to even; what is larger than 448 becomes 448, infinity too. NaN stays
/// NaN.
ZIGGURAT_HOST_DEVICE inline uint8_t FloatToE4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value) & 0x7fffffff;
  const uint32_t sign = std::bit_cast<uint32_t>(value) >> 24 & 0x80;
  const float magnitude = std::bit_cast<float>(bits);
  uint32_t code = 0;
  if (value != value) {
    code = 0x7f;
  } else if (magnitude >= kLargestE4m3) {
    code = 0x7e;
  } else if (magnitude < 0x1p-6f) {
    // Multiples of 2^-9, which is the unit of the last place of 2^14.
    code = std::bit_cast<uint32_t>(magnitude + 0x1p14f) - std::bit_cast<uint32_t>(0x1p14f);
  } else {
    code = ((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - ((127 - 7) << 3);
  }
  return static_cast<uint8_t>(sign | code);
}

}  // namespace ziggurat

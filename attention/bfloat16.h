// bf16 as it lies in memory: the upper 16 bits of an IEEE single.
#pragma once

#include <bit>
#include <cstdint>

#include "attention/host_device.h"

namespace ziggurat {

ZIGGURAT_HOST_DEVICE inline float Bf16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

/// Rounds to nearest, ties to even; a NaN stays a (quiet) NaN.
ZIGGURAT_HOST_DEVICE inline uint16_t FloatToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (value != value) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace ziggurat

// One element of a tensor, as double.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/bfloat16.h"
#include "block_manager/cache_format.h"

namespace ziggurat::reference {

inline double LoadElement(ElementType element, const void* data, size_t index) {
  if (element == ElementType::kF32) return static_cast<const float*>(data)[index];
  return Bf16ToFloat(static_cast<const uint16_t*>(data)[index]);
}

inline void StoreElement(ElementType element, void* data, size_t index, double value) {
  const float rounded = static_cast<float>(value);
  if (element == ElementType::kF32) {
    static_cast<float*>(data)[index] = rounded;
  } else {
    static_cast<uint16_t*>(data)[index] = FloatToBf16(rounded);
  }
}

}  // namespace ziggurat::reference

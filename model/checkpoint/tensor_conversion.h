// Weights as the decoder wants them: f32 or bf16, and finite.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "model/checkpoint/safetensors.h"

namespace ziggurat {

/// The nearest bf16 (its bits), ties to even; NaN stays NaN, what is too large becomes infinite.
inline uint16_t Bf16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float FloatFromBf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

/// Exact; subnormal numbers too.
float FloatFromF16(uint16_t bits);

/// Copies F32, F16 or BF16 weights into `out`, [num_elements], rounding to nearest even where bf16
/// cannot hold them. To share a large tensor among threads, convert its Rows.
/// UNIMPLEMENTED: another dtype. INVALID_ARGUMENT: `out` has another size. DATA_LOSS: a weight is
/// NaN or infinite (or too large for bf16); names the tensor and the element. `name` is for
/// messages only.
absl::Status ConvertToF32(std::string_view name, const TensorView& tensor, absl::Span<float> out);
absl::Status ConvertToBf16(std::string_view name, const TensorView& tensor,
                           absl::Span<uint16_t> out);

}  // namespace ziggurat

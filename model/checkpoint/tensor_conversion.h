// Weights as the decoder wants them: f32 or bf16, and finite.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "model/checkpoint/safetensors.h"

namespace ziggurat {

/// Exact; subnormal numbers too.
float FloatFromF16(uint16_t bits);

/// Copies F32, F16 or BF16 weights into `out`, [num_elements], rounding to nearest even where bf16
/// cannot hold them. To share a large tensor among threads, convert its Rows, and give the tensor
/// as `whole`.
/// UNIMPLEMENTED: another dtype. INVALID_ARGUMENT: `out` has another size. DATA_LOSS: a weight is
/// NaN or infinite (or too large for bf16); names the tensor and the element, counted in the whole
/// tensor. `name` is for messages only.
absl::Status ConvertToF32(std::string_view name, const TensorView& tensor, absl::Span<float> out,
                          const TensorView* whole = nullptr);
absl::Status ConvertToBf16(std::string_view name, const TensorView& tensor,
                           absl::Span<uint16_t> out, const TensorView* whole = nullptr);

}  // namespace ziggurat

#include "attention/backend.h"

#include <cmath>

namespace ziggurat {

void AttentionBackend::EmbedTokens(ElementType element, const void* table,
                                   absl::Span<const int32_t> ids, int width, float* out) {
  const size_t row_bytes = ElementBytes(element) * width;
  for (size_t i = 0; i < ids.size(); ++i) {
    Convert(element, static_cast<const std::byte*>(table) + ids[i] * row_bytes, width,
            ElementType::kF32, out + i * width);
  }
}

void AttentionBackend::FillAngles(absl::Span<const float> inverse_frequencies, int first, int count,
                                  float* cos, float* sin) {
  for (int position = first; position < first + count; ++position) {
    for (const float frequency : inverse_frequencies) {
      const double angle = static_cast<double>(position) * frequency;
      *cos++ = static_cast<float>(std::cos(angle));
      *sin++ = static_cast<float>(std::sin(angle));
    }
  }
}

}  // namespace ziggurat

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

size_t TailMergeBytes(const AttentionShape& shape, int count) {
  const size_t tokens = static_cast<size_t>(count) * shape.num_kv_heads;
  return tokens * (4 * shape.head_dim + 2) * sizeof(float);
}

void PromptBackend::MergeTails(const AttentionShape& shape, PoolView pool,
                               absl::Span<const TailMerge> merges) {
  const int heads = shape.num_kv_heads;
  for (const TailMerge& merge : merges) {
    const int m = merge.count, retained = merge.retained;
    // Of both layers the decoded tails; then the angles, and which tokens stay and which do not.
    const size_t tail = static_cast<size_t>(m) * heads * shape.head_dim;
    auto* k0 = static_cast<float*>(Lend(TailMergeBytes(shape, m)));
    float *v0 = k0 + tail, *k1 = v0 + tail, *v1 = k1 + tail, *angles = v1 + tail;
    auto* kept = reinterpret_cast<int32_t*>(angles + static_cast<size_t>(m) * heads);
    int32_t* rest = kept + static_cast<size_t>(heads) * retained;
    ReadTokens(shape, pool, *merge.lower_tail, 0, m, k0, v0);
    ReadTokens(shape, pool, *merge.upper_tail, 0, m, k1, v1);
    MergeAngles(shape, ElementType::kF32, k0, k1, m, angles);
    SelectBest(angles, m, heads, m, retained, kept);
    Complement(kept, heads, retained, m, rest);
    const KeyValues lower = {ElementType::kF32, k0, v0}, upper = {ElementType::kF32, k1, v1};
    const auto rows_of = [](const int32_t* of_head, int count) {
      return TokenChoice::Listed(of_head, count, count);
    };
    WriteMerged(shape, lower, upper, rows_of(rest, merge.merged()), merge.t, pool,
                *merge.lower_merged, *merge.upper_merged, merge.first_merged_slot);
    WriteTokens(shape, lower, rows_of(kept, retained), pool, *merge.lower_retained,
                merge.first_retained_slot);
    WriteTokens(shape, upper, rows_of(kept, retained), pool, *merge.upper_retained,
                merge.first_retained_slot);
  }
}

}  // namespace ziggurat

#include "model/cache_ops/prompt_needs.h"

#include <algorithm>

namespace ziggurat {

size_t LayPromptNeeds(const ModelShape& shape, int tokens, const PrefillNeeds& needs,
                      std::byte* base, PromptBuffers* buffers) {
  size_t next = 0;
  const auto take = [&](auto** part, size_t rows, size_t row_bytes) {
    using Type = std::remove_reference_t<decltype(**part)>;
    *part = base == nullptr || rows == 0 ? nullptr : reinterpret_cast<Type*>(base + next);
    next += (rows * row_bytes + 63) / 64 * 64;
  };
  const auto take_bytes = [&](void** part, size_t rows, size_t row_bytes) {
    std::byte* bytes = nullptr;
    take(&bytes, rows, row_bytes);
    *part = bytes;
  };
  const size_t n = tokens, e = ElementBytes(shape.element);
  const size_t q_row = e * shape.num_q_heads * shape.head_dim;
  const size_t kv_row = e * shape.num_kv_heads * shape.head_dim;
  const size_t heads = shape.num_kv_heads;
  *buffers = PromptBuffers();
  buffers->window_rows = needs.window_rows < 0 ? tokens : std::min(needs.window_rows, tokens);
  take_bytes(&buffers->window_q, buffers->window_rows, q_row);
  // Angles select, too.
  const size_t score_rows = std::max<size_t>(needs.score_heads, needs.lower_kv ? heads : 0);
  take(&buffers->scores, score_rows, sizeof(float) * n);
  take(&buffers->selection, needs.selects || needs.lower_kv ? heads : 0, sizeof(int32_t) * n);
  take_bytes(&buffers->lower_k, needs.lower_kv ? n : 0, kv_row);
  take_bytes(&buffers->lower_v, needs.lower_kv ? n : 0, kv_row);
  take_bytes(&buffers->low_q, needs.group_qk ? n : 0, q_row);
  take_bytes(&buffers->low_k, needs.group_qk ? n : 0, kv_row);
  take(&buffers->stored_scores, needs.stored_score_layers * heads, sizeof(float) * n);
  take(&buffers->recall_sums, needs.recall ? heads : 0, sizeof(float) * n);
  return next;
}

}  // namespace ziggurat

#include "model/cache_ops/prompt_needs.h"

#include <algorithm>

#include "model/memory_layout.h"

namespace ziggurat {

size_t LayPromptNeeds(const ModelShape& shape, int tokens, const PrefillNeeds& needs,
                      std::byte* base, PromptBuffers* buffers) {
  MemoryLayout layout(base);
  const size_t n = tokens, e = ElementBytes(shape.element);
  const size_t q_row = e * shape.num_q_heads * shape.head_dim;
  const size_t kv_row = e * shape.num_kv_heads * shape.head_dim;
  const size_t heads = shape.num_kv_heads;
  *buffers = PromptBuffers();
  buffers->window_rows = needs.window_rows < 0 ? tokens : std::min(needs.window_rows, tokens);
  layout.Take(&buffers->window_q, buffers->window_rows, q_row);
  // Angles select, too.
  const size_t score_rows = std::max<size_t>(needs.score_heads, needs.lower_kv ? heads : 0);
  layout.Take(&buffers->scores, score_rows, sizeof(float) * n);
  layout.Take(&buffers->selection, needs.selects || needs.lower_kv ? heads : 0,
              sizeof(int32_t) * n);
  layout.Take(&buffers->lower_k, needs.lower_kv ? n : 0, kv_row);
  layout.Take(&buffers->lower_v, needs.lower_kv ? n : 0, kv_row);
  layout.Take(&buffers->low_q, needs.group_qk ? n : 0, q_row);
  layout.Take(&buffers->low_k, needs.group_qk ? n : 0, kv_row);
  layout.Take(&buffers->stored_scores, needs.stored_score_layers * heads, sizeof(float) * n);
  layout.Take(&buffers->recall_sums, needs.recall ? heads : 0, sizeof(float) * n);
  return layout.bytes();
}

}  // namespace ziggurat

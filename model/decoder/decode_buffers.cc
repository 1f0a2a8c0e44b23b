#include "model/decoder/decode_buffers.h"

#include <algorithm>

#include "model/memory_layout.h"

namespace ziggurat {
namespace {

size_t Lay(const WorkspaceShape& shape, int rows, std::byte* base,
           DecodeBuffers::Pointers* pointers) {
  const ModelShape& model = shape.model;
  const size_t e = ElementBytes(model.element);
  const size_t q_width = static_cast<size_t>(model.num_q_heads) * model.head_dim;
  const size_t kv_width = static_cast<size_t>(model.num_kv_heads) * model.head_dim;
  const size_t f = static_cast<size_t>(shape.ffn_size);
  MemoryLayout layout(base);
  layout.Take(&pointers->residual, rows, sizeof(float) * model.hidden_size);
  layout.Take(&pointers->normed, rows, e * model.hidden_size);
  layout.Take(&pointers->wide, rows, e * std::max(q_width + 2 * kv_width, 2 * f));
  layout.Take(&pointers->gated, rows, e * f);
  layout.Take(&pointers->q, rows, sizeof(float) * q_width);
  layout.Take(&pointers->k, rows, sizeof(float) * kv_width);
  layout.Take(&pointers->v, rows, sizeof(float) * kv_width);
  layout.Take(&pointers->attended, rows, sizeof(float) * q_width);
  layout.Take(&pointers->lse, rows, sizeof(float) * model.num_q_heads);
  layout.Take(&pointers->low_q, rows, sizeof(float) * q_width);
  layout.Take(&pointers->distant_lse, rows, sizeof(float) * model.num_q_heads);
  layout.Take(&pointers->converted, rows, e * q_width);
  layout.Take(&pointers->cos, rows, sizeof(float) * (model.head_dim / 2));
  layout.Take(&pointers->sin, rows, sizeof(float) * (model.head_dim / 2));
  return layout.bytes();
}

}  // namespace

DecodeBuffers::Pointers DecodeBuffers::For(const WorkspaceShape& shape, int rows) {
  if (rows > capacity_rows_) {
    const int capacity = std::max({rows, capacity_rows_ + capacity_rows_ / 2, 8});
    memory_ = AllocateAligned(BytesFor(shape, capacity));
    capacity_rows_ = capacity;
  }
  return Over(shape, rows, memory_.get());
}

DecodeBuffers::Pointers DecodeBuffers::Over(const WorkspaceShape& shape, int rows,
                                            std::byte* base) {
  Pointers pointers;
  Lay(shape, rows, base, &pointers);
  return pointers;
}

size_t DecodeBuffers::BytesFor(const WorkspaceShape& shape, int rows) {
  Pointers counted;
  return Lay(shape, rows, nullptr, &counted);
}

}  // namespace ziggurat

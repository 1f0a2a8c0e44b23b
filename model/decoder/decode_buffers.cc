#include "model/decoder/decode_buffers.h"

#include <algorithm>

namespace ziggurat {
namespace {

/// Lays parts one behind the other; with a null base it only counts.
class PartCounter {
 public:
  explicit PartCounter(std::byte* base) : base_(base) {}

  template <typename T>
  void Take(T** part, int rows, size_t row_bytes) {
    *part = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + next_);
    next_ += (static_cast<size_t>(rows) * row_bytes + 63) / 64 * 64;
  }
  size_t total() const { return next_; }

 private:
  std::byte* base_;
  size_t next_ = 0;
};

size_t Lay(const WorkspaceShape& shape, int rows, std::byte* base,
           DecodeBuffers::Pointers* pointers) {
  const ModelShape& model = shape.model;
  const size_t e = ElementBytes(model.element);
  const size_t q_width = static_cast<size_t>(model.num_q_heads) * model.head_dim;
  const size_t kv_width = static_cast<size_t>(model.num_kv_heads) * model.head_dim;
  const size_t f = static_cast<size_t>(shape.ffn_size);
  PartCounter counter(base);
  counter.Take(&pointers->residual, rows, sizeof(float) * model.hidden_size);
  counter.Take(&pointers->normed, rows, e * model.hidden_size);
  counter.Take(&pointers->wide, rows, e * std::max(q_width + 2 * kv_width, 2 * f));
  counter.Take(&pointers->gated, rows, e * f);
  counter.Take(&pointers->q, rows, sizeof(float) * q_width);
  counter.Take(&pointers->k, rows, sizeof(float) * kv_width);
  counter.Take(&pointers->v, rows, sizeof(float) * kv_width);
  counter.Take(&pointers->attended, rows, sizeof(float) * q_width);
  counter.Take(&pointers->lse, rows, sizeof(float) * model.num_q_heads);
  counter.Take(&pointers->low_q, rows, sizeof(float) * q_width);
  counter.Take(&pointers->distant_lse, rows, sizeof(float) * model.num_q_heads);
  counter.Take(&pointers->converted, rows, e * q_width);
  counter.Take(&pointers->cos, rows, sizeof(float) * (model.head_dim / 2));
  counter.Take(&pointers->sin, rows, sizeof(float) * (model.head_dim / 2));
  return counter.total();
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

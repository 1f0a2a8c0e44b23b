#include "model/decoder/prefill_workspace.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace ziggurat {
namespace {

constexpr size_t kAlignment = 64;

/// Hands out aligned offsets one after the other.
class OffsetCounter {
 public:
  size_t Take(size_t rows, size_t row_bytes) {
    const size_t offset = next_;
    next_ += (rows * row_bytes + kAlignment - 1) / kAlignment * kAlignment;
    return offset;
  }
  size_t total() const { return next_; }

 private:
  size_t next_ = 0;
};

}  // namespace

PrefillLayout PrefillLayout::Of(const WorkspaceShape& shape, int tokens) {
  const ModelShape& model = shape.model;
  const size_t n = static_cast<size_t>(std::max(tokens, 0));
  const size_t c = std::min(n, static_cast<size_t>(shape.chunk_tokens));
  const size_t e = ElementBytes(model.element);
  const size_t q_width = static_cast<size_t>(model.num_q_heads) * model.head_dim;
  const size_t kv_width = static_cast<size_t>(model.num_kv_heads) * model.head_dim;
  const size_t f = static_cast<size_t>(shape.ffn_size);

  OffsetCounter counter;
  PrefillLayout layout;
  layout.residual = counter.Take(n, sizeof(float) * model.hidden_size);
  layout.q = counter.Take(n, e * q_width);
  layout.k = counter.Take(n, e * kv_width);
  layout.v = counter.Take(n, e * kv_width);
  layout.lse = counter.Take(n, sizeof(float) * model.num_q_heads);
  layout.cos = counter.Take(n, sizeof(float) * (model.head_dim / 2));
  layout.sin = counter.Take(n, sizeof(float) * (model.head_dim / 2));
  layout.normed = counter.Take(c, e * model.hidden_size);
  layout.wide = counter.Take(c, e * std::max(q_width + 2 * kv_width, 2 * f));
  layout.gated = counter.Take(c, e * f);
  layout.before = counter.Take(c, sizeof(float) * model.hidden_size);
  layout.total_bytes = counter.total();
  return layout;
}

absl::StatusOr<std::unique_ptr<WorkspaceRegion>> WorkspaceRegion::Create(size_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "cannot reserve ", bytes, " bytes of prefill workspace: ", std::strerror(errno)));
  }
  return std::unique_ptr<WorkspaceRegion>(
      new WorkspaceRegion(static_cast<std::byte*>(base), bytes, nullptr));
}

std::unique_ptr<WorkspaceRegion> WorkspaceRegion::Over(std::byte* base, size_t bytes,
                                                       std::shared_ptr<void> owner) {
  return std::unique_ptr<WorkspaceRegion>(new WorkspaceRegion(base, bytes, std::move(owner)));
}

WorkspaceRegion::~WorkspaceRegion() {
  if (owner_ == nullptr) munmap(base_, bytes_);
}

void WorkspaceRegion::ReleasePages() {
  if (owner_ == nullptr) madvise(base_, bytes_, MADV_DONTNEED);
}

}  // namespace ziggurat

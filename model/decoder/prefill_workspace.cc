#include "model/decoder/prefill_workspace.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "model/memory_layout.h"

namespace ziggurat {

PrefillLayout PrefillLayout::Of(const WorkspaceShape& shape, int tokens, std::byte* base) {
  const ModelShape& model = shape.model;
  const size_t n = static_cast<size_t>(std::max(tokens, 0));
  const size_t c = std::min(n, static_cast<size_t>(shape.chunk_tokens));
  const size_t e = ElementBytes(model.element);
  const size_t q_width = static_cast<size_t>(model.num_q_heads) * model.head_dim;
  const size_t kv_width = static_cast<size_t>(model.num_kv_heads) * model.head_dim;
  const size_t f = static_cast<size_t>(shape.ffn_size);

  MemoryLayout memory(base);
  PrefillLayout layout;
  memory.Take(&layout.residual, n, sizeof(float) * model.hidden_size);
  memory.Take(&layout.q, n, e * q_width);
  memory.Take(&layout.k, n, e * kv_width);
  memory.Take(&layout.v, n, e * kv_width);
  memory.Take(&layout.lse, n, sizeof(float) * model.num_q_heads);
  memory.Take(&layout.cos, n, sizeof(float) * (model.head_dim / 2));
  memory.Take(&layout.sin, n, sizeof(float) * (model.head_dim / 2));
  memory.Take(&layout.normed, c, e * model.hidden_size);
  memory.Take(&layout.wide, c, e * std::max(q_width + 2 * kv_width, 2 * f));
  memory.Take(&layout.gated, c, e * f);
  memory.Take(&layout.before, c, sizeof(float) * model.hidden_size);
  layout.total_bytes = memory.bytes();
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

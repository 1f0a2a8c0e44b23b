// The region of memory that prefill batches run in, each in a lane of it.
//
// Layer-major prefill needs, for a batch of n tokens, the hidden states and *one* layer's queries,
// keys and values: the only memory of size O(n) besides the blocks that are kept. The region is
// reserved once, at load, and becomes resident as batches touch it; a batch of n tokens uses
// exactly the first `PrefillLayout::Of(shape, n).total_bytes` bytes of its lane, and what its
// prompts need besides behind them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "model/model_runner.h"

namespace ziggurat {

/// What the layout depends on besides the batch.
struct WorkspaceShape {
  ModelShape model;
  int ffn_size = 0;      ///< intermediate size of the gated MLP
  int chunk_tokens = 0;  ///< most tokens whose activations exist at once
};

/// Where each part of a batch lies, as byte offsets from the start of its lane; every part starts
/// at a multiple of 64. With n tokens, c = min(n, chunk_tokens), e element bytes, H query heads, G
/// KV heads of size D, hidden size h and MLP size f. What single prompts need besides
/// (model/cache_ops/prompt_needs.h) lies behind.
struct PrefillLayout {
  static PrefillLayout Of(const WorkspaceShape& shape, int tokens);

  size_t residual = 0;     ///< [n, h] f32: the hidden states
  size_t q = 0;            ///< [n, H, D] e: queries, then what attention gives
  size_t k = 0;            ///< [n, G, D] e
  size_t v = 0;            ///< [n, G, D] e
  size_t lse = 0;          ///< [n, H] f32
  size_t cos = 0;          ///< [n, D/2] f32
  size_t sin = 0;          ///< [n, D/2] f32
  size_t normed = 0;       ///< [c, h] e
  size_t wide = 0;         ///< [c, max((H + 2G) D, 2f)] e: the fused projections
  size_t gated = 0;        ///< [c, f] e
  size_t before = 0;       ///< [c, h] f32: the hidden states before attention was added
  size_t total_bytes = 0;  ///< all of it: what such a batch uses
};

/// An anonymous mapping, resident only where it was written; or memory of another owner, a
/// device's, which it keeps alive.
class WorkspaceRegion {
 public:
  /// RESOURCE_EXHAUSTED where the address space cannot be reserved.
  static absl::StatusOr<std::unique_ptr<WorkspaceRegion>> Create(size_t bytes);
  static std::unique_ptr<WorkspaceRegion> Over(std::byte* base, size_t bytes,
                                               std::shared_ptr<void> owner);
  ~WorkspaceRegion();
  WorkspaceRegion(const WorkspaceRegion&) = delete;
  WorkspaceRegion& operator=(const WorkspaceRegion&) = delete;

  std::byte* base() const { return base_; }
  size_t bytes() const { return bytes_; }
  /// Gives the resident pages back to the system; the contents are lost.
  void ReleasePages();

 private:
  WorkspaceRegion(std::byte* base, size_t bytes, std::shared_ptr<void> owner)
      : base_(base), bytes_(bytes), owner_(std::move(owner)) {}

  std::byte* base_;
  size_t bytes_;
  std::shared_ptr<void> owner_;  ///< null: it is mapped here
};

}  // namespace ziggurat

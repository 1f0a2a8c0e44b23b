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

/// Where each part of a batch lies in its lane; every part starts at a multiple of 64 bytes. With n
/// tokens, c = min(n, chunk_tokens), e element bytes, H query heads, G KV heads of size D, hidden
/// size h and MLP size f. What single prompts need besides (model/cache_ops/prompt_needs.h) lies
/// behind.
struct PrefillLayout {
  /// Without `base`, of the lane, it only counts.
  static PrefillLayout Of(const WorkspaceShape& shape, int tokens, std::byte* base = nullptr);

  float* residual = nullptr;  ///< [n, h]: the hidden states
  void* q = nullptr;          ///< [n, H, D] e: queries, then what attention gives
  void* k = nullptr;          ///< [n, G, D] e
  void* v = nullptr;          ///< [n, G, D] e
  float* lse = nullptr;       ///< [n, H]
  float* cos = nullptr;       ///< [n, D/2]
  float* sin = nullptr;       ///< [n, D/2]
  void* normed = nullptr;     ///< [c, h] e
  void* wide = nullptr;       ///< [c, max((H + 2G) D, 2f)] e: the fused projections
  void* gated = nullptr;      ///< [c, f] e
  float* before = nullptr;    ///< [c, h]: the hidden states before attention was added
  size_t total_bytes = 0;     ///< all of it: what such a batch uses
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

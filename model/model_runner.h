// What the engine asks of a model. The decoder on libtorch implements it; tests have a stub that
// needs neither weights nor libtorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "block_manager/segment_view.h"
#include "compression/cache_plan.h"

namespace ziggurat {

/// Shape of a model, as far as cache and scheduling need it.
struct ModelShape {
  int num_layers = 0;
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int hidden_size = 0;
  int vocab_size = 0;
  int max_context_tokens = 0;
  ElementType element = ElementType::kBf16;  ///< compute type, and that of the cache
};

/// One prompt of a prefill batch.
struct PrefillPrompt {
  absl::Span<const int32_t> token_ids;
  int window_rows = 0;  ///< CachePlan::window_rows
};

/// Where and how one prompt's layer is written once it has been attended.
struct LayerWrite {
  LayerStatistic statistic;
  LayerEdit edit;
  LayerView view;  ///< segments already extended to `prompt_tokens_kept` slots
};

/// One sequence of a decode step.
struct DecodeInput {
  int32_t token_id = 0;
  int position = 0;  ///< logical position of this token
  /// Per layer: the layer's segments, which already count the slot of the new token, the segment
  /// that the token is appended to and its slot.
  struct Layer {
    LayerView view;
    int segment = 0;
    int slot = 0;
  };
  absl::Span<const Layer> layers;  ///< [num_layers]
};

/// Runs a model layer by layer. One caller at a time (the engine thread).
///
/// Prefill is layer-major: `BeginPrefill`, then for every layer in order `PrefillLayer`, then
/// `FinishPrefill`; one batch at a time. `Decode` may be called between any two of these: it uses
/// memory of its own. `AbandonPrefill` drops a batch half way and is always safe.
class ModelRunner {
 public:
  virtual ~ModelRunner() = default;
  virtual const ModelShape& shape() const = 0;

  /// The pool that the views of all later calls refer to. Called by the pool's owner before the
  /// first batch. The default is for models that never touch blocks.
  virtual void AttachPool(PoolView /*pool*/) {}

  /// Workspace bytes of a prefill batch of `tokens` tokens with `window_rows` rows kept in all.
  virtual size_t WorkspaceBytes(int tokens, int window_rows) const = 0;
  /// Bytes reserved at start, and the most that prefill batches have used so far.
  virtual size_t workspace_capacity_bytes() const = 0;
  virtual size_t workspace_high_water_bytes() const = 0;
  /// Tokens of one batch that the workspace was made for.
  virtual int max_prefill_tokens() const = 0;

  virtual absl::Status BeginPrefill(absl::Span<const PrefillPrompt> prompts) = 0;
  /// Runs layer `layer` over the batch and writes what each prompt keeps into its segments.
  /// `writes` has one entry for each prompt of the batch; one whose view is empty is skipped (its
  /// request has gone).
  virtual absl::Status PrefillLayer(int layer, absl::Span<const LayerWrite> writes) = 0;
  /// logits [prompts, vocab_size] f32: after the last token of each prompt.
  virtual absl::Status FinishPrefill(float* logits) = 0;
  virtual void AbandonPrefill() = 0;

  /// logits [inputs, vocab_size] f32.
  virtual absl::Status Decode(absl::Span<const DecodeInput> inputs, float* logits) = 0;

  /// Seconds spent in attention kernels (attend, measure, write) since start, for the metrics.
  virtual double attention_seconds() const { return 0; }
};

}  // namespace ziggurat

// What the engine asks of a model. The decoder implements it; tests have a stub that needs no
// weights.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "attention/cache_orders.h"
#include "block_manager/check.h"
#include "block_manager/segment_view.h"
#include "compression/cache_plan.h"
#include "model/sampling/sampling.h"
#include "model/scoped_seconds.h"

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
  std::string architecture = {};             ///< "LlamaForCausalLM", ...
};

/// Rows of queries that attention recall is measured by.
inline constexpr int kRecallRows = 32;

/// One prompt of a batch.
struct PrefillPrompt {
  absl::Span<const int32_t> token_ids;
  /// What each layer measures and keeps.
  const CachePlan* plan = nullptr;
};

/// What one prompt's layer was found to be, after attention.
struct LayerMeasured {
  bool lazy = false;  ///< the layer's LazyTest says so
  /// Tokens that stay, per KV head. At most LayerPlan::prompt_tokens_kept, less where the selection
  /// found less (KeepWindows); of a lazy layer, what its ring holds.
  int kept_tokens = 0;
  /// The position of each, ascending: [num_kv_heads, kept_tokens]. Empty where they are the first
  /// `first_tokens` and, behind them, the last ones; and where a device selected them (kOnDevice)
  /// and the plan has no distant tokens, which alone are laid out by position. Valid until the next
  /// call.
  absl::Span<const int32_t> kept;
  int first_tokens = 0;
  static constexpr int kOnDevice = -1;
  /// MergeRole::kUpper: tokens per KV head that stay unmerged.
  int retained_tokens = 0;
  /// The share of the attention of the last queries that falls on what stays; negative: not asked
  /// (PrefillNeeds::recall).
  double attention_recall = -1;
  /// CachePlan::importance, where it is measured during prefill and before the layer ends.
  double importance = 0;
  DistantCounts distant;  ///< PoD: of this layer's prefill

  /// The position of the i-th token that stays, of a prompt of `tokens` tokens.
  int PositionOf(int head, int i, int tokens) const {
    if (!kept.empty()) return kept[static_cast<size_t>(head) * kept_tokens + i];
    CheckThat(first_tokens != kOnDevice, "only the device knows which tokens it selected");
    return i < first_tokens ? i : tokens - kept_tokens + i;
  }
  /// The first `first` of `tokens` tokens stay, and the last `last`.
  void KeepFirstAndLast(int first, int last, int tokens) {
    kept = {};
    first_tokens = std::min(first, tokens);
    kept_tokens = std::min(first + last, tokens);
  }
};

/// Tokens of a list that go to neighbouring slots of a segment, the same range for every head.
struct TokenRange {
  int segment = 0;  ///< index in the layer's view
  int first_slot = 0;
  int first_token = 0;  ///< index in the list
  int count = 0;
};

/// Where one prompt's layer is written once it has been attended: the list is that of the tokens
/// that stay.
struct LayerWrite {
  LayerView view;  ///< empty: nothing is written (the request has gone, or the layer waits for the
                   ///< one above)
  std::vector<TokenRange> ranges;

  /// MergeRole::kUpper: the lower layer of the pair, of the same segments in the same order. The
  /// list of `ranges` are then the merged tokens, written once for both; `retained` goes to both.
  LayerView lower;
  std::vector<TokenRange> retained;
};

/// One sequence of a decode step.
struct DecodeInput {
  int32_t token_id = 0;
  int position = 0;  ///< logical position of this token
  /// The layer's segments, and where the new token goes, which they may not count yet (LiveSlots):
  /// as of an earlier step. With every step since the slot of the one target has moved on by one,
  /// in a segment that has grown as far (but for kLowestScore, which stays); all else is as it was.
  /// So a step costs the scheduler nothing for a layer in which no block is taken and nothing
  /// moves. An example stands in docs/architecture.md, "A token in a layer".
  struct Layer {
    LayerView view;
    absl::Span<const TokenTarget> targets;
    int score_recent = 0;  ///< DecodeItem::score_recent
    int as_of = 0;         ///< step
  };
  absl::Span<const Layer> layers;  ///< [num_layers]
  int step = 0;                    ///< of the sequence, at least as_of of every layer
  /// The latest step as of which any layer is: nothing of the others need be looked at again.
  static constexpr int kUnknown = -1;
  int changed_at = kUnknown;
  uint64_t sequence = 0;  ///< the same in every step of a sequence, and no other's ever

  int StepsSince(const Layer& layer) const { return step - layer.as_of; }

  // PoD.
  double skip = 2;                  ///< DistantOptions::skip
  DistantCounts* counts = nullptr;  ///< added to, may be null

  /// Not null: the mass that this token's queries give the first `sinks` and the last `recent`
  /// tokens of every layer, which then holds all tokens in the order of their positions, is stored
  /// in `lazy_mass` [num_layers].
  const LazyTest* lazy_test = nullptr;
  double* lazy_mass = nullptr;
};

/// How a sequence's next token is drawn.
struct TokenDraw {
  Sampler* sampler = nullptr;           ///< null: the prompt has been dropped
  absl::Span<const int32_t> forbidden;  ///< Sampler::Sample
};

/// Copies tokens within one layer of one sequence (PromptBackend::CopyTokens). Edits of one step
/// name a segment by the same view, that of the layer that owns it.
struct CopyEdit {
  const SegmentView* from = nullptr;
  int first = 0;               ///< slot of the first token, where `slots` is empty
  std::vector<int32_t> slots;  ///< [heads of the segment, count], or empty
  int count = 0;
  const SegmentView* to = nullptr;
  int first_slot = 0;
};

/// Merges what two layers of a sequence have at their ends (PromptBackend::MergeTails).
using MergeEdit = TailMerge;
using CacheEdit = std::variant<CopyEdit, MergeEdit>;

/// Asked between two parts of a layer's work, each of some tens of milliseconds on a CPU: whether
/// the call shall return before it is done.
using PauseTest = absl::FunctionRef<bool()>;
inline bool NeverPause() { return false; }

/// Seconds since start in which a device was at work, by its own clock. Between steps with no
/// prompt between them it does little else but wait for the host.
struct DeviceSeconds {
  double steps = 0;  ///< of DecodeTokens: from a step's first kernel to its tokens
  double edits = 0;  ///< copies and merges of cached tokens, none of which is within a step
};

/// A part of the prefill workspace, in which one batch runs at a time, beside those of other lanes.
struct PrefillLane {
  int max_tokens = 0;  ///< of a batch
  size_t capacity_bytes = 0;
};

/// Of all lanes together: what is set aside for the workspace.
inline size_t WorkspaceCapacityBytes(absl::Span<const PrefillLane> lanes) {
  size_t bytes = 0;
  for (const PrefillLane& lane : lanes) bytes += lane.capacity_bytes;
  return bytes;
}

/// A packed batch of prompts on its way through the layers; gives its lane back when it is
/// destroyed, finished or not. Layer-major: for every layer in order `AttendLayer`, `WriteLayer`
/// and `FinishLayer`, then `LastLogits`. A call that was paused is made again until it is done.
/// Between any two of these the model may decode, edit caches and run batches of other lanes: all
/// use memory of their own.
class PromptBatch {
 public:
  virtual ~PromptBatch() = default;

  /// The prompt's request has gone, and its plan with it: nothing more is computed of it.
  virtual void Drop(int prompt) = 0;
  /// Runs layer `layer` over the batch up to its attention, measures, and selects what stays.
  /// False: paused, nothing has been measured yet.
  ///   measured  [prompts]
  virtual absl::StatusOr<bool> AttendLayer(int layer, PauseTest pause,
                                           std::vector<LayerMeasured>* measured) = 0;
  /// Writes what each prompt keeps into its segments.
  ///   writes  [prompts]
  virtual absl::Status WriteLayer(int layer, absl::Span<const LayerWrite> writes) = 0;
  /// Runs what is behind the layer's attention. False: paused.
  ///   cosines  [prompts] LayerImportance::kCosine of each prompt whose plan asks for it
  virtual absl::StatusOr<bool> FinishLayer(int layer, PauseTest pause,
                                           std::vector<double>* cosines) = 0;
  /// Once the layers are through: the tokens that `edit` keeps of a layer whose scores were stored
  /// (PrefillNeeds::stored_score_layers).   kept [num_kv_heads, best + recent] ascending
  virtual absl::Status SelectStored(int prompt, int layer, const KeepBest& edit,
                                    std::vector<int32_t>* kept) = 0;
  /// Once the layers are through.   logits [prompts, vocab_size] f32: after each last token
  virtual absl::Status LastLogits(float* logits) = 0;

  /// For calibration, between AttendLayer and WriteLayer: the attention that each of the last
  /// `rows` tokens of a prompt pays to every token, 0 to those behind it. `rows` is at most the
  /// plan's needs.window_rows.
  ///   attention  [num_q_heads, rows, prompt tokens] f32
  virtual absl::Status LastAttention(int /*prompt*/, int /*rows*/, float* /*attention*/) {
    return absl::UnimplementedError("this model does not show its attention");
  }
};

/// A prompt of a batch whose layers are through; of none where `batch` is null.
struct BatchPrompt {
  PromptBatch* batch = nullptr;
  int index = 0;
};

/// Runs a model. One caller at a time (the engine thread).
class ModelRunner {
 public:
  virtual ~ModelRunner() = default;
  virtual const ModelShape& shape() const = 0;

  /// Memory for the pool where the model runs on a device that has its own; null: it is to be the
  /// host's. Once, before AttachPool. RESOURCE_EXHAUSTED: there is not as much.
  virtual absl::StatusOr<std::byte*> AllocatePool(size_t /*num_blocks*/, size_t /*block_bytes*/) {
    return nullptr;
  }
  /// What AllocatePool could give. UNIMPLEMENTED where the pool is in the host's memory.
  virtual absl::StatusOr<size_t> FreePoolBytes() {
    return absl::UnimplementedError("the pool is in the host's memory");
  }

  /// The pool that the views of all later calls refer to. Called by the pool's owner before the
  /// first batch. The default is for models that never touch blocks.
  virtual void AttachPool(PoolView /*pool*/) {}

  /// Workspace bytes of a prefill batch of `tokens` tokens in all, besides the prompts' own needs.
  virtual size_t WorkspaceBytes(int tokens) const = 0;
  /// Workspace bytes of what one prompt needs besides.
  virtual size_t PromptNeedsBytes(int prompt_tokens, const PrefillNeeds& needs) const = 0;
  /// Whether a device computes behind the caller's back, so that a clock sees little of it, and
  /// draws the tokens of a step itself.
  virtual bool is_asynchronous() const { return false; }

  /// The first takes any batch; a second one, where there is one, shorter ones beside it.
  virtual absl::Span<const PrefillLane> lanes() const = 0;
  /// Bytes reserved at start, and the most that prefill batches have used so far.
  size_t workspace_capacity_bytes() const { return WorkspaceCapacityBytes(lanes()); }
  virtual size_t workspace_high_water_bytes() const = 0;

  /// The batch ends before the runner does, and before the plans of the prompts that have not been
  /// dropped.
  virtual absl::StatusOr<std::unique_ptr<PromptBatch>> BeginPrefill(
      int lane, absl::Span<const PrefillPrompt> prompts) = 0;

  /// A token behind each prompt of a batch whose layers are through.
  ///   draws, tokens  [prompts]
  absl::Status FirstTokens(PromptBatch& batch, absl::Span<const TokenDraw> draws,
                           SampledToken* tokens) {
    logits_.resize(draws.size() * shape().vocab_size);
    absl::Status status = batch.LastLogits(logits_.data());
    if (status.ok()) Sample(draws, logits_.data(), tokens);
    return status;
  }

  /// A decode step, up to its logits.   logits [inputs, vocab_size] f32
  virtual absl::Status Decode(absl::Span<const DecodeInput> inputs, float* logits) = 0;
  /// Decode, and a token of each input. Returns with the tokens, or where a device computes as soon
  /// as it is at work on them. Where that is OK, AwaitTokens is to follow, which waits for it;
  /// until then the three stay where they are, and nothing else is called but EditCache, for the
  /// step behind this one, and PrepareDecode.
  ///   draws, tokens  [inputs]
  virtual absl::Status DecodeTokens(absl::Span<const DecodeInput> inputs,
                                    absl::Span<const TokenDraw> draws, SampledToken* tokens) {
    logits_.resize(inputs.size() * shape().vocab_size);
    absl::Status status = Decode(inputs, logits_.data());
    if (status.ok()) Sample(draws, logits_.data(), tokens);
    return status;
  }
  virtual absl::Status AwaitTokens() { return absl::OkStatus(); }
  /// What the inputs of the next step will be, but for the token, of some sequences that may be in
  /// it: so that it costs less then. The views and targets of the step at work may have become
  /// those of these inputs. Called for some sequences after the others, where is_asynchronous().
  virtual void PrepareDecode(absl::Span<const DecodeInput> /*inputs*/) {}

  /// A token from each row of logits, on as many threads as the model computes with. A sampler
  /// stands in one draw only.
  ///   logits  [draws, vocab_size], scratch afterwards
  ///   tokens  [draws]; left alone where there is no sampler
  void Sample(absl::Span<const TokenDraw> draws, float* logits, SampledToken* tokens) {
    const ScopedSeconds timer(&sample_seconds_);
    SampleAll(draws, logits, tokens);
  }

  /// Carries out edits of caches, in order, between steps.
  virtual absl::Status EditCache(absl::Span<const CacheEdit> edits) = 0;

  /// Seconds spent in attention kernels (attend, measure, write) since start, for the metrics.
  virtual double attention_seconds() const { return 0; }
  double sample_seconds() const { return sample_seconds_; }  ///< and in Sample
  virtual DeviceSeconds device_seconds() const { return {}; }

 protected:
  /// Sample, by SampleOne for each.
  virtual void SampleAll(absl::Span<const TokenDraw> draws, float* logits, SampledToken* tokens) {
    for (size_t i = 0; i < draws.size(); ++i) SampleOne(draws, i, logits, tokens);
  }
  void SampleOne(absl::Span<const TokenDraw> draws, size_t i, float* logits,
                 SampledToken* tokens) const {
    if (draws[i].sampler == nullptr) return;
    const auto vocab = static_cast<size_t>(shape().vocab_size);
    tokens[i] = draws[i].sampler->Sample({logits + i * vocab, vocab}, draws[i].forbidden);
  }

 private:
  std::vector<float> logits_;  ///< of the batch or step at hand, kept for its memory
  double sample_seconds_ = 0;
};

}  // namespace ziggurat

// The kernels of one device: attend, measure, write, and the small fused operations between GEMMs.
//
// Every function takes raw pointers and sizes; no framework type appears here. Backends are twins:
// `reference` is plain, obviously right C++, and every level of `cpu`, and `cuda` on a GPU or on an
// emulator of one, are checked against it over element types, head sizes, group sizes and odd
// lengths (tests/attention).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "attention/attention_shape.h"
#include "attention/backend_memory.h"
#include "attention/cache_orders.h"
#include "attention/cpu_level.h"
#include "attention/prompt_tensors.h"
#include "block_manager/segment_view.h"

namespace ziggurat {

/// A packed batch of prompts: sequence i owns rows [offsets[i], offsets[i + 1]).
struct PackedSequences {
  absl::Span<const int> offsets;  ///< [num_sequences + 1], offsets[0] == 0
  /// Rows whose queries are attended; nothing is stored for the others
  /// (PromptBackend::attention_part_rows).
  int first_row = 0;
  int end_row = offsets.empty() ? 0 : offsets.back();

  int num_sequences() const { return static_cast<int>(offsets.size()) - 1; }
  int num_tokens() const { return offsets.back(); }
  int length(int i) const { return offsets[i + 1] - offsets[i]; }
};

/// PoD in a layer of a prompt (arXiv:2412.02252): token j is *distant* from query i where
/// j >= sinks and i - j >= recent.
struct DistantPrefill {
  int sinks = 0;
  int recent = 0;
  double skip = 2;  ///< the distant part is left out where the near part's share is at least this
  /// [num_kv_heads] 1: the head's distant tokens are attended with `low_q` and `low_k`, those of
  /// the lowest layer of its group.
  const uint8_t* borrows = nullptr;
  const void* low_q = nullptr;  ///< [n, num_q_heads, head_dim]
  const void* low_k = nullptr;  ///< [n, num_kv_heads, head_dim]
  /// As PackedSequences has them.
  int first_row = 0;
  int end_row = std::numeric_limits<int>::max();
};

/// One sequence of a decode step: its segments of the layer at hand.
struct DecodeItem {
  /// Where a target's slot lies behind what its segment's view counts, the segment has grown up to
  /// that slot since the view was taken (LiveSlots).
  LayerView segments;
  absl::Span<const TokenTarget> targets = {};
  int position = 0;      ///< of the new token
  int score_recent = 0;  ///< scored segments: the last positions, which are never overwritten

  // PoD; null and unused where no segment has a SegmentUse other than kOwn.
  /// [num_q_heads, head_dim] the query of each head's lowest layer. DecodeAttention stores the rows
  /// of heads with a kDistantKeys segment here, and reads those of kBorrowedKeys segments.
  float* low_q = nullptr;
  /// [num_q_heads] log-sum-exp over the distant tokens; stored and read alike.
  float* distant_lse = nullptr;
  double skip = 2;
  DistantCounts* counts = nullptr;  ///< added to, may be null
};

/// Slots of a segment that are live in this step.
inline int LiveSlots(const DecodeItem& item, int segment) {
  int slots = item.segments[segment].num_slots;
  for (const TokenTarget& target : item.targets) {
    if (target.segment == segment) slots = std::max(slots, target.slot + 1);
  }
  return slots;
}

/// Rows of a statistic.
enum class ScoreRows : uint8_t {
  kKvHeads,     ///< one per KV head: the mean over its query heads
  kQueryHeads,  ///< one per query head
};

/// For each head of the segment at hand as many tokens: rows of a prompt, or slots of a segment.
struct TokenChoice {
  int count = 0;
  /// Without a list: tokens first, first + 1, ... for all heads.
  int first = 0;
  const int32_t* of_head = nullptr;  ///< entry i of head h is of_head[h * stride + i]
  size_t stride = 0;

  static TokenChoice From(int first, int count) { return {.count = count, .first = first}; }
  static TokenChoice Listed(const int32_t* of_head, size_t stride, int count) {
    return {.count = count, .of_head = of_head, .stride = stride};
  }
  int At(int head, int i) const {
    return of_head == nullptr ? first + i : of_head[head * stride + i];
  }
};

/// What a backend lends (BackendMemory::Lend) at least, for a merge of so many tokens.
size_t TailMergeBytes(const AttentionShape& shape, int count);

/// What prompts need, and edits of caches; on any device. A backend owns its threads and scratch
/// memory. One caller at a time (the engine thread). Pointers are to the backend's memory
/// (BackendMemory) where nothing else is said; views, items and the counts in them are the host's.
class PromptBackend : public BackendMemory {
 public:
  /// "reference", "cuda", or "cpu-" and the name of a level (CpuLevelName).
  virtual std::string_view name() const = 0;
  /// Seconds since start in which a device was at work on copies and merges of cached tokens, by
  /// its own clock; those that it has not come to yet count later, and merges that go alone, for
  /// lack of scratch memory, never.
  virtual double edit_seconds() { return 0; }

  // ---- Prefill: the contiguous workspace of one layer --------------------------------------

  /// Attention of a long prompt can be called for part by part, so that others need not wait for
  /// all of it: parts begin at multiples of so many rows of their prompt, and give the same bits.
  /// 0: on this backend it cannot, and every call is for all rows.
  virtual int attention_part_rows(const AttentionShape& /*shape*/) const { return 0; }
  /// ColumnSums of all rows of a prompt have the same bits in parts that begin at multiples of so
  /// many keys. 0: they may not, so all keys are asked for at once.
  virtual int column_part_keys() const { return 0; }

  /// Causal attention of every packed prompt to itself. Softmax in f32. A value that is NaN makes
  /// NaN of the queries from its token on, and may of some before it in the same prompt: kernels
  /// multiply it by the weight 0.
  virtual void PrefillAttention(const AttentionShape& shape, const PackedSequences& sequences,
                                const PromptTensors& prompts) = 0;

  /// PrefillAttention of one prompt whose distant tokens are attended with another layer's queries
  /// and keys where `distant.borrows` says so: softmax over near scores q_i.k_j and distant ones
  /// low_q_i.low_k_j together, all with this layer's values. Heads that do not borrow attend as
  /// PrefillAttention has it. The log-sum-exp is that of all scores together, of a query that left
  /// out its distant part that of the near ones.
  virtual void PrefillDistantAttention(const AttentionShape& shape, int n,
                                       const PromptTensors& prompt, const DistantPrefill& distant,
                                       DistantCounts* counts) = 0;

  /// SnapKV's window scores: scores[g][j] = mean over the queries i of the tail, the window, and
  /// over the query heads of KV head g of exp(scale * q_i.k_j - lse_i), for keys j before the
  /// window; then pooled over the `kernel` (odd) neighbours of j, as if there were zeros before the
  /// first key and behind the last.
  ///   scores  [num_kv_heads, n - rows] f32
  virtual void WindowScores(const AttentionShape& shape, const PromptTail& tail, int kernel,
                            WindowPooling pooling, float* scores) = 0;

  /// For each head the `best` (<= candidates) highest of scores[g][0 .. candidates), ties to the
  /// lower index. A NaN ranks last, as -infinity.
  ///   scores    [num_heads, stride]
  ///   indices   [num_heads, best]  ascending
  virtual void SelectBest(const float* scores, size_t stride, int num_heads, int candidates,
                          int best, int32_t* indices) = 0;

  /// Attention that keys [begin, end) receive from the queries of the tail: sums[r][j - begin] =
  /// sum over queries i >= j of exp(scale * q_i.k_j - lse_i).
  ///   sums  [KV or query heads, stride] f32, of which end - begin are written
  virtual void ColumnSums(const AttentionShape& shape, const PromptTail& tail, int begin, int end,
                          ScoreRows score_rows, float* sums, size_t stride) = 0;

  /// WindowKV's choice (arXiv:2503.17922): windows [0, review), [review, 2 review), ... of the
  /// candidates, the last perhaps shorter, in falling order of score, ties to the earlier; one that
  /// no longer fits the budget is passed over. There is at least one candidate. The score of a
  /// window is, per head, the mean of its `best` highest scores, then the mean over heads.
  ///   scores   [num_heads, candidates]
  ///   indices  [budget] room; filled ascending
  /// Returns the number of indices.
  virtual int SelectWindows(const float* scores, int num_heads, int candidates, int review,
                            int best, int budget, int32_t* indices) = 0;

  /// Sum over rows of the cosine between a[r] and b[r]; 1 where both are zero, 0 where one is.
  ///   a, b  [rows, width]
  virtual double CosineSum(const float* a, const float* b, int rows, int width) = 0;

  // ---- Writing and moving tokens -------------------------------------------------------------

  /// Writes tokens of a prompt into slots [first_slot, first_slot + count) of `segment`, in
  /// its encoding. Of grouped encodings first_slot and count are multiples of the group. Not for
  /// merged segments.
  ///   tokens  without `k`: values only, where the segment attends with another layer's keys
  ///   rows    of the tokens, for each slot
  virtual void WriteTokens(const AttentionShape& shape, const KeyValues& tokens,
                           const TokenChoice& rows, PoolView pool, const SegmentView& segment,
                           int first_slot) = 0;

  /// The first scores and positions of a scored segment's slots, for the tokens that WriteTokens
  /// put there.
  ///   sums  [num_kv_heads, n] as ColumnSums of KV heads gives them for all keys and rows
  virtual void WriteScores(const AttentionShape& shape, const float* sums, int n,
                           const TokenChoice& rows, PoolView pool, const SegmentView& segment,
                           int first_slot) = 0;

  /// Copies tokens from segment to segment (of the same layer and heads), decoding and encoding
  /// where the encodings differ; bit for bit where they are equal. Slots are read before they are
  /// written as if all were read first; so `from` may be `to`. Norms (those of both layers, by
  /// either layer's views) and scores go along where both have them; keys are left alone where `to`
  /// stores values only. Codes of a group stay as they are where a whole group of `from` becomes
  /// one of `to`; else they are decoded and encoded anew.
  ///   slots   of `from`
  virtual void CopyTokens(const AttentionShape& shape, PoolView pool, const SegmentView& from,
                          const TokenChoice& slots, const SegmentView& to, int first_slot) = 0;

  /// CopyTokens for each, in order. None reads or writes slots that an earlier one writes, so that
  /// all may be read before any is written.
  virtual void CopyAll(const AttentionShape& shape, PoolView pool,
                       absl::Span<const TokenCopy> copies) {
    for (const TokenCopy& copy : copies) {
      CopyTokens(shape, pool, *copy.from, TokenChoice::From(copy.first, copy.count), *copy.to,
                 copy.first_slot);
    }
  }

  /// The tokens in slots [first, first + count) of a segment that covers all KV heads and is not
  /// merged, decoded.
  ///   k, v  [count, num_kv_heads, head_dim] f32
  virtual void ReadTokens(const AttentionShape& shape, PoolView pool, const SegmentView& segment,
                          int first, int count, float* k, float* v) = 0;

  // ---- MiniCache -----------------------------------------------------------------------------

  /// angles[g][t] = the angle between the keys k0 and k1 of token t, in [0, pi]; with a zero vector
  /// 0.
  ///   k0, k1  [m, num_kv_heads, head_dim]
  virtual void MergeAngles(const AttentionShape& shape, ElementType element, const void* k0,
                           const void* k1, int m, float* angles) = 0;

  /// Merges tokens of two layers into slots [first_slot, first_slot + count) of a merged segment,
  /// in its encoding (grouped ones as in WriteTokens): direction e = SLERP(x0/|x0|, x1/|x1|, t)
  /// normalised, for K and V apart, and the norms |x0| (lower) and |x1| (upper). sin < 1e-6: linear
  /// interpolation; a zero vector takes the other's direction.
  ///   rows          of the tokens, for each slot
  ///   lower, upper  the segment as the two layers see it: same blocks, norms of each
  virtual void WriteMerged(const AttentionShape& shape, const KeyValues& lower_tokens,
                           const KeyValues& upper_tokens, const TokenChoice& rows, double t,
                           PoolView pool, const SegmentView& lower, const SegmentView& upper,
                           int first_slot) = 0;

  /// Each of these, none of which touches a segment of another: ReadTokens, MergeAngles, SelectBest
  /// and Complement, WriteMerged and WriteTokens together.
  virtual void MergeTails(const AttentionShape& shape, PoolView pool,
                          absl::Span<const TailMerge> merges);

  // ---- Between the GEMMs ---------------------------------------------------------------------

  /// out[r] = x[r] / sqrt(mean(x[r]^2) + epsilon) * weight.   x [rows, width] f32; out in
  /// `element`.
  virtual void RmsNorm(const float* x, const float* weight, float epsilon, int rows, int width,
                       ElementType element, void* out) = 0;

  /// Splits a packed projection and rotates queries and keys (halves rotated, as Hugging Face).
  ///   qkv       [rows, (num_q_heads + 2 num_kv_heads) * head_dim] in `element`
  ///   cos, sin  [rows, head_dim / 2] f32
  ///   q, k, v   [rows, heads, head_dim] in `out_element`
  virtual void SplitAndRotate(const AttentionShape& shape, ElementType element, const void* qkv,
                              const float* cos, const float* sin, int rows, ElementType out_element,
                              void* q, void* k, void* v) = 0;

  /// out[r][i] = silu(gate_up[r][i]) * gate_up[r][width + i].  gate_up [rows, 2 * width].
  virtual void SwiGlu(ElementType element, const void* gate_up, int rows, int width, void* out) = 0;

  /// out[r] = table[ids[r]].   table [vocabulary, width] in `element`; ids the host's; out [ids,
  /// width] f32
  virtual void EmbedTokens(ElementType element, const void* table, absl::Span<const int32_t> ids,
                           int width, float* out) = 0;

  /// Cosines and sines of the rotary embedding at positions first, first + 1, ... Angles are
  /// computed in double: at position 100,000 a float angle would already be wrong in the third
  /// digit.
  ///   inverse_frequencies  [width], the host's: radians per position
  ///   cos, sin             [count, width]
  virtual void FillAngles(absl::Span<const float> inverse_frequencies, int first, int count,
                          float* cos, float* sin) = 0;
};

/// A backend in the host's memory, which decodes too. A GPU's steps have tables that stay with it
/// (model/cuda/cuda_steps.h).
class AttentionBackend : public PromptBackend {
 public:
  /// Writes the new token of each item to its targets, in the encoding of each (plain or per
  /// token). A scored segment's slot starts with score 0 and the item's position. Targets whose
  /// segment borrows its keys are not allowed.
  ///   k, v   [items, num_kv_heads, head_dim] f32
  virtual void WriteStep(const AttentionShape& shape, absl::Span<const DecodeItem> items,
                         const float* k, const float* v, PoolView pool) = 0;

  /// One query token of each item attends to all slots of all its segments; partial results of
  /// segments and of splits of long ones are merged by log-sum-exp. An item without any slot gets
  /// zeros and lse = -infinity. Segments that borrow their keys are attended with the item's
  /// `low_q`. They are left out for a KV head where the near segments, all others, have at least
  /// the share `skip` in each of its query heads: skip <= 1 / (1 + exp(distant_lse - near_lse)).
  ///   q, out  [items, num_q_heads, head_dim] f32
  ///   lse     [items, num_q_heads] f32, or nullptr
  virtual void DecodeAttention(const AttentionShape& shape, absl::Span<const DecodeItem> items,
                               const float* q, PoolView pool, float* out, float* lse) = 0;

  /// Adds to every slot of the scored segments what it received from this step's queries: the mean
  /// over the query heads of a KV head of exp(scale * q.k - lse).
  virtual void AccumulateScores(const AttentionShape& shape, absl::Span<const DecodeItem> items,
                                const float* q, const float* lse, PoolView pool) = 0;

  /// The share of one query token's attention that falls on slots [begin, end) of a segment that
  /// covers all KV heads: the mean over query heads of the sum of exp(scale * q.k - lse).
  ///   q  [num_q_heads, head_dim];  lse [num_q_heads]
  virtual double SlotMass(const AttentionShape& shape, const SegmentView& segment, int begin,
                          int end, const float* q, const float* lse, PoolView pool) = 0;

  /// out[i] = convert(x[i]), round to nearest even.
  virtual void Convert(ElementType from, const void* x, size_t count, ElementType to,
                       void* out) = 0;

  void EmbedTokens(ElementType element, const void* table, absl::Span<const int32_t> ids, int width,
                   float* out) override;
  void FillAngles(absl::Span<const float> inverse_frequencies, int first, int count, float* cos,
                  float* sin) override;
};

/// Plain loops in double and float, one thread.
std::unique_ptr<AttentionBackend> MakeReferenceBackend();

/// `threads` >= 1 OpenMP threads. INVALID_ARGUMENT where the machine lacks `level`.
absl::StatusOr<std::unique_ptr<AttentionBackend>> MakeCpuBackend(CpuLevel level, int threads);

}  // namespace ziggurat

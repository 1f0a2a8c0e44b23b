// The kernels of one device: attend, measure, write, and the small fused operations between GEMMs.
//
// Every function takes raw pointers and sizes; no framework type appears here. Backends are twins:
// `reference` is plain, obviously right C++ and `cpu` is checked against it over element types,
// head sizes, group sizes and odd lengths (tests/attention).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "block_manager/segment_view.h"
#include "compression/cache_plan.h"

namespace ziggurat {

/// Heads of one layer. Query head h uses KV head h / (num_q_heads / num_kv_heads).
struct AttentionShape {
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  float scale = 0;  ///< 1 / sqrt(head_dim)

  int group_size() const { return num_q_heads / num_kv_heads; }
};

/// A packed batch of prompts: sequence i owns rows [offsets[i], offsets[i + 1]).
struct PackedSequences {
  absl::Span<const int> offsets;  ///< [num_sequences + 1], offsets[0] == 0

  int num_sequences() const { return static_cast<int>(offsets.size()) - 1; }
  int num_tokens() const { return offsets.back(); }
  int length(int i) const { return offsets[i + 1] - offsets[i]; }
};

/// One sequence of a decode step: its segments of the layer at hand.
struct DecodeItem {
  LayerView segments;
};

/// A backend owns its threads and scratch memory. One caller at a time (the engine thread).
class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;
  virtual std::string_view name()
      const = 0;  ///< "reference", "cpu-avx2", "cpu-avx512", "cpu-avx512bf16"

  // ---- Prefill: the contiguous workspace of one layer --------------------------------------

  /// Causal attention of every packed prompt to itself. Softmax in f32.
  ///   q, out  [tokens, num_q_heads, head_dim]   `out` may be `q` (in place)
  ///   k, v    [tokens, num_kv_heads, head_dim]
  ///   lse     [tokens, num_q_heads] f32: log-sum-exp of the scaled scores
  virtual void PrefillAttention(const AttentionShape& shape, const PackedSequences& sequences,
                                ElementType element, const void* q, const void* k, const void* v,
                                void* out, float* lse) = 0;

  /// SnapKV's window scores: scores[g][j] = mean over the last `window` queries i and over the
  /// query heads of KV head g of exp(scale * q_i.k_j - lse_i), keys j <= i only, for j < n -
  /// window; then pooled over j.
  ///   q_window  [window, num_q_heads, head_dim]  rows n-window .. n-1
  ///   lse       [window, num_q_heads]            of the same rows
  ///   k         [n, num_kv_heads, head_dim]
  ///   scores    [num_kv_heads, n - window] f32
  virtual void WindowScores(const AttentionShape& shape, ElementType element, const void* q_window,
                            const float* lse, const void* k, int n, int window, int kernel,
                            ScorePooling pooling, float* scores) = 0;

  /// For each head the `best` (<= candidates) highest of scores[g][0 .. candidates), ties to the
  /// lower index.
  ///   indices   [num_heads, best]  ascending
  virtual void SelectBest(const float* scores, int num_heads, int candidates, int best,
                          int32_t* indices) = 0;

  /// Writes tokens of the workspace into slots [first_slot, first_slot + count) of `segment`.
  ///   k, v      [n, num_kv_heads, head_dim]; `k` may be nullptr: values only, where the segment
  ///             attends with another layer's keys
  ///   indices   [segment.num_kv_heads, count]: row of `k` for each slot and head of the segment,
  ///             or nullptr: rows first_row .. first_row + count - 1 for all heads
  virtual void WriteTokens(const AttentionShape& shape, ElementType element, const void* k,
                           const void* v, const int32_t* indices, int first_row, int count,
                           PoolView pool, const SegmentView& segment, int first_slot) = 0;

  // ---- Decode: over block tables -------------------------------------------------------------

  /// Writes one new token of each item: its keys and values go to slot `slots[i]` of segment
  /// `segment_index[i]`.
  ///   k, v   [items, num_kv_heads, head_dim] f32; `k` may be nullptr, as in WriteTokens
  virtual void WriteStep(const AttentionShape& shape, absl::Span<const DecodeItem> items,
                         absl::Span<const int> segment_index, absl::Span<const int> slots,
                         const float* k, const float* v, PoolView pool) = 0;

  /// One query token of each item attends to all slots of all its segments; partial results of
  /// segments and of splits of long ones are merged by log-sum-exp. An item without any slot gets
  /// zeros and lse = -infinity.
  ///   q, out  [items, num_q_heads, head_dim] f32
  ///   lse     [items, num_q_heads] f32, or nullptr
  virtual void DecodeAttention(const AttentionShape& shape, absl::Span<const DecodeItem> items,
                               const float* q, PoolView pool, float* out, float* lse) = 0;

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

  /// residual[i] += x[i].   x in `element`, residual f32.
  virtual void AddResidual(ElementType element, const void* x, size_t count, float* residual) = 0;

  /// out[i] = convert(x[i]), round to nearest even.
  virtual void Convert(ElementType from, const void* x, size_t count, ElementType to,
                       void* out) = 0;
};

/// Plain loops in double and float, one thread.
std::unique_ptr<AttentionBackend> MakeReferenceBackend();

/// What the CPU kernels may use.
enum class CpuLevel : uint8_t { kAvx2, kAvx512, kAvx512Bf16 };
/// The best level of this machine; UNIMPLEMENTED where the CPU lacks AVX2 and FMA.
absl::StatusOr<CpuLevel> DetectCpuLevel();
/// `threads` >= 1 OpenMP threads. INVALID_ARGUMENT where the machine lacks `level`.
absl::StatusOr<std::unique_ptr<AttentionBackend>> MakeCpuBackend(CpuLevel level, int threads);

}  // namespace ziggurat

// The CPU twin: one table of kernels, and the threads that its jobs are spread over.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "attention/attention_state.h"
#include "attention/backend.h"
#include "attention/cpu/kernels.h"
#include "attention/cpu/thread_scratch.h"

namespace ziggurat::cpu {

/// Work is cut by the shape of each sequence alone, never by the number of threads or by what else
/// is in the batch, so the result of a sequence is the same bit for bit alone and in a crowd.
class CpuBackend final : public AttentionBackend {
 public:
  CpuBackend(std::string name, const CpuKernels& kernels, int threads)
      : name_(std::move(name)), kernels_(kernels), threads_(threads), scratch_(threads) {}

  std::string_view name() const override { return name_; }
  // prefill_attention.cc
  int attention_part_rows(const AttentionShape& shape) const override;
  void PrefillAttention(const AttentionShape& shape, const PackedSequences& sequences,
                        const PromptTensors& prompts) override;
  void PrefillDistantAttention(const AttentionShape& shape, int n, const PromptTensors& prompt,
                               const DistantPrefill& distant, DistantCounts* counts) override;

  // statistics.cc
  int column_part_keys() const override;
  void WindowScores(const AttentionShape& shape, const PromptTail& tail, int kernel,
                    WindowPooling pooling, float* scores) override;
  void ColumnSums(const AttentionShape& shape, const PromptTail& tail, int begin, int end,
                  ScoreRows score_rows, float* sums, size_t stride) override;
  double CosineSum(const float* a, const float* b, int rows, int width) override;

  // select_best.cc, select_windows.cc
  void SelectBest(const float* scores, size_t stride, int num_heads, int candidates, int best,
                  int32_t* indices) override;
  int SelectWindows(const float* scores, int num_heads, int candidates, int review, int best,
                    int budget, int32_t* indices) override;

  // cache_writes.cc, cache_copies.cc, merge.cc
  void WriteTokens(const AttentionShape& shape, const KeyValues& tokens, const TokenChoice& rows,
                   PoolView pool, const SegmentView& segment, int first_slot) override;
  void WriteScores(const AttentionShape& shape, const float* sums, int n, const TokenChoice& rows,
                   PoolView pool, const SegmentView& segment, int first_slot) override;
  void CopyTokens(const AttentionShape& shape, PoolView pool, const SegmentView& from,
                  const TokenChoice& slots, const SegmentView& to, int first_slot) override;
  void ReadTokens(const AttentionShape& shape, PoolView pool, const SegmentView& segment, int first,
                  int count, float* k, float* v) override;
  void MergeAngles(const AttentionShape& shape, ElementType element, const void* k0, const void* k1,
                   int m, float* angles) override;
  void WriteMerged(const AttentionShape& shape, const KeyValues& lower_tokens,
                   const KeyValues& upper_tokens, const TokenChoice& rows, double t, PoolView pool,
                   const SegmentView& lower, const SegmentView& upper, int first_slot) override;
  void WriteStep(const AttentionShape& shape, absl::Span<const DecodeItem> items, const float* k,
                 const float* v, PoolView pool) override;

  // decode_attention.cc
  void DecodeAttention(const AttentionShape& shape, absl::Span<const DecodeItem> items,
                       const float* q, PoolView pool, float* out, float* lse) override;
  void AccumulateScores(const AttentionShape& shape, absl::Span<const DecodeItem> items,
                        const float* q, const float* lse, PoolView pool) override;
  double SlotMass(const AttentionShape& shape, const SegmentView& segment, int begin, int end,
                  const float* q, const float* lse, PoolView pool) override;

  // cpu_backend.cc
  void RmsNorm(const float* x, const float* weight, float epsilon, int rows, int width,
               ElementType element, void* out) override;
  void SplitAndRotate(const AttentionShape& shape, ElementType element, const void* qkv,
                      const float* cos, const float* sin, int rows, ElementType out_element,
                      void* q, void* k, void* v) override;
  void SwiGlu(ElementType element, const void* gate_up, int rows, int width, void* out) override;
  void Convert(ElementType from, const void* x, size_t count, ElementType to, void* out) override;
  void EmbedTokens(ElementType element, const void* table, absl::Span<const int32_t> ids, int width,
                   float* out) override;
  void FillAngles(absl::Span<const float> inverse_frequencies, int first, int count, float* cos,
                  float* sin) override;

 private:
  /// Some KV heads of an item and a range of slots of one of its segments.
  struct SlotTask {
    const SegmentView* segment;
    const float* q;  ///< of the query heads of `first_head` on
    int first_head;
    int num_heads;
    int begin;
    int end;
    size_t result;   ///< its first row among the partial results, or its first slot weight
    bool keys_only;  ///< for slot weights
  };
  /// Attention of the query heads of a KV head to a part of its slots.
  struct Part {
    size_t row;  ///< of the first query head among the partial results
    SegmentUse use;
  };

  const ElementKernels& Kernels(ElementType element) const {
    return kernels_.element[static_cast<int>(element)];
  }
  const BlockKernels& Kernels(Encoding encoding) const {
    return kernels_.blocks[static_cast<int>(encoding)];
  }

  DecodeJob JobOf(const AttentionShape& shape, PoolView pool, const SlotTask& task, int thread);
  /// Calls run(task, job) for all tasks_, each once.
  template <typename Run>
  void RunTasks(const AttentionShape& shape, PoolView pool, Run run);
  /// Adds what it takes for KV heads of item `item` to attend to slots [0, num_slots) of a segment
  /// with queries `q`, the item's [num_q_heads, head_dim], to tasks_, parts_ and partial_rows_.
  void AddDecodeTasks(const AttentionShape& shape, size_t item, const SegmentView& segment,
                      int num_slots, const float* q, int first_head, int num_heads);
  /// The same for the distant tokens of an item, where they are not left out (PoD).
  void AddDistantTasks(const AttentionShape& shape, size_t item, const DecodeItem& of);
  /// Carries out tasks_ and forgets them.
  void RunDecode(const AttentionShape& shape, PoolView pool);
  /// Log-sum-exp over the parts, of those for which takes(use), of a query head of unit `unit` of
  /// parts_.
  template <typename Takes>
  float LseOf(size_t unit, size_t query, Takes takes) const;
  /// What the layers above want of an item whose segments have distant keys.
  void StoreDistant(const AttentionShape& shape, size_t item, const DecodeItem& of,
                    const float* q) const;
  void MergeDecode(const AttentionShape& shape, size_t num_items, float* out, float* lse);
  /// Adds what it takes to weigh slots [begin, end) of a segment to tasks_ and num_weights_.
  void AddWeightTasks(const AttentionShape& shape, const SegmentView& segment, int begin, int end,
                      const float* q);

  void ConvertRange(ElementType from, const void* x, size_t count, ElementType to, void* out) const;

  const std::string name_;
  const CpuKernels& kernels_;
  const int threads_;
  ThreadScratch scratch_;
  std::vector<SlotTask> tasks_;
  std::vector<std::vector<Part>> parts_;  ///< [items * KV heads], to merge
  size_t partial_rows_ = 0;
  std::vector<float> partial_;      ///< [partial_rows_, head_dim]
  std::vector<float> partial_lse_;  ///< [partial_rows_]
  size_t num_weights_ = 0;
  std::vector<float> slot_weights_;  ///< [num_weights_] attention that slots receive
  std::vector<float> column_means_;  ///< WindowScores: [KV heads, candidates]
};

}  // namespace ziggurat::cpu

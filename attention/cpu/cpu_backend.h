// The CPU twin: one table of kernels, and the threads that its jobs are spread over.
#pragma once

#include <cstddef>
#include <vector>

#include "attention/attention_state.h"
#include "attention/backend.h"
#include "attention/cpu/kernels.h"

namespace ziggurat::cpu {

/// Work is cut by the shape of each sequence alone, never by the number of threads or by what else
/// is in the batch, so the result of a sequence is the same bit for bit alone and in a crowd.
class CpuBackend final : public AttentionBackend {
 public:
  CpuBackend(std::string_view name, const CpuKernels& kernels, int threads)
      : name_(name), kernels_(kernels), threads_(threads), scratch_(threads) {}

  std::string_view name() const override { return name_; }
  // cpu_attention.cc
  void PrefillAttention(const AttentionShape& shape, const PackedSequences& sequences,
                        ElementType element, const void* q, const void* k, const void* v, void* out,
                        float* lse) override;
  void PrefillDistantAttention(const AttentionShape& shape, int n, ElementType element,
                               const void* q, const void* k, const void* v,
                               const DistantPrefill& distant, void* out, float* lse,
                               DistantCounts* counts) override;
  void WindowScores(const AttentionShape& shape, ElementType element, const void* q_window,
                    const float* lse, const void* k, int n, int window, int kernel,
                    ScorePooling pooling, float* scores) override;
  void ColumnSums(const AttentionShape& shape, ElementType element, const void* q_rows,
                  const float* lse, const void* k, int n, int rows, int begin, int end,
                  ScoreRows score_rows, float* sums) override;
  double CosineSum(const float* a, const float* b, int rows, int width) override;

  // select_best.cc, select_windows.cc
  void SelectBest(const float* scores, int num_heads, int candidates, int best,
                  int32_t* indices) override;
  int SelectWindows(const float* scores, int num_heads, int candidates, int review, int best,
                    int budget, int32_t* indices) override;

  // cache_writes.cc, cache_copies.cc, merge.cc
  void WriteTokens(const AttentionShape& shape, ElementType element, const void* k, const void* v,
                   HeadIndices indices, int first_row, int count, PoolView pool,
                   const SegmentView& segment, int first_slot) override;
  void WriteScores(const AttentionShape& shape, const float* sums, int n, HeadIndices indices,
                   int first_row, int count, PoolView pool, const SegmentView& segment,
                   int first_slot) override;
  void CopyTokens(const AttentionShape& shape, PoolView pool, const SegmentView& from,
                  HeadIndices slots, int first, int count, const SegmentView& to,
                  int first_slot) override;
  void ReadTokens(const AttentionShape& shape, PoolView pool, const SegmentView& segment, int first,
                  int count, float* k, float* v) override;
  void MergeAngles(const AttentionShape& shape, ElementType element, const void* k0, const void* k1,
                   int m, float* angles) override;
  void WriteMerged(const AttentionShape& shape, ElementType element, const void* k0, const void* v0,
                   const void* k1, const void* v1, HeadIndices indices, int count, double t,
                   PoolView pool, const SegmentView& lower, const SegmentView& upper,
                   int first_slot) override;
  void WriteStep(const AttentionShape& shape, absl::Span<const DecodeItem> items, const float* k,
                 const float* v, PoolView pool) override;

  // cpu_attention.cc: decode
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
  void AddResidual(ElementType element, const void* x, size_t count, float* residual) override;
  void Convert(ElementType from, const void* x, size_t count, ElementType to, void* out) override;

 private:
  /// Some KV heads of an item over a range of slots of a segment.
  struct DecodeTask {
    const SegmentView* segment;
    int item;
    int first_head;
    int num_heads;
    int begin;
    int end;
    size_t partial;  ///< its first row among the partial results, num_heads * group size rows
  };

  const ElementKernels& Kernels(ElementType element) const {
    return kernels_.element[static_cast<int>(element)];
  }
  /// Fills tasks_ and partial_rows_; returns the number of partial rows.
  size_t PlanDecode(const AttentionShape& shape, absl::Span<const DecodeItem> items);
  DecodeJob JobOf(const DecodeTask& task, const AttentionShape& shape, const float* q,
                  PoolView pool, int thread);
  void MergeDecode(const AttentionShape& shape, size_t num_items, float* out, float* lse);

  void ConvertRange(ElementType from, const void* x, size_t count, ElementType to, void* out) const;
  /// Makes every thread's scratch at least that large.
  void ReserveScratch(size_t floats);

  const std::string_view name_;
  const CpuKernels& kernels_;
  const int threads_;
  std::vector<std::vector<float>> scratch_;  ///< [threads]
  std::vector<DecodeTask> tasks_;
  std::vector<std::vector<size_t>> partial_rows_;  ///< [items * KV heads], first rows to merge
  std::vector<float> partial_;                     ///< [partial rows, head_dim]
  std::vector<float> partial_lse_;                 ///< [partial rows]
  std::vector<float> column_means_;                ///< WindowScores: [KV heads, candidates]
};

}  // namespace ziggurat::cpu

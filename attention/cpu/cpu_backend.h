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
  void PrefillAttention(const AttentionShape& shape, const PackedSequences& sequences,
                        ElementType element, const void* q, const void* k, const void* v, void* out,
                        float* lse) override;
  void WindowScores(const AttentionShape& shape, ElementType element, const void* q_window,
                    const float* lse, const void* k, int n, int window, int kernel,
                    ScorePooling pooling, float* scores) override;
  void SelectBest(const float* scores, int num_heads, int candidates, int best,
                  int32_t* indices) override;
  void WriteTokens(const AttentionShape& shape, ElementType element, const void* k, const void* v,
                   const int32_t* indices, int first_row, int count, PoolView pool,
                   const SegmentView& segment, int first_slot) override;
  void WriteStep(const AttentionShape& shape, absl::Span<const DecodeItem> items,
                 absl::Span<const int> segment_index, absl::Span<const int> slots, const float* k,
                 const float* v, PoolView pool) override;
  void DecodeAttention(const AttentionShape& shape, absl::Span<const DecodeItem> items,
                       const float* q, PoolView pool, float* out, float* lse) override;
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

// The GPU's kernels with everything on the host: each call copies what it needs to the device and
// the results back. For tests alone, which then read the same for every backend; what it costs to
// copy the whole pool does not matter here. Prompts and edits are CudaBackend's; of a decode step
// the kernels are launched here as CudaSteps does, with a table for each call.
#pragma once

#include <vector>

#include "attention/backend.h"
#include "attention/cuda/cuda_backend.h"
#include "attention/cuda/decode.h"
#include "tests/attention/cuda/device_memory.h"

namespace ziggurat::cuda {

/// AttentionBackend::DecodeAttention with every pointer to the device's memory. kBf16 gives it to
/// the tensor cores wherever a segment fits them.
void DecodeOnDevice(ElementType compute, const DecodeWorkers& workers, const AttentionShape& shape,
                    absl::Span<const DecodeItem> items, const float* q, PoolView pool, float* out,
                    float* lse);

class DeviceTwin final : public AttentionBackend {
 public:
  /// Of a device with so many multiprocessors, on which every kernel of decode attention fits.
  explicit DeviceTwin(ElementType compute, int multiprocessors = 1);

  std::string_view name() const override {
    return compute_ == ElementType::kF32 ? "cuda-f32" : "cuda-bf16";
  }

  void PrefillAttention(const AttentionShape& shape, const PackedSequences& sequences,
                        const PromptTensors& prompts) override;
  void PrefillDistantAttention(const AttentionShape& shape, int n, const PromptTensors& prompt,
                               const DistantPrefill& distant, DistantCounts* counts) override;

  void WindowScores(const AttentionShape& shape, const PromptTail& tail, int kernel,
                    WindowPooling pooling, float* scores) override;
  void ColumnSums(const AttentionShape& shape, const PromptTail& tail, int begin, int end,
                  ScoreRows score_rows, float* sums, size_t stride) override;
  void SelectBest(const float* scores, size_t stride, int num_heads, int candidates, int best,
                  int32_t* indices) override;
  int SelectWindows(const float* scores, int num_heads, int candidates, int review, int best,
                    int budget, int32_t* indices) override;
  double CosineSum(const float* a, const float* b, int rows, int width) override;

  void WriteTokens(const AttentionShape& shape, const KeyValues& tokens, const TokenChoice& rows,
                   PoolView pool, const SegmentView& segment, int first_slot) override;
  void WriteScores(const AttentionShape& shape, const float* sums, int n, const TokenChoice& rows,
                   PoolView pool, const SegmentView& segment, int first_slot) override;
  void CopyTokens(const AttentionShape& shape, PoolView pool, const SegmentView& from,
                  const TokenChoice& slots, const SegmentView& to, int first_slot) override;
  void CopyAll(const AttentionShape& shape, PoolView pool,
               absl::Span<const TokenCopy> copies) override;
  void ReadTokens(const AttentionShape& shape, PoolView pool, const SegmentView& segment, int first,
                  int count, float* k, float* v) override;
  void WriteStep(const AttentionShape& shape, absl::Span<const DecodeItem> items, const float* k,
                 const float* v, PoolView pool) override;

  void MergeAngles(const AttentionShape& shape, ElementType element, const void* k0, const void* k1,
                   int m, float* angles) override;
  void WriteMerged(const AttentionShape& shape, const KeyValues& lower_tokens,
                   const KeyValues& upper_tokens, const TokenChoice& rows, double t, PoolView pool,
                   const SegmentView& lower, const SegmentView& upper, int first_slot) override;

  void DecodeAttention(const AttentionShape& shape, absl::Span<const DecodeItem> items,
                       const float* q, PoolView pool, float* out, float* lse) override;
  void AccumulateScores(const AttentionShape& shape, absl::Span<const DecodeItem> items,
                        const float* q, const float* lse, PoolView pool) override;
  double SlotMass(const AttentionShape& shape, const SegmentView& segment, int begin, int end,
                  const float* q, const float* lse, PoolView pool) override;

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
  ElementType compute_;
  DecodeWorkers workers_;
  std::unique_ptr<CudaBackend> backend_;
};

}  // namespace ziggurat::cuda

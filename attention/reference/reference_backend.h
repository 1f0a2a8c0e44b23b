// The twin that the fast backends are checked against: plain loops, one thread, double throughout.
// Every formula stands here once, as it is written in backend.h, and nothing is clever.
#pragma once

#include "attention/backend.h"

namespace ziggurat::reference {

class ReferenceBackend final : public AttentionBackend {
 public:
  std::string_view name() const override { return "reference"; }

  // reference_prefill.cc
  int attention_part_rows(const AttentionShape& /*shape*/) const override { return 1; }
  int column_part_keys() const override { return 1; }
  void PrefillAttention(const AttentionShape& shape, const PackedSequences& sequences,
                        const PromptTensors& prompts) override;
  void PrefillDistantAttention(const AttentionShape& shape, int n, const PromptTensors& prompt,
                               const DistantPrefill& distant, DistantCounts* counts) override;

  // reference_statistics.cc
  void WindowScores(const AttentionShape& shape, const PromptTail& tail, int kernel,
                    WindowPooling pooling, float* scores) override;
  void ColumnSums(const AttentionShape& shape, const PromptTail& tail, int begin, int end,
                  ScoreRows score_rows, float* sums, size_t stride) override;
  void SelectBest(const float* scores, size_t stride, int num_heads, int candidates, int best,
                  int32_t* indices) override;
  int SelectWindows(const float* scores, int num_heads, int candidates, int review, int best,
                    int budget, int32_t* indices) override;
  double CosineSum(const float* a, const float* b, int rows, int width) override;

  // reference_cache.cc
  void WriteTokens(const AttentionShape& shape, const KeyValues& tokens, const TokenChoice& rows,
                   PoolView pool, const SegmentView& segment, int first_slot) override;
  void WriteScores(const AttentionShape& shape, const float* sums, int n, const TokenChoice& rows,
                   PoolView pool, const SegmentView& segment, int first_slot) override;
  void CopyTokens(const AttentionShape& shape, PoolView pool, const SegmentView& from,
                  const TokenChoice& slots, const SegmentView& to, int first_slot) override;
  void ReadTokens(const AttentionShape& shape, PoolView pool, const SegmentView& segment, int first,
                  int count, float* k, float* v) override;
  void WriteStep(const AttentionShape& shape, absl::Span<const DecodeItem> items, const float* k,
                 const float* v, PoolView pool) override;

  // reference_merge.cc
  void MergeAngles(const AttentionShape& shape, ElementType element, const void* k0, const void* k1,
                   int m, float* angles) override;
  void WriteMerged(const AttentionShape& shape, const KeyValues& lower_tokens,
                   const KeyValues& upper_tokens, const TokenChoice& rows, double t, PoolView pool,
                   const SegmentView& lower, const SegmentView& upper, int first_slot) override;

  // reference_decode.cc
  void DecodeAttention(const AttentionShape& shape, absl::Span<const DecodeItem> items,
                       const float* q, PoolView pool, float* out, float* lse) override;
  void AccumulateScores(const AttentionShape& shape, absl::Span<const DecodeItem> items,
                        const float* q, const float* lse, PoolView pool) override;
  double SlotMass(const AttentionShape& shape, const SegmentView& segment, int begin, int end,
                  const float* q, const float* lse, PoolView pool) override;

  // reference_elementwise.cc
  void RmsNorm(const float* x, const float* weight, float epsilon, int rows, int width,
               ElementType element, void* out) override;
  void SplitAndRotate(const AttentionShape& shape, ElementType element, const void* qkv,
                      const float* cos, const float* sin, int rows, ElementType out_element,
                      void* q, void* k, void* v) override;
  void SwiGlu(ElementType element, const void* gate_up, int rows, int width, void* out) override;
  void Convert(ElementType from, const void* x, size_t count, ElementType to, void* out) override;
};

}  // namespace ziggurat::reference

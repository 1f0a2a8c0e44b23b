// The kernels of a GPU behind the interface of a backend: every pointer is to the device's memory,
// every call is asked of one stream, and nothing waits but what brings a number to the host
// (Download, and the functions that return one).
//
// What a call needs of the cache's tables goes along with it (TableImage). That is for prompts and
// edits; a decode step has a table that stays on the device (step_table.h, model/cuda).
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "attention/backend.h"
#include "attention/cuda/device.h"
#include "attention/cuda/edit_batches.h"
#include "attention/cuda/prompt_library.h"
#include "attention/cuda/stream_timer.h"
#include "attention/cuda/table_image.h"
#include "attention/cuda/upload_ring.h"

namespace ziggurat::cuda {

struct CudaBackendOptions {
  size_t scratch_bytes = 0;  ///< of the backend's own, for one call
  size_t lend_bytes = 0;     ///< what Lend can give
  size_t upload_bytes = 0;   ///< of the ring (UploadRing)
};

/// Scratch for prompts and edits of up to `tokens` tokens; a call that would need more for copies
/// or merges goes in pieces.
size_t ScratchBytesFor(const AttentionShape& shape, int tokens);

class CudaBackend final : public PromptBackend {
 public:
  /// RESOURCE_EXHAUSTED names the part that there is no memory for. `prompts` may be null.
  static absl::StatusOr<std::unique_ptr<CudaBackend>> Create(
      std::shared_ptr<Stream> stream, const CudaBackendOptions& options,
      std::unique_ptr<PromptLibrary> prompts);

  std::string_view name() const override { return "cuda"; }
  double edit_seconds() override { return edits_.Seconds(); }
  bool is_hosts() const override { return false; }

  void* Lend(size_t bytes) override;
  void Upload(const void* host, size_t bytes, void* to) override;
  void Download(const void* from, size_t bytes, void* host) const override;
  void CopyRows(const void* from, size_t from_stride, size_t row_bytes, size_t rows, void* to,
                size_t to_stride) override;
  void KeepSelected(const int32_t* best_of, size_t stride, int heads, int best, int first_recent,
                    int recent, int32_t* kept) override;
  void Complement(const int32_t* chosen, int heads, int count, int n, int32_t* rest) override;
  void EmbedTokens(ElementType element, const void* table, absl::Span<const int32_t> ids, int width,
                   float* out) override;
  void FillAngles(absl::Span<const float> inverse_frequencies, int first, int count, float* cos,
                  float* sin) override;

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
  /// Where `count` tokens do not fit the scratch memory they go in pieces, in order: then, where
  /// both are one segment, no token may go behind the slot that it is in.
  void CopyTokens(const AttentionShape& shape, PoolView pool, const SegmentView& from,
                  const TokenChoice& slots, const SegmentView& to, int first_slot) override;
  /// As many at a time as scratch memory and upload ring hold.
  void CopyAll(const AttentionShape& shape, PoolView pool,
               absl::Span<const TokenCopy> copies) override;
  void ReadTokens(const AttentionShape& shape, PoolView pool, const SegmentView& segment, int first,
                  int count, float* k, float* v) override;

  void MergeAngles(const AttentionShape& shape, ElementType element, const void* k0, const void* k1,
                   int m, float* angles) override;
  void WriteMerged(const AttentionShape& shape, const KeyValues& lower_tokens,
                   const KeyValues& upper_tokens, const TokenChoice& rows, double t, PoolView pool,
                   const SegmentView& lower, const SegmentView& upper, int first_slot) override;
  void MergeTails(const AttentionShape& shape, PoolView pool,
                  absl::Span<const TailMerge> merges) override;

  void RmsNorm(const float* x, const float* weight, float epsilon, int rows, int width,
               ElementType element, void* out) override;
  void SplitAndRotate(const AttentionShape& shape, ElementType element, const void* qkv,
                      const float* cos, const float* sin, int rows, ElementType out_element,
                      void* q, void* k, void* v) override;
  void SwiGlu(ElementType element, const void* gate_up, int rows, int width, void* out) override;

 private:
  /// By our own kernels.
  void AttendToPrompts(const AttentionShape& shape, absl::Span<const int> offsets,
                       const PromptTensors& tensors);
  CudaBackend(std::shared_ptr<Stream> stream, std::unique_ptr<PromptLibrary> prompts)
      : stream_(std::move(stream)), prompts_(std::move(prompts)), edits_(stream_.get()) {}

  /// Scratch memory of one call; CHECKs that there is as much.
  void* Scratch(size_t bytes);
  /// Of copies or merges that go together.
  BatchLimits LimitsOfBatches() const;
  /// The pool, and the table that goes along with a call.
  DeviceCache Cache(PoolView pool, const TableImage& image);
  template <typename T>
  T Fetch(const T* from) const {
    T value;
    Download(from, sizeof(T), &value);
    return value;
  }
  cudaStream_t at() const { return stream_->get(); }

  std::shared_ptr<Stream> stream_;
  std::unique_ptr<PromptLibrary> prompts_;
  StreamTimer edits_;  ///< outlives the memory, which is freed when the stream is through
  std::unique_ptr<UploadRing> uploads_;
  DeviceMemory scratch_, lent_, numbers_;
};

}  // namespace ziggurat::cuda

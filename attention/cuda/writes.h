// Tokens into blocks, out of them, and from block to block. Each function is the one of the same
// name of PromptBackend (attention/backend.h), where it says what is written; pointers are the
// device's, and a segment is named by the word of the table at which its record stands. Indices lie
// on the device, so what a statistic selected is written without the host having seen it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/cuda/device_views.h"
#include "attention/cuda/stream.h"
#include "attention/prompt_tensors.h"

namespace ziggurat::cuda {

/// `heads` and `unit` (tokens encoded together: a group, else 1) are those of the segment.
struct TargetSegment {
  uint32_t word = 0;
  int heads = 0;
  int unit = 1;
};

void LaunchWriteTokens(const AttentionShape& shape, const KeyValues& tokens,
                       const DeviceIndices& rows, int count, const DeviceCache& cache,
                       const TargetSegment& segment, int first_slot, cudaStream_t stream);

void LaunchWriteScores(const float* sums, int n, const DeviceIndices& rows, int count,
                       const DeviceCache& cache, const TargetSegment& segment, int first_slot,
                       cudaStream_t stream);

void LaunchReadTokens(const AttentionShape& shape, const DeviceCache& cache, uint32_t segment,
                      int first, int count, float* k, float* v, cudaStream_t stream);

/// A copy from segment to segment; on the device.
struct CopyRecord {
  uint32_t from = 0;  ///< words of the segments' records
  uint32_t to = 0;
  DeviceIndices slots;  ///< of `from`
  int32_t count = 0;
  int32_t first_slot = 0;  ///< of `to`
  size_t scratch = 0;      ///< bytes of the scratch memory before its own CopyScratchBytes
};

/// The most that any of some copies has.
struct CopyExtent {
  int heads = 0;
  int count = 0;
  int units = 0;                ///< tokens encoded together count once
  bool is_staged = false;       ///< some segment may be both read and written
  size_t unit_bytes = 0;        ///< CopyUnitBytes of those that are not
  bool has_attributes = false;  ///< norms, or scores and positions, of staged ones
};

/// Tokens on their way from segment to segment: all of all copies are read before any is written.
/// The scratch memory is for staged ones.
size_t CopyScratchBytes(int heads, int count, int head_dim);
/// Shared memory for what is encoded together, which goes there as it is.
size_t CopyUnitBytes(Encoding from, int unit, int head_dim);
constexpr size_t kMostUnitBytes = size_t{96} << 10;
///   copies  [num_copies], at most kMostCopies
constexpr int kMostCopies = 32767;
void LaunchCopyTokens(const AttentionShape& shape, const DeviceCache& cache,
                      const CopyRecord* copies, int num_copies, const CopyExtent& most,
                      void* scratch, cudaStream_t stream);

/// The rotary embedding of a step and the write of its keys and values, in one pass over the
/// projection: what SplitAndRotate and AttentionBackend::WriteStep do, without K and V in between.
///   qkv       [items, (num_q_heads + 2 num_kv_heads) * head_dim] in `element`
///   cos, sin  [items, head_dim / 2] f32
///   q         [items, num_q_heads, head_dim] f32
void LaunchRotateAndWriteStep(const AttentionShape& shape, const DeviceCache& cache,
                              const DeviceItems& items, ElementType element, const void* qkv,
                              const float* cos, const float* sin, float* q, cudaStream_t stream);

void LaunchMergeAngles(const AttentionShape& shape, ElementType element, const void* k0,
                       const void* k1, int m, float* angles, cudaStream_t stream);

size_t MergeScratchBytes(int heads, int count, int head_dim);

/// A merged segment, as both layers see it.
struct MergedSegment {
  TargetSegment lower;
  uint32_t upper = 0;  ///< word of its record
};
void LaunchWriteMerged(const AttentionShape& shape, const KeyValues& lower_tokens,
                       const KeyValues& upper_tokens, const DeviceIndices& rows, int count,
                       double t, const DeviceCache& cache, const MergedSegment& segment,
                       int first_slot, void* scratch, cudaStream_t stream);

/// A TailMerge; on the device.
struct TailMergeRecord {
  uint32_t lower_tail = 0;  ///< words of the segments' records
  uint32_t upper_tail = 0;
  uint32_t lower_merged = 0;
  uint32_t upper_merged = 0;
  uint32_t lower_retained = 0;
  uint32_t upper_retained = 0;
  int32_t first_merged_slot = 0;
  int32_t first_retained_slot = 0;
  double t = 0;
};

/// What all of some merges have.
struct TailMergeExtent {
  int count = 0;
  int retained = 0;
  int merged_unit = 1;  ///< tokens encoded together
  int retained_unit = 1;
  friend bool operator==(const TailMergeExtent&, const TailMergeExtent&) = default;
};

size_t TailMergeScratchBytes(const TailMergeExtent& each, int heads, int head_dim);
///   merges   [num_merges], of at most kMostTailMergeHeads KV heads together
///   scratch  TailMergeScratchBytes of each
constexpr int kMostTailMergeHeads = 16383;
void LaunchMergeTails(const AttentionShape& shape, const DeviceCache& cache,
                      const TailMergeRecord* merges, int num_merges, const TailMergeExtent& each,
                      void* scratch, cudaStream_t stream);

}  // namespace ziggurat::cuda

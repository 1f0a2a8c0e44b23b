// Copies and merges that go to the device together: what kernels are told of them, and how many
// scratch memory and upload ring hold.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "attention/backend.h"
#include "attention/cuda/table_image.h"
#include "attention/cuda/writes.h"

namespace ziggurat::cuda {

/// What the edits of a batch may take together.
struct BatchLimits {
  size_t scratch_bytes = 0;
  size_t told_bytes = 0;  ///< where their table, or their records, have more, no other is added
};

/// Whether copying between the two may be of norms, or scores and positions.
bool HasAttributes(const SegmentView& from, const SegmentView& to);

/// Copies that one call of LaunchCopyTokens takes.
class CopyBatch {
 public:
  CopyBatch(const AttentionShape& shape, const BatchLimits& limits);

  /// False, and nothing is added, where the copy may not go with those that are there; where none
  /// are, because it needs more scratch memory than there is.
  bool TryAdd(const TokenCopy& copy);
  void Clear();

  bool empty() const { return records_.empty(); }
  /// The table that the records name words of.
  const TableImage& image() const { return image_; }
  absl::Span<const CopyRecord> records() const { return records_; }
  const CopyExtent& most() const { return most_; }
  /// 0 where no copy passes through scratch memory.
  size_t scratch_bytes() const { return most_.is_staged ? scratch_bytes_ : 0; }

 private:
  struct Needs {
    size_t units = 0;  ///< tokens encoded together count once
    size_t unit_bytes = 0;
    bool has_attributes = false;
    bool is_staged = false;
    size_t scratch_bytes = 0;  ///< where it, or one that goes with it, is staged
  };
  Needs NeedsOf(const TokenCopy& copy) const;
  bool HasRoomFor(const Needs& needs) const;
  /// A launch has room for as many units in each copy as the longest has.
  bool WastesRoom(const Needs& needs) const;

  const int head_dim_;
  const BatchLimits limits_;
  TableImage image_;
  std::vector<CopyRecord> records_;
  CopyExtent most_;
  size_t scratch_bytes_ = 0;
  size_t units_ = 0;  ///< of all copies
};

/// Merges that one call of LaunchMergeTails takes: of as many tokens each.
class MergeBatch {
 public:
  MergeBatch(const AttentionShape& shape, const BatchLimits& limits);

  // As CopyBatch.
  bool TryAdd(const TailMerge& merge);
  void Clear();

  bool empty() const { return records_.empty(); }
  const TableImage& image() const { return image_; }
  absl::Span<const TailMergeRecord> records() const { return records_; }
  const TailMergeExtent& each() const { return each_; }
  size_t scratch_bytes() const { return scratch_bytes_; }

 private:
  bool HasRoomFor(const TailMergeExtent& extent, size_t scratch_bytes) const;

  const int heads_;
  const int head_dim_;
  const BatchLimits limits_;
  TableImage image_;
  std::vector<TailMergeRecord> records_;
  TailMergeExtent each_;
  size_t scratch_bytes_ = 0;
};

/// Every edit goes to the device, in order, with as many others as may go with it.
///   launch  of what is in `batch`, which is not empty; clears it
///   alone   of an edit that no batch takes
template <typename Batch, typename Edit, typename Launch, typename Alone>
void InBatches(absl::Span<const Edit> edits, Batch& batch, Launch launch, Alone alone) {
  for (const Edit& edit : edits) {
    if (batch.TryAdd(edit)) continue;
    if (!batch.empty()) launch();
    if (!batch.TryAdd(edit)) alone(edit);
  }
  if (!batch.empty()) launch();
}

}  // namespace ziggurat::cuda

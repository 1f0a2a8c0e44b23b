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

  /// Whether the copy may go with those that are there. Where none are, one that may not needs more
  /// scratch memory than there is.
  bool TakesAlso(const TokenCopy& copy) const;
  void Add(const TokenCopy& copy);
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
  bool TakesAlso(const TailMerge& merge) const;
  void Add(const TailMerge& merge);
  void Clear();

  bool empty() const { return records_.empty(); }
  const TableImage& image() const { return image_; }
  absl::Span<const TailMergeRecord> records() const { return records_; }
  const TailMergeExtent& each() const { return each_; }
  size_t scratch_bytes() const { return scratch_bytes_; }

 private:
  size_t ScratchBytesOf(const TailMerge& merge) const;

  const int heads_;
  const int head_dim_;
  const BatchLimits limits_;
  TableImage image_;
  std::vector<TailMergeRecord> records_;
  TailMergeExtent each_;
  size_t scratch_bytes_ = 0;
};

}  // namespace ziggurat::cuda

#include "attention/cuda/edit_batches.h"

#include <algorithm>

namespace ziggurat::cuda {
namespace {

/// Copies that go together have up to so much more room than units, where they are more than a few.
constexpr size_t kMostRoom = 8;
constexpr size_t kFewCopies = 64;

/// Whether as much has been told of edits as goes in one upload.
bool IsFull(const TableImage& image, size_t record_bytes, const BatchLimits& limits) {
  return image.words().size() * sizeof(uint32_t) > limits.told_bytes ||
         record_bytes > limits.told_bytes;
}

TailMergeExtent ExtentOf(const TailMerge& merge) {
  return {merge.count, merge.retained, merge.lower_merged->UnitTokens(),
          merge.lower_retained->UnitTokens()};
}

}  // namespace

bool HasAttributes(const SegmentView& from, const SegmentView& to) {
  const auto has = [](const SegmentView& segment) {
    return segment.key_norms.blocks != nullptr || segment.scores.blocks != nullptr;
  };
  return has(from) || has(to);
}

// ---- Copies -------------------------------------------------------------------------------------

CopyBatch::CopyBatch(const AttentionShape& shape, const BatchLimits& limits)
    : head_dim_(shape.head_dim), limits_(limits) {}

CopyBatch::Needs CopyBatch::NeedsOf(const TokenCopy& copy) const {
  const SegmentView &from = *copy.from, &to = *copy.to;
  const int unit = to.UnitTokens();
  Needs needs;
  needs.units = copy.count / unit;
  needs.unit_bytes = CopyUnitBytes(from.encoding, unit, head_dim_);
  needs.has_attributes = HasAttributes(from, to);
  // Numbers that become codes: what is read of such copies is written by none.
  const bool becomes_codes = IsPlain(from.encoding) && !IsPlain(to.encoding) &&
                             !needs.has_attributes && needs.unit_bytes <= kMostUnitBytes;
  needs.is_staged = !becomes_codes;
  needs.scratch_bytes = CopyScratchBytes(to.num_kv_heads, copy.count, head_dim_);
  return needs;
}

bool CopyBatch::WastesRoom(const Needs& needs) const {
  const size_t copies = records_.size() + 1;
  const size_t most_units = std::max<size_t>(most_.units, needs.units);
  return copies > kFewCopies && copies * most_units > kMostRoom * (units_ + needs.units);
}

bool CopyBatch::HasRoomFor(const Needs& needs) const {
  // One that is staged makes all of them so.
  const bool is_staged = needs.is_staged || most_.is_staged;
  if (is_staged && scratch_bytes_ + needs.scratch_bytes > limits_.scratch_bytes) return false;
  const size_t copies = records_.size() + 1;
  return empty() || (copies <= kMostCopies && !WastesRoom(needs) &&
                     !IsFull(image_, copies * sizeof(CopyRecord), limits_));
}

bool CopyBatch::TryAdd(const TokenCopy& copy) {
  const Needs needs = NeedsOf(copy);
  if (!HasRoomFor(needs)) return false;
  CopyRecord& record = records_.emplace_back();
  record.from = image_.AddSlots(*copy.from, copy.first, copy.count);
  record.to = image_.AddSlots(*copy.to, copy.first_slot, copy.count);
  record.slots.first = copy.first;
  record.count = copy.count;
  record.first_slot = copy.first_slot;
  record.scratch = scratch_bytes_;
  scratch_bytes_ += needs.scratch_bytes;
  units_ += needs.units;
  most_.heads = std::max(most_.heads, copy.to->num_kv_heads);
  most_.count = std::max(most_.count, copy.count);
  most_.units = std::max(most_.units, static_cast<int>(needs.units));
  most_.is_staged = most_.is_staged || needs.is_staged;
  most_.has_attributes = most_.has_attributes || needs.has_attributes;
  if (!needs.is_staged) most_.unit_bytes = std::max(most_.unit_bytes, needs.unit_bytes);
  return true;
}

void CopyBatch::Clear() {
  image_.Clear();
  records_.clear();
  most_ = {};
  scratch_bytes_ = units_ = 0;
}

// ---- Merges -------------------------------------------------------------------------------------

MergeBatch::MergeBatch(const AttentionShape& shape, const BatchLimits& limits)
    : heads_(shape.num_kv_heads), head_dim_(shape.head_dim), limits_(limits) {}

bool MergeBatch::HasRoomFor(const TailMergeExtent& extent, size_t scratch_bytes) const {
  if (scratch_bytes_ + scratch_bytes > limits_.scratch_bytes) return false;
  const size_t merges = records_.size() + 1;
  return empty() || (extent == each_ && merges * heads_ <= kMostTailMergeHeads &&
                     !IsFull(image_, merges * sizeof(TailMergeRecord), limits_));
}

bool MergeBatch::TryAdd(const TailMerge& merge) {
  const TailMergeExtent extent = ExtentOf(merge);
  const size_t scratch_bytes = TailMergeScratchBytes(extent, heads_, head_dim_);
  if (!HasRoomFor(extent, scratch_bytes)) return false;
  const auto add = [&](const SegmentView* segment, int first, int count) {
    return image_.AddSlots(*segment, first, count);
  };
  TailMergeRecord& record = records_.emplace_back();
  record.lower_tail = add(merge.lower_tail, 0, merge.count);
  record.upper_tail = add(merge.upper_tail, 0, merge.count);
  record.lower_merged = add(merge.lower_merged, merge.first_merged_slot, merge.merged());
  record.upper_merged = add(merge.upper_merged, merge.first_merged_slot, merge.merged());
  record.lower_retained = add(merge.lower_retained, merge.first_retained_slot, merge.retained);
  record.upper_retained = add(merge.upper_retained, merge.first_retained_slot, merge.retained);
  record.first_merged_slot = merge.first_merged_slot;
  record.first_retained_slot = merge.first_retained_slot;
  record.t = merge.t;
  each_ = extent;
  scratch_bytes_ += scratch_bytes;
  return true;
}

void MergeBatch::Clear() {
  image_.Clear();
  records_.clear();
  scratch_bytes_ = 0;
}

}  // namespace ziggurat::cuda

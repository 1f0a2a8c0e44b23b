#include "model/cache_ops/cache_edit.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"

namespace ziggurat {
namespace {

/// Slots [first, first + count) are there.
bool Holds(const SegmentView& segment, int first, int count) {
  return first >= 0 && count >= 0 && count <= segment.num_slots - first;
}

bool CanWrite(const SegmentView& segment, int first, int count) {
  const int unit = segment.UnitTokens();
  return Holds(segment, first, count) && first % unit == 0 && count % unit == 0;
}

absl::Status Check(const CopyEdit& edit) {
  const SegmentView &from = *edit.from, &to = *edit.to;
  const size_t listed = static_cast<size_t>(from.num_kv_heads) * std::max(edit.count, 0);
  const bool reads_inside =
      edit.slots.empty() ? Holds(from, edit.first, edit.count)
                         : edit.slots.size() == listed &&
                               std::all_of(edit.slots.begin(), edit.slots.end(), [&](int32_t slot) {
                                 return slot >= 0 && slot < from.num_slots;
                               });
  const bool same_heads =
      from.first_kv_head == to.first_kv_head && from.num_kv_heads == to.num_kv_heads;
  if (reads_inside && same_heads && CanWrite(to, edit.first_slot, edit.count)) {
    return absl::OkStatus();
  }
  return absl::InternalError(
      absl::StrCat("a copy of ", edit.count, " tokens from ",
                   edit.slots.empty() ? absl::StrCat("slot ", edit.first)
                                      : absl::StrCat(edit.slots.size(), " slots"),
                   " of ", from.num_slots, " to slot ", edit.first_slot, " of ", to.num_slots,
                   same_heads ? "" : " of other heads"));
}

absl::Status Check(const MergeEdit& edit) {
  bool fits = true;  // a negative count of either part does not
  for (const SegmentView* tail : {edit.lower_tail, edit.upper_tail}) {
    fits = fits && Holds(*tail, 0, edit.count);
  }
  for (const SegmentView* merged : {edit.lower_merged, edit.upper_merged}) {
    fits = fits && CanWrite(*merged, edit.first_merged_slot, edit.count - edit.retained);
  }
  for (const SegmentView* retained : {edit.lower_retained, edit.upper_retained}) {
    fits = fits && CanWrite(*retained, edit.first_retained_slot, edit.retained);
  }
  const SegmentView &lower = *edit.lower_retained, &upper = *edit.upper_retained;
  fits = fits && lower.encoding == upper.encoding && lower.group == upper.group;
  if (fits) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      "a merge of ", edit.count, " of ", edit.lower_tail->num_slots, " and ",
      edit.upper_tail->num_slots, " tokens, ", edit.retained, " of them retained, to slot ",
      edit.first_merged_slot, " of ", edit.lower_merged->num_slots, " merged and slot ",
      edit.first_retained_slot, " of ", edit.lower_retained->num_slots, " retained ones"));
}

std::array<const SegmentView*, 6> SegmentsOf(const MergeEdit& edit) {
  return {edit.lower_tail,   edit.upper_tail,     edit.lower_merged,
          edit.upper_merged, edit.lower_retained, edit.upper_retained};
}

class EditRunner {
 public:
  EditRunner(PromptBackend& backend, const AttentionShape& shape, PoolView pool, size_t edits)
      : backend_(backend), shape_(shape), pool_(pool) {
    copies_.reserve(edits);
    touched_.reserve(2 * edits);
  }

  absl::Status operator()(const CopyEdit& edit) {
    if (absl::Status status = Check(edit); !status.ok()) return status;
    if (edit.slots.empty()) {
      if (FollowsAWrite(edit)) RunPending();
      copies_.push_back({edit.from, edit.first, edit.count, edit.to, edit.first_slot});
      touched_.try_emplace(edit.from);
      touched_[edit.to].push_back({edit.first_slot, edit.count});
      return absl::OkStatus();
    }
    RunPending();
    const size_t bytes = edit.slots.size() * sizeof(int32_t);
    auto* listed = static_cast<int32_t*>(backend_.Lend(bytes));
    backend_.Upload(edit.slots.data(), bytes, listed);
    backend_.CopyTokens(shape_, pool_, *edit.from,
                        TokenChoice::Listed(listed, edit.count, edit.count), *edit.to,
                        edit.first_slot);
    return absl::OkStatus();
  }

  absl::Status operator()(const MergeEdit& edit) {
    if (absl::Status status = Check(edit); !status.ok()) return status;
    for (const SegmentView* segment : SegmentsOf(edit)) {
      if (touched_.contains(segment)) RunPending();
    }
    for (const SegmentView* segment : SegmentsOf(edit)) touched_.try_emplace(segment);
    merges_.push_back(edit);
    return absl::OkStatus();
  }

  /// Edits wait for one another: a device does many at once. Merges go first, since none of them
  /// touches what a copy in front of it does.
  void RunPending() {
    if (!merges_.empty()) backend_.MergeTails(shape_, pool_, merges_);
    if (!copies_.empty()) backend_.CopyAll(shape_, pool_, copies_);
    merges_.clear();
    copies_.clear();
    touched_.clear();
  }

 private:
  struct Range {
    int first;
    int count;
  };

  /// Whether the edit reads or writes what a copy that waits writes.
  bool FollowsAWrite(const CopyEdit& edit) const {
    const auto touches = [&](const SegmentView* segment, int first) {
      const auto found = touched_.find(segment);
      return found != touched_.end() &&
             std::any_of(found->second.begin(), found->second.end(), [&](const Range& range) {
               return first < range.first + range.count && range.first < first + edit.count;
             });
    };
    return touches(edit.from, edit.first) || touches(edit.to, edit.first_slot);
  }

  PromptBackend& backend_;
  const AttentionShape& shape_;
  PoolView pool_;
  std::vector<MergeEdit> merges_;
  std::vector<TokenCopy> copies_;
  /// By edits that wait, and the slots of each that copies write.
  absl::flat_hash_map<const SegmentView*, absl::InlinedVector<Range, 2>> touched_;
};

}  // namespace

absl::Status RunCacheEdits(PromptBackend& backend, const AttentionShape& shape, PoolView pool,
                           absl::Span<const CacheEdit> edits) {
  EditRunner runner(backend, shape, pool, edits.size());
  absl::Status status;
  for (const CacheEdit& edit : edits) {
    status = std::visit([&](const auto& one) { return runner(one); }, edit);
    if (!status.ok()) break;
  }
  runner.RunPending();
  return status;
}

}  // namespace ziggurat

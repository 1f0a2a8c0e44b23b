#include "model/cache_ops/cache_edit.h"

#include <algorithm>
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
  const int unit = IsGrouped(segment.encoding) ? segment.group : 1;
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
  const bool splits = edit.retained >= 0 && edit.retained <= edit.count;
  bool fits = splits;
  for (const SegmentView* tail : {edit.lower_tail, edit.upper_tail}) {
    fits = fits && Holds(*tail, 0, edit.count);
  }
  for (const SegmentView* merged : {edit.lower_merged, edit.upper_merged}) {
    fits = fits && CanWrite(*merged, edit.first_merged_slot, edit.count - edit.retained);
  }
  for (const SegmentView* retained : {edit.lower_retained, edit.upper_retained}) {
    fits = fits && CanWrite(*retained, edit.first_retained_slot, edit.retained);
  }
  if (fits) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      "a merge of ", edit.count, " of ", edit.lower_tail->num_slots, " and ",
      edit.upper_tail->num_slots, " tokens, ", edit.retained, " of them retained, to slot ",
      edit.first_merged_slot, " of ", edit.lower_merged->num_slots, " merged and slot ",
      edit.first_retained_slot, " of ", edit.lower_retained->num_slots, " retained ones"));
}

class EditRunner {
 public:
  EditRunner(AttentionBackend& backend, const AttentionShape& shape, PoolView pool)
      : backend_(backend), shape_(shape), pool_(pool) {}

  absl::Status operator()(const CopyEdit& edit) {
    if (absl::Status status = Check(edit); !status.ok()) return status;
    if (edit.slots.empty()) {
      if (FollowsAWrite(edit)) CopyPending();
      pending_.push_back({edit.from, edit.first, edit.count, edit.to, edit.first_slot});
      written_[edit.to].push_back({edit.first_slot, edit.count});
      return absl::OkStatus();
    }
    CopyPending();
    const size_t bytes = edit.slots.size() * sizeof(int32_t);
    auto* listed = static_cast<int32_t*>(backend_.Lend(bytes));
    backend_.Upload(edit.slots.data(), bytes, listed);
    backend_.CopyTokens(shape_, pool_, *edit.from, {listed, static_cast<size_t>(edit.count)},
                        edit.first, edit.count, *edit.to, edit.first_slot);
    return absl::OkStatus();
  }

  absl::Status operator()(const MergeEdit& edit) {
    if (absl::Status status = Check(edit); !status.ok()) return status;
    CopyPending();
    const int heads = shape_.num_kv_heads, m = edit.count, merged = m - edit.retained;
    // Of both layers the decoded tails; then the angles, and which tokens stay and which do not.
    const size_t tail = static_cast<size_t>(m) * heads * shape_.head_dim;
    const size_t tokens = static_cast<size_t>(m) * heads;
    auto* k0 = static_cast<float*>(backend_.Lend(MergeEditBytes(shape_, m)));
    float *v0 = k0 + tail, *k1 = v0 + tail, *v1 = k1 + tail, *angles = v1 + tail;
    auto* retained = reinterpret_cast<int32_t*>(angles + tokens);
    int32_t* rest = retained + static_cast<size_t>(heads) * edit.retained;
    backend_.ReadTokens(shape_, pool_, *edit.lower_tail, 0, m, k0, v0);
    backend_.ReadTokens(shape_, pool_, *edit.upper_tail, 0, m, k1, v1);
    backend_.MergeAngles(shape_, ElementType::kF32, k0, k1, m, angles);
    backend_.SelectBest(angles, m, heads, m, edit.retained, retained);
    backend_.Complement(retained, heads, edit.retained, m, rest);
    backend_.WriteMerged(shape_, ElementType::kF32, k0, v0, k1, v1,
                         {rest, static_cast<size_t>(merged)}, merged, edit.t, pool_,
                         *edit.lower_merged, *edit.upper_merged, edit.first_merged_slot);
    const HeadIndices kept{retained, static_cast<size_t>(edit.retained)};
    backend_.WriteTokens(shape_, ElementType::kF32, k0, v0, kept, 0, edit.retained, pool_,
                         *edit.lower_retained, edit.first_retained_slot);
    backend_.WriteTokens(shape_, ElementType::kF32, k1, v1, kept, 0, edit.retained, pool_,
                         *edit.upper_retained, edit.first_retained_slot);
    return absl::OkStatus();
  }

  /// Copies of ranges wait for one another: a device does many at once.
  void CopyPending() {
    if (!pending_.empty()) backend_.CopyAll(shape_, pool_, pending_);
    pending_.clear();
    written_.clear();
  }

 private:
  struct Range {
    int first;
    int count;
  };

  /// Whether the edit reads or writes what a pending one writes.
  bool FollowsAWrite(const CopyEdit& edit) const {
    const auto touches = [&](const SegmentView* segment, int first) {
      const auto found = written_.find(segment);
      return found != written_.end() &&
             std::any_of(found->second.begin(), found->second.end(), [&](const Range& range) {
               return first < range.first + range.count && range.first < first + edit.count;
             });
    };
    return touches(edit.from, edit.first) || touches(edit.to, edit.first_slot);
  }

  AttentionBackend& backend_;
  const AttentionShape& shape_;
  PoolView pool_;
  std::vector<TokenCopy> pending_;
  absl::flat_hash_map<const SegmentView*, absl::InlinedVector<Range, 2>> written_;  ///< by pending_
};

}  // namespace

size_t MergeEditBytes(const AttentionShape& shape, int count) {
  const size_t tokens = static_cast<size_t>(count) * shape.num_kv_heads;
  return tokens * (4 * shape.head_dim + 2) * sizeof(float);
}

absl::Status RunCacheEdits(AttentionBackend& backend, const AttentionShape& shape, PoolView pool,
                           absl::Span<const CacheEdit> edits) {
  EditRunner runner(backend, shape, pool);
  absl::Status status;
  for (const CacheEdit& edit : edits) {
    status = std::visit([&](const auto& one) { return runner(one); }, edit);
    if (!status.ok()) break;
  }
  runner.CopyPending();
  return status;
}

}  // namespace ziggurat

#include "model/cache_ops/cache_edit.h"

#include <algorithm>
#include <cstdint>
#include <vector>

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
    HeadIndices slots;
    if (!edit.slots.empty()) slots = {edit.slots.data(), static_cast<size_t>(edit.count)};
    backend_.CopyTokens(shape_, pool_, *edit.from, slots, edit.first, edit.count, *edit.to,
                        edit.first_slot);
    return absl::OkStatus();
  }

  absl::Status operator()(const MergeEdit& edit) {
    if (absl::Status status = Check(edit); !status.ok()) return status;
    const size_t heads = shape_.num_kv_heads, m = edit.count;
    const size_t merged = m - edit.retained;
    const size_t row = heads * shape_.head_dim;
    std::vector<float> k0(m * row), v0(m * row), k1(m * row), v1(m * row);
    backend_.ReadTokens(shape_, pool_, *edit.lower_tail, 0, edit.count, k0.data(), v0.data());
    backend_.ReadTokens(shape_, pool_, *edit.upper_tail, 0, edit.count, k1.data(), v1.data());
    std::vector<float> angles(heads * m);
    backend_.MergeAngles(shape_, ElementType::kF32, k0.data(), k1.data(), edit.count,
                         angles.data());
    std::vector<int32_t> retained(heads * edit.retained), rest;
    backend_.SelectBest(angles.data(), shape_.num_kv_heads, edit.count, edit.retained,
                        retained.data());
    for (size_t head = 0; head < heads; ++head) {
      const int32_t* next = retained.data() + head * edit.retained;
      const int32_t* end = next + edit.retained;
      for (int t = 0; t < edit.count; ++t) {
        if (next != end && *next == t) {
          ++next;
        } else {
          rest.push_back(t);
        }
      }
    }
    backend_.WriteMerged(shape_, ElementType::kF32, k0.data(), v0.data(), k1.data(), v1.data(),
                         {rest.data(), merged}, static_cast<int>(merged), edit.t, pool_,
                         *edit.lower_merged, *edit.upper_merged, edit.first_merged_slot);
    const HeadIndices kept{retained.data(), static_cast<size_t>(edit.retained)};
    backend_.WriteTokens(shape_, ElementType::kF32, k0.data(), v0.data(), kept, 0, edit.retained,
                         pool_, *edit.lower_retained, edit.first_retained_slot);
    backend_.WriteTokens(shape_, ElementType::kF32, k1.data(), v1.data(), kept, 0, edit.retained,
                         pool_, *edit.upper_retained, edit.first_retained_slot);
    return absl::OkStatus();
  }

 private:
  AttentionBackend& backend_;
  const AttentionShape& shape_;
  PoolView pool_;
};

}  // namespace

absl::Status RunCacheEdits(AttentionBackend& backend, const AttentionShape& shape, PoolView pool,
                           absl::Span<const CacheEdit> edits) {
  EditRunner runner(backend, shape, pool);
  for (const CacheEdit& edit : edits) {
    if (absl::Status status = std::visit(runner, edit); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace ziggurat

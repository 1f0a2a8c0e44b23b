#include "model/cache_ops/cache_edit.h"

#include <cstdint>

#include "absl/strings/str_cat.h"

namespace ziggurat {
namespace {

class EditRunner {
 public:
  EditRunner(AttentionBackend& backend, const AttentionShape& shape, PoolView pool)
      : backend_(backend), shape_(shape), pool_(pool) {}

  absl::Status operator()(const CopyEdit& edit) {
    const size_t listed = static_cast<size_t>(edit.from->num_kv_heads) * edit.count;
    const bool reads_inside =
        edit.slots.empty() ? edit.first >= 0 && edit.first + edit.count <= edit.from->num_slots
                           : edit.slots.size() == listed;
    if (!reads_inside || edit.first_slot < 0 || edit.first_slot + edit.count > edit.to->num_slots) {
      return absl::InternalError(absl::StrCat("a copy of ", edit.count, " tokens from slot ",
                                              edit.first, " of ", edit.from->num_slots, " to slot ",
                                              edit.first_slot, " of ", edit.to->num_slots));
    }
    HeadIndices slots;
    if (!edit.slots.empty()) slots = {edit.slots.data(), static_cast<size_t>(edit.count)};
    backend_.CopyTokens(shape_, pool_, *edit.from, slots, edit.first, edit.count, *edit.to,
                        edit.first_slot);
    return absl::OkStatus();
  }

  absl::Status operator()(const MergeEdit& edit) {
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

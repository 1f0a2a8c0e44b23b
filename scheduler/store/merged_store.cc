// MiniCache: a pair of layers holds most tokens as one direction and two norms.
//
// The segments of both layers stand in the same order: merged tokens (shared), retained ones, and
// the tail of generated tokens that have not been merged yet. The lower layer owns what is shared.
#include <optional>

#include "scheduler/store/layer_store.h"
#include "scheduler/store/token_list.h"

namespace ziggurat {
namespace {

/// What both layers of a pair are made of.
class PairStore : public LayerStore {
 public:
  PairStore(const StoreContext& context, LayerBlockTable* table)
      : context_(context),
        merge_(*context.plan->merge),
        table_(table),
        merged_(table, MergedFormat(context)),
        retained_(table, RetainedFormat(context)) {}

  static StoreFormat MergedFormat(const StoreContext& context) {
    StoreFormat format = context.Format(/*merged=*/true);
    format.residual = 0;  // what is merged is old
    return format;
  }
  static StoreFormat RetainedFormat(const StoreContext& context) {
    StoreFormat format = context.Format();
    format.residual = 0;
    return format;
  }
  static CacheFormat TailFormat(const StoreContext& context) { return context.Format().open; }

  int TokensBeforeEdit() const override { return tail_ < 0 ? 0 : merge_.tail - tail_tokens(); }
  int AppendSegment() const override { return tail_; }

  LayerBlockTable* table() { return table_; }
  int tail_tokens() const { return table_->view()[tail_].num_slots; }
  bool IsDue() const { return tail_tokens() == merge_.tail; }
  int merge_retained() const { return merge_.Retained(merge_.tail); }

 protected:
  friend class UpperStore;

  void AddTail() { tail_ = table_->AddSegment({.format = TailFormat(context_)}); }

  const StoreContext& context_;
  const MergeOptions& merge_;
  LayerBlockTable* table_;
  TokenList merged_;
  TokenList retained_;
  int tail_ = -1;  ///< until the pair is filled
  bool merging_ = false;
  std::optional<int> prompt_retained_;  ///< once the prompt has been merged
};

class LowerStore final : public PairStore {
 public:
  using PairStore::PairStore;

  size_t MaxBlocks() const override {
    return MaxMergedBlocks(context_, MergeRole::kLower, prompt_retained_);
  }

  absl::Status Fill(const LayerMeasured& /*measured*/, LayerWrite* /*write*/) override {
    return absl::OkStatus();  // FillBelow
  }
  /// The upper layer, which has been measured, makes room here before it does.
  absl::Status FillBelow(const LayerMeasured& measured) {
    merged_.Open();
    retained_.Open();
    AddTail();
    std::vector<TokenRange> ranges;  // the upper layer's write says them for both
    const int retained = measured.retained_tokens;
    prompt_retained_ = retained;
    absl::Status status = merged_.Fill(measured.kept_tokens - retained, 0, &ranges);
    if (status.ok()) status = retained_.Fill(retained, 0, &ranges);
    return status;
  }

  absl::Status PrepareStep(int /*position*/, std::vector<CacheEdit>* /*edits*/) override {
    merging_ = IsDue();
    if (!merging_) return absl::OkStatus();
    absl::Status status = merged_.Extend(merge_.tail - merge_retained(), &first_merged_);
    int first_retained = 0;  // the upper layer's has the same place
    if (status.ok()) status = retained_.Extend(merge_retained(), &first_retained);
    return status;
  }

  /// What becomes codes of what the upper layer has ordered to be merged.
  absl::Status FlushBelow(std::vector<CacheEdit>* edits) {
    absl::Status status = merged_.Flush(edits);
    if (status.ok()) status = retained_.Flush(edits);
    return status;
  }

  void FinishEdits() override {
    if (!merging_) return;
    merged_.FinishFlush();
    retained_.FinishFlush();
    table_->Truncate(tail_, 0);
    merging_ = false;
  }

 private:
  friend class UpperStore;
  int first_merged_ = 0;
};

class UpperStore final : public PairStore {
 public:
  UpperStore(const StoreContext& context, LayerBlockTable* table, LowerStore* lower)
      : PairStore(context, table), lower_(lower) {}

  size_t MaxBlocks() const override {
    return MaxMergedBlocks(context_, MergeRole::kUpper, prompt_retained_);
  }

  absl::Status Fill(const LayerMeasured& measured, LayerWrite* write) override {
    if (absl::Status status = lower_->FillBelow(measured); !status.ok()) return status;
    prompt_retained_ = measured.retained_tokens;
    merged_.Share(*lower_->table(), lower_->merged_);
    retained_.Open();
    AddTail();
    if (absl::Status status = retained_.Fill(measured.retained_tokens, 0, &write->retained);
        !status.ok()) {
      return status;
    }
    // The shared segments are those of the lower layer, in the same places.
    const LayerView view = table_->view();
    int first = 0;
    for (int s = 0; s < static_cast<int>(view.size()); ++s) {
      if (view[s].key_norms.blocks == nullptr || view[s].num_slots == 0) continue;
      write->ranges.push_back({s, 0, first, view[s].num_slots});
      first += view[s].num_slots;
    }
    write->view = view;
    write->lower = lower_->table()->view();
    return absl::OkStatus();
  }

  absl::Status PrepareStep(int /*position*/, std::vector<CacheEdit>* edits) override {
    merging_ = IsDue();
    if (!merging_) return absl::OkStatus();
    int first_retained = 0;
    merged_.RefreshShared(*lower_->table(), lower_->merged_);
    if (absl::Status status = retained_.Extend(merge_retained(), &first_retained); !status.ok()) {
      return status;
    }
    const LayerView below = lower_->table()->view(), here = table_->view();
    MergeEdit edit;
    edit.lower_tail = &below[lower_->tail_];
    edit.upper_tail = &here[tail_];
    edit.count = merge_.tail;
    edit.retained = merge_retained();
    edit.t = merge_.t;
    edit.lower_merged = &below[lower_->merged_.open_segment()];
    edit.upper_merged = &here[merged_.open_segment()];
    edit.first_merged_slot = lower_->first_merged_;
    edit.lower_retained = &below[lower_->retained_.open_segment()];
    edit.upper_retained = &here[retained_.open_segment()];
    edit.first_retained_slot = first_retained;
    edits->push_back(edit);
    absl::Status status = lower_->FlushBelow(edits);
    if (status.ok()) status = retained_.Flush(edits);
    return status;
  }

  void FinishEdits() override {
    if (!merging_) return;
    merged_.RefreshShared(*lower_->table(), lower_->merged_);
    retained_.FinishFlush();
    table_->Truncate(tail_, 0);
    merging_ = false;
  }

 private:
  LowerStore* lower_;
};

}  // namespace

size_t MaxMergedBlocks(const StoreContext& context, MergeRole role,
                       std::optional<int> prompt_retained) {
  const MergeOptions& merge = *context.plan->merge;
  const CacheGeometry& geometry = *context.geometry;
  const StoreFormat format = PairStore::RetainedFormat(context);
  const int heads = geometry.num_kv_heads, prompt = context.prompt_tokens;
  const size_t merges = context.appended_tokens / merge.tail;
  const int retained_each = merge.Retained(merge.tail);
  const size_t retained_burst = std::max(1, retained_each);
  const size_t tail = std::min(merge.tail, context.appended_tokens);
  // By threshold, anything from none to all of the prompt's tokens may stay unmerged.
  const bool is_open = merge.by_threshold && !prompt_retained;
  const int known = prompt_retained.value_or(merge.Retained(prompt));
  const size_t merged = merges * (merge.tail - retained_each) + prompt - (is_open ? 0 : known);
  size_t retained = merges * retained_each + (is_open ? prompt : known);
  size_t blocks = geometry.BlocksFor(PairStore::TailFormat(context), heads, tail);
  if (role == MergeRole::kLower) {
    blocks += TokenList::MaxBlocks(geometry, PairStore::MergedFormat(context), heads, merged,
                                   std::max(1, merge.tail - retained_each));
    if (is_open) {
      // The prompt is counted as merged, which takes no less. What of it is retained may still make
      // the other list's open part as long as it gets, and both end in a block that is not full.
      const size_t open = format.group() - 1 + retained_burst;
      retained = merges * retained_each + std::min<size_t>(prompt, open);
      blocks += format.coded ? 2 * geometry.BlocksFor(*format.coded, heads, format.group())
                             : geometry.BlocksFor(format.open, heads, 1);
    }
  }
  return blocks + TokenList::MaxBlocks(geometry, format, heads, retained, retained_burst);
}

std::unique_ptr<LayerStore> MakeLowerStore(const StoreContext& context, LayerBlockTable* table) {
  return std::make_unique<LowerStore>(context, table);
}

std::unique_ptr<LayerStore> MakeUpperStore(const StoreContext& context, LayerBlockTable* table,
                                           LayerStore* lower) {
  return std::make_unique<UpperStore>(context, table, static_cast<LowerStore*>(lower));
}

}  // namespace ziggurat

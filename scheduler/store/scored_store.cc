// H2O: a fixed number of slots; each head gives up the token that has received least attention.
#include <algorithm>

#include "scheduler/store/layer_store.h"
#include "scheduler/store/store_format.h"

namespace ziggurat {
namespace {

CacheFormat ScoredFormat(const StoreContext& context) {
  CacheFormat format = context.Format().open;
  format.scored = true;
  return format;
}

class ScoredStore final : public LayerStore {
 public:
  ScoredStore(const StoreContext& context, const KeepHeavy& edit, LayerBlockTable* table)
      : context_(context), edit_(edit), table_(table) {}

  size_t MaxBlocks() const override { return MaxScoredBlocks(context_, edit_); }

  absl::Status Fill(const LayerMeasured& measured, LayerWrite* write) override {
    segment_ = table_->AddSegment({.format = ScoredFormat(context_)});
    absl::Status status = table_->Extend(segment_, measured.kept_tokens);
    write->view = table_->view();
    write->ranges = {{segment_, 0, 0, measured.kept_tokens}};
    return status;
  }

  int TokensBeforeEdit() const override { return kNever; }

  absl::StatusOr<Placement> Append(int /*position*/) override {
    int slot = TokenTarget::kLowestScore;
    if (table_->view()[segment_].num_slots < edit_.heavy + edit_.recent + 1) {
      absl::StatusOr<int> fresh = table_->AppendSlot(segment_);
      if (!fresh.ok()) return fresh.status();
      slot = *fresh;
    }
    target_ = {segment_, slot};
    // The slot that the step before freed is overwritten by this step's token: the window is that
    // of the step before.
    return Placement{.targets = absl::MakeConstSpan(&target_, 1),
                     .score_recent = edit_.recent + 1,
                     .is_final = slot == TokenTarget::kLowestScore};
  }

 private:
  const StoreContext& context_;
  KeepHeavy edit_;
  LayerBlockTable* table_;
  int segment_ = 0;
  TokenTarget target_;
};

}  // namespace

size_t MaxScoredBlocks(const StoreContext& context, const KeepHeavy& edit) {
  const size_t most = static_cast<size_t>(edit.heavy) + edit.recent;  // of the prompt
  const size_t slots = most + 1;
  const size_t tokens = std::min<size_t>(context.prompt_tokens, most) + context.appended_tokens;
  return context.geometry->BlocksFor(ScoredFormat(context), context.geometry->num_kv_heads,
                                     std::min(tokens, slots));
}

std::unique_ptr<LayerStore> MakeScoredStore(const StoreContext& context, const KeepHeavy& edit,
                                            LayerBlockTable* table) {
  return std::make_unique<ScoredStore>(context, edit, table);
}

}  // namespace ziggurat

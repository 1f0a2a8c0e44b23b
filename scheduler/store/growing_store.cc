// Everything that is kept of the prompt, and every token after it.
#include "scheduler/store/layer_store.h"
#include "scheduler/store/token_list.h"

namespace ziggurat {
namespace {

class GrowingStore final : public LayerStore {
 public:
  GrowingStore(const StoreContext& context, const StoreFormat& format, LayerBlockTable* table)
      : context_(context), table_(table), format_(format), list_(table, format) {}

  void Adopt(int segment) {
    list_.Adopt(segment);
    kept_ = table_->view()[segment].num_slots;
  }

  size_t MaxBlocks() const override {
    return TokenList::MaxBlocks(*context_.geometry, format_, context_.geometry->num_kv_heads,
                                static_cast<size_t>(kept_) + context_.appended_tokens);
  }

  absl::Status Fill(const LayerMeasured& measured, LayerWrite* write) override {
    kept_ = measured.kept_tokens;
    list_.Open();
    list_.Reserve(static_cast<size_t>(kept_) + context_.appended_tokens);
    absl::Status status = list_.Fill(kept_, 0, &write->ranges);
    write->view = table_->view();
    return status;
  }

  int TokensBeforeEdit() const override { return list_.TokensBeforeFlush(); }
  int AppendSegment() const override { return list_.open_segment(); }

  absl::Status PrepareStep(int /*position*/, std::vector<CacheEdit>* edits) override {
    return list_.Flush(edits);
  }
  void FinishEdits() override { list_.FinishFlush(); }

 private:
  const StoreContext& context_;
  LayerBlockTable* table_;
  StoreFormat format_;
  TokenList list_;
  int kept_ = 0;
};

}  // namespace

size_t MaxGrowingBlocks(const StoreContext& context, size_t tokens) {
  return TokenList::MaxBlocks(*context.geometry, context.Format(), context.geometry->num_kv_heads,
                              tokens);
}

std::unique_ptr<LayerStore> MakeGrowingStore(const StoreContext& context, const StoreFormat& format,
                                             LayerBlockTable* table) {
  return std::make_unique<GrowingStore>(context, format, table);
}

std::unique_ptr<LayerStore> AdoptGrowingStore(const StoreContext& context, LayerBlockTable* table,
                                              int segment) {
  auto store = std::make_unique<GrowingStore>(context, context.Format(), table);
  store->Adopt(segment);
  return store;
}

}  // namespace ziggurat

// Sinks and the most recent tokens.
//
// One segment is a ring of slots wherever a token can be written alone. Of grouped codes a single
// slot cannot be overwritten: there the sinks are a segment of their own, the recent tokens are
// whole groups of codes behind an open tail, and with every group that is full the oldest one is
// overwritten.
#include <algorithm>

#include "scheduler/store/copy_slots.h"
#include "scheduler/store/layer_store.h"
#include "scheduler/store/leaving_tokens.h"
#include "scheduler/store/store_format.h"

namespace ziggurat {
namespace {

class PlainRing final : public LayerStore {
 public:
  PlainRing(const StoreContext& context, const KeepRing& ring, const CacheFormat& format,
            LayerBlockTable* table)
      : context_(context), ring_(ring), format_(format), table_(table) {}

  void Adopt(int segment) {
    segment_ = segment;
    kept_ = table_->view()[segment].num_slots;
    table_->MakeRing(segment, {ring_.sinks, ring_.recent});
  }

  size_t MaxBlocks() const override {
    const size_t slots = static_cast<size_t>(ring_.sinks) + ring_.recent;
    return context_.geometry->BlocksFor(
        format_, context_.geometry->num_kv_heads,
        std::min<size_t>(slots, static_cast<size_t>(kept_) + context_.appended_tokens));
  }

  absl::Status Fill(const LayerMeasured& measured, LayerWrite* write) override {
    kept_ = measured.kept_tokens;
    segment_ =
        table_->AddSegment({.format = format_, .ring = RingShape{ring_.sinks, ring_.recent}});
    absl::Status status = table_->Extend(segment_, kept_);
    write->view = table_->view();
    write->ranges = {{segment_, 0, 0, kept_}};
    return status;
  }

  int TokensBeforeEdit() const override { return kNever; }
  int AppendSegment() const override { return segment_; }

 private:
  const StoreContext& context_;
  KeepRing ring_;
  CacheFormat format_;
  LayerBlockTable* table_;
  int segment_ = 0;
  int kept_ = 0;
};

/// How a ring of grouped codes divides: `groups` groups and an open tail that `open` tokens of stay
/// when a group has just left it, together the ring's recent tokens.
struct GroupedShape {
  int groups = 0;
  int open = 0;

  GroupedShape(int recent, const StoreFormat& format) {
    const int group = format.group();
    open = recent;  // too few ever to become codes
    if (recent <= format.residual) return;
    open = format.residual + (recent - format.residual) % group;
    // The new token is among those that stay open.
    if (open == 0) open = group;
    groups = (recent - open) / group;
  }
};

class GroupedRing final : public LayerStore {
 public:
  GroupedRing(const StoreContext& context, const KeepRing& ring, const StoreFormat& format,
              LayerBlockTable* table)
      : context_(context),
        ring_(ring),
        format_(format),
        shape_(ring.recent, format),
        table_(table) {}

  static size_t MaxBlocks(const StoreContext& context, const KeepRing& ring,
                          const StoreFormat& format, size_t tokens) {
    const CacheGeometry& geometry = *context.geometry;
    const GroupedShape shape(ring.recent, format);
    const int heads = geometry.num_kv_heads, group = format.group();
    const size_t sinks = std::min<size_t>(ring.sinks, tokens);
    const size_t recent = tokens - sinks;
    const size_t groups = std::min<size_t>(shape.groups, recent / group);
    const size_t open = std::min<size_t>(recent, shape.open + group - 1);
    return geometry.BlocksFor(format.open, heads, sinks) +
           geometry.BlocksFor(*format.coded, heads, groups * group) +
           geometry.BlocksFor(format.open, heads, open);
  }

  size_t MaxBlocks() const override {
    return MaxBlocks(context_, ring_, format_,
                     static_cast<size_t>(kept_) + context_.appended_tokens);
  }

  absl::Status Fill(const LayerMeasured& measured, LayerWrite* write) override {
    kept_ = measured.kept_tokens;
    sinks_ = table_->AddSegment({.format = format_.open});
    coded_ = table_->AddSegment({.format = *format_.coded});
    open_ = table_->AddSegment({.format = format_.open});
    const int sinks = std::min(ring_.sinks, kept_), recent = kept_ - sinks;
    const int group = format_.group();
    const int coded = recent >= shape_.open + group ? (recent - shape_.open) / group * group : 0;
    const std::pair<int, int> parts[] = {{sinks_, sinks}, {coded_, coded}, {open_, recent - coded}};
    int first = 0;
    for (const auto& [segment, count] : parts) {
      if (absl::Status status = table_->Extend(segment, count); !status.ok()) return status;
      if (count > 0) write->ranges.push_back({segment, 0, first, count});
      first += count;
    }
    write->view = table_->view();
    return absl::OkStatus();
  }

  /// With a group that is overwritten the oldest tokens go.
  bool MayEditAhead() const override { return false; }
  /// A group leaves the tail so early that the new token brings it to its least length.
  int TokensBeforeEdit() const override {
    return std::max(0, shape_.open + format_.group() - 1 - table_->view()[open_].num_slots);
  }
  int AppendSegment() const override {
    return table_->view()[sinks_].num_slots < ring_.sinks ? -1 : open_;
  }

  absl::Status PrepareStep(int /*position*/, std::vector<CacheEdit>* edits) override {
    if (TokensBeforeEdit() > 0) return absl::OkStatus();
    const int group = format_.group(), coded = table_->view()[coded_].num_slots;
    int slot = coded;
    if (coded < shape_.groups * group) {
      if (absl::Status status = table_->Extend(coded_, group); !status.ok()) return status;
    } else {
      slot = next_group_ * group;
      next_group_ = (next_group_ + 1) % std::max(1, shape_.groups);
    }
    if (shape_.groups > 0) {
      edits->push_back(CopySlots(*table_, open_, 0, group, coded_, slot));
    }
    flushed_.Order(*table_, open_, group, /*others_move=*/shape_.groups == 0, edits);
    return absl::OkStatus();
  }

  void FinishEdits() override { flushed_.Finish(table_, open_); }

  absl::StatusOr<Placement> Append(int /*position*/) override {
    const int segment = table_->view()[sinks_].num_slots < ring_.sinks ? sinks_ : open_;
    absl::StatusOr<int> slot = table_->AppendSlot(segment);
    if (!slot.ok()) return slot.status();
    target_ = {segment, *slot};
    return Placement{.targets = absl::MakeConstSpan(&target_, 1)};
  }

 private:
  const StoreContext& context_;
  KeepRing ring_;
  StoreFormat format_;
  GroupedShape shape_;
  LayerBlockTable* table_;
  int sinks_ = 0;
  int coded_ = 0;
  int open_ = 0;
  int next_group_ = 0;  ///< the oldest one, once all are there
  int kept_ = 0;
  LeavingTokens flushed_;  ///< the open segment
  TokenTarget target_;
};

}  // namespace

size_t MaxRingBlocks(const StoreContext& context, const KeepRing& ring) {
  const StoreFormat format = context.Format();
  const size_t tokens = static_cast<size_t>(context.prompt_tokens) + context.appended_tokens;
  if (format.coded) return GroupedRing::MaxBlocks(context, ring, format, tokens);
  const size_t slots = static_cast<size_t>(ring.sinks) + ring.recent;
  return context.geometry->BlocksFor(format.open, context.geometry->num_kv_heads,
                                     std::min(slots, tokens));
}

std::unique_ptr<LayerStore> MakeRingStore(const StoreContext& context, const KeepRing& ring,
                                          LayerBlockTable* table) {
  const StoreFormat format = context.Format();
  if (format.coded) return std::make_unique<GroupedRing>(context, ring, format, table);
  return std::make_unique<PlainRing>(context, ring, format.open, table);
}

std::unique_ptr<LayerStore> AdoptRingStore(const StoreContext& context, const KeepRing& ring,
                                           LayerBlockTable* table, int segment) {
  auto store = std::make_unique<PlainRing>(context, ring, KeyValueFormat(context.element), table);
  store->Adopt(segment);
  return store;
}

}  // namespace ziggurat

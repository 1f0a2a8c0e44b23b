// PoD: near tokens lie with their keys in a segment of slots that are used again; a token that
// leaves the near window moves to the end of the distant segment, which stores keys only in the
// lowest layer of the group, values in every layer. Codes that are shared by groups of tokens
// cannot move alone: those have a store of their own (grouped_distant_store.cc).
#include <algorithm>
#include <deque>
#include <vector>

#include "scheduler/store/copy_slots.h"
#include "scheduler/store/distant_runs.h"
#include "scheduler/store/store_format.h"

namespace ziggurat {
namespace {

bool StoresGroups(const StoreContext& context) { return context.Format().coded.has_value(); }

CacheFormat NearFormat(const StoreContext& context) { return context.Format().open; }

CacheFormat DistantFormat(const StoreContext& context, RunRole role) {
  CacheFormat format = NearFormat(context);
  format.values_only = role == RunRole::kFollows;
  return format;
}

/// Blocks of a run that holds `near` tokens with their keys and `distant` ones.
size_t BlocksOfRun(const StoreContext& context, const LayerRun& run, size_t near, size_t distant) {
  const CacheGeometry& geometry = *context.geometry;
  return geometry.BlocksFor(NearFormat(context), run.heads.count, near) +
         geometry.BlocksFor(DistantFormat(context, run.role), run.heads.count, distant);
}

class DistantStore final : public LayerStore {
 public:
  DistantStore(const StoreContext& context, int layer, SequenceCache* cache,
               absl::Span<const std::unique_ptr<LayerStore>> stores)
      : context_(context),
        options_(*context.plan->distant),
        cache_(cache),
        table_(&cache->layer(layer)) {
    for (const LayerRun& of_layer : RunsOf(*context.plan, layer)) {
      Run& run = runs_.emplace_back(of_layer);
      if (run.role == RunRole::kFollows) {
        run.lowest = static_cast<const DistantStore*>(stores[run.lowest_layer].get());
      }
    }
  }

  size_t MaxBlocks() const override { return max_blocks_; }

  absl::Status Fill(const LayerMeasured& measured, LayerWrite* write) override {
    max_blocks_ = 0;
    for (size_t r = 0; r < runs_.size(); ++r) {
      if (absl::Status status = FillRun(r, measured, write); !status.ok()) return status;
    }
    write->view = table_->view();
    return absl::OkStatus();
  }

  /// A token is in both windows until the next one takes its place.
  bool MayEditAhead() const override { return false; }
  absl::Status PrepareStep(int position, std::vector<CacheEdit>* edits) override {
    for (size_t r = 0; r < runs_.size(); ++r) {
      Run& run = runs_[r];
      run.free_slot = -1;
      if (run.role == RunRole::kAlone || run.window.empty()) continue;
      if (run.window.front().position > position - options_.recent) continue;
      const int first = table_->view()[run.distant].num_slots;
      if (run.role == RunRole::kFollows) {
        table_->RefreshKeys(run.distant, *run.lowest->table_, run.lowest->runs_[r].distant);
      }
      if (absl::Status status = table_->Extend(run.distant, 1); !status.ok()) return status;
      run.free_slot = run.window.front().slot;
      edits->push_back(CopySlots(*table_, run.near, run.free_slot, 1, run.distant, first));
      run.window.pop_front();
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Placement> Append(int position) override {
    targets_.clear();
    for (Run& run : runs_) {
      int slot = run.free_slot;
      if (slot < 0) {
        absl::StatusOr<int> fresh = table_->AppendSlot(run.near);
        if (!fresh.ok()) return fresh.status();
        slot = *fresh;
      }
      run.free_slot = -1;
      if (run.role != RunRole::kAlone && position >= options_.sinks) {
        run.window.push_back({position, slot});
      }
      targets_.push_back({run.near, slot});
    }
    return Placement{.targets = targets_};
  }

 private:
  struct NearToken {
    int position;
    int slot;
  };
  struct Run : LayerRun {
    explicit Run(const LayerRun& run) : LayerRun(run) {}

    const DistantStore* lowest = nullptr;
    int near = 0;
    int distant = -1;
    std::deque<NearToken> window;  ///< near tokens that are no sinks, oldest first
    int free_slot = -1;            ///< left by the token that has just moved
  };

  absl::Status FillRun(size_t index, const LayerMeasured& measured, LayerWrite* write) {
    Run& run = runs_[index];
    const int kept = measured.kept_tokens;
    const auto [sinks, near_begin] =
        run.role == RunRole::kAlone ? KeptParts() : PartsOfKept(context_, measured, run.heads);
    run.near = table_->AddSegment(OptionsOf(run.heads, NearFormat(context_)));
    const int near = sinks + kept - near_begin;
    if (absl::Status status = table_->Extend(run.near, near); !status.ok()) return status;
    AddRange(write, {run.near, 0, 0, sinks});
    AddRange(write, {run.near, sinks, near_begin, kept - near_begin});
    const int tokens = kept + context_.appended_tokens;
    if (run.role == RunRole::kAlone) {
      max_blocks_ += BlocksOfRun(context_, run, tokens, 0);
      return absl::OkStatus();
    }
    for (int i = near_begin; i < kept; ++i) {
      const int position = measured.PositionOf(run.heads.first, i, context_.prompt_tokens);
      run.window.push_back({position, sinks + i - near_begin});
    }
    const int distant =
        near_begin - sinks + TokensToLeave(context_, run.window, &NearToken::position);
    max_blocks_ += BlocksOfRun(context_, run, tokens - distant, distant);
    const SegmentOptions options = OptionsOf(run.heads, DistantFormat(context_, run.role));
    if (run.role == RunRole::kFollows) {
      run.distant = table_->AddValuesSegment(options, cache_->layer(run.lowest_layer),
                                             run.lowest->runs_[index].distant);
    } else {
      run.distant = table_->AddSegment(options);
    }
    if (absl::Status status = table_->Extend(run.distant, near_begin - sinks); !status.ok()) {
      return status;
    }
    AddRange(write, {run.distant, 0, sinks, near_begin - sinks});
    return absl::OkStatus();
  }

  static void AddRange(LayerWrite* write, const TokenRange& range) {
    if (range.count > 0) write->ranges.push_back(range);
  }

  const StoreContext& context_;
  const DistantOptions& options_;
  SequenceCache* cache_;
  LayerBlockTable* table_;
  size_t max_blocks_ = 0;
  std::vector<Run> runs_;
  std::vector<TokenTarget> targets_;
};

}  // namespace

size_t MaxDistantBlocks(const StoreContext& context, int layer) {
  if (StoresGroups(context)) return MaxGroupedDistantBlocks(context, layer);
  const CachePlan& plan = *context.plan;
  const size_t tokens = plan.layers[layer].prompt_tokens_kept + context.appended_tokens;
  const size_t window = static_cast<size_t>(plan.distant->sinks) + plan.distant->recent;
  size_t blocks = 0;
  for (const LayerRun& run : RunsOf(plan, layer)) {
    const size_t near = run.role == RunRole::kAlone ? tokens : std::min(tokens, window);
    blocks += BlocksOfRun(context, run, near, tokens - near);
    // With a selection sinks and recent tokens may have been dropped. Then more are distant, and
    // the two parts may end in one block more of each plane.
    if (run.role != RunRole::kAlone && plan.SelectsTokens()) {
      blocks += context.geometry->BlocksFor(DistantFormat(context, run.role), run.heads.count, 1);
    }
  }
  return blocks;
}

std::unique_ptr<LayerStore> MakeDistantStore(const StoreContext& context, int layer,
                                             SequenceCache* cache,
                                             absl::Span<const std::unique_ptr<LayerStore>> stores) {
  if (StoresGroups(context)) return MakeGroupedDistantStore(context, layer, cache, stores);
  return std::make_unique<DistantStore>(context, layer, cache, stores);
}

}  // namespace ziggurat

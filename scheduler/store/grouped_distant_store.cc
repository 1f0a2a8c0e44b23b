// PoD where tokens become codes in groups. A run of heads has its near tokens in two segments: the
// sinks and, behind them, an open tail in one, and whole groups of codes in the other; distant
// tokens are whole groups of codes. Tokens go from the tail to the codes as in any list, once
// residual + group of them are open; a group goes from the near codes to the distant ones, as it
// stands, once the youngest of its tokens is distant. So the near window holds up to group - 1
// tokens more than it must. Where the tail is longer than the window (residual >= recent), groups
// go from it to the distant codes directly.
//
// The layers of a group hold the same tokens, so they move the same group in the same step, and
// slot s of their distant segments is the same token.
#include <algorithm>
#include <deque>
#include <optional>
#include <vector>

#include "scheduler/store/copy_slots.h"
#include "scheduler/store/distant_runs.h"
#include "scheduler/store/token_list.h"

namespace ziggurat {
namespace {

CacheFormat DistantFormat(const StoreFormat& format, RunRole role) {
  CacheFormat distant = *format.coded;
  distant.values_only = role == RunRole::kFollows;
  return distant;
}

/// Most tokens that a run holds at a time in each of its parts; `near` are no sinks.
struct MostTokens {
  size_t sinks = 0;
  size_t near = 0;
  size_t distant = 0;
};

/// Near tokens: those that must be, and a group less one that waits for its youngest.
size_t MostNear(const StoreContext& context, const StoreFormat& format, size_t tokens) {
  return std::min<size_t>(tokens, context.plan->distant->recent + format.group() - 1);
}

size_t BlocksOfRun(const StoreContext& context, const StoreFormat& format, const LayerRun& run,
                   const MostTokens& most) {
  const CacheGeometry& geometry = *context.geometry;
  const size_t group = format.group(), residual = format.residual;
  const size_t coded = format.CodedTokens(static_cast<int>(most.near));
  const size_t tail = std::min(most.near, residual + group);
  const int heads = run.heads.count;
  return geometry.BlocksFor(*format.coded, heads, coded) +
         geometry.BlocksFor(format.open, heads, most.sinks + tail) +
         geometry.BlocksFor(DistantFormat(format, run.role), heads, most.distant);
}

class GroupedDistantStore final : public LayerStore {
 public:
  GroupedDistantStore(const StoreContext& context, int layer, SequenceCache* cache,
                      absl::Span<const std::unique_ptr<LayerStore>> stores)
      : context_(context),
        options_(*context.plan->distant),
        format_(context.Format()),
        cache_(cache),
        table_(&cache->layer(layer)) {
    for (const LayerRun& of_layer : RunsOf(*context.plan, layer)) {
      Run& run = runs_.emplace_back(of_layer);
      if (run.role == RunRole::kAlone) run.list.emplace(table_, format_);
      if (run.role == RunRole::kFollows) {
        run.lowest = static_cast<const GroupedDistantStore*>(stores[run.lowest_layer].get());
      }
    }
  }

  size_t MaxBlocks() const override { return max_blocks_; }

  absl::Status Fill(const LayerMeasured& measured, LayerWrite* write) override {
    max_blocks_ = 0;
    for (size_t r = 0; r < runs_.size(); ++r) {
      Run& run = runs_[r];
      absl::Status status =
          run.list ? FillList(run, measured, write) : FillGroups(r, measured, write);
      if (!status.ok()) return status;
    }
    write->view = table_->view();
    return absl::OkStatus();
  }

  /// A token is in both windows until the next one takes its place.
  bool MayEditAhead() const override { return false; }
  absl::Status PrepareStep(int position, std::vector<CacheEdit>* edits) override {
    for (size_t r = 0; r < runs_.size(); ++r) {
      Run& run = runs_[r];
      absl::Status status = run.list ? run.list->Flush(edits) : MoveGroups(r, position, edits);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  void FinishEdits() override {
    for (Run& run : runs_) {
      if (run.list) {
        run.list->FinishFlush();
        continue;
      }
      Shrink(run.coded, &run.coded_left);
      Shrink(run.open, &run.open_left);
    }
  }

  absl::StatusOr<Placement> Append(int position) override {
    targets_.clear();
    for (Run& run : runs_) {
      TokenTarget& target = targets_.emplace_back();
      if (run.list) {
        if (absl::Status status = run.list->Append(&target); !status.ok()) return status;
        continue;
      }
      absl::StatusOr<int> slot = table_->AppendSlot(run.open);
      if (!slot.ok()) return slot.status();
      target = {run.open, *slot};
      if (position < options_.sinks) {
        ++run.sinks;  // the tail is still empty
      } else {
        run.window.push_back(position);
      }
    }
    return Placement{.targets = targets_};
  }

 private:
  struct Run : LayerRun {
    explicit Run(const LayerRun& run) : LayerRun(run) {}

    std::optional<TokenList> list;  ///< kAlone, which has nothing of what follows
    const GroupedDistantStore* lowest = nullptr;
    int coded = 0;
    int open = 0;
    int distant = 0;
    int sinks = 0;           ///< the first slots of the open segment
    std::deque<int> window;  ///< positions of the other near tokens: of the groups, then the tail
    std::deque<int> groups;  ///< first slots of the near groups, oldest first
    int coded_left = 0;      ///< slots at the end that are free once the edits are done
    int open_left = 0;
  };

  absl::Status FillList(Run& run, const LayerMeasured& measured, LayerWrite* write) {
    run.list->Open(run.heads.first, run.heads.count);
    max_blocks_ +=
        TokenList::MaxBlocks(*context_.geometry, format_, run.heads.count,
                             static_cast<size_t>(measured.kept_tokens) + context_.appended_tokens);
    return run.list->Fill(measured.kept_tokens, 0, &write->ranges);
  }

  absl::Status FillGroups(size_t index, const LayerMeasured& measured, LayerWrite* write) {
    Run& run = runs_[index];
    AddSegments(index);
    const int kept = measured.kept_tokens, group = format_.group();
    const KeptParts parts = PartsOfKept(context_, measured, run.heads);
    run.sinks = parts.sinks;
    const int distant = (parts.near_begin - run.sinks) / group * group;
    const int near_begin = run.sinks + distant;
    for (int i = near_begin; i < kept; ++i) {
      run.window.push_back(measured.PositionOf(run.heads.first, i, context_.prompt_tokens));
    }
    const int near = kept - near_begin;
    const int coded = format_.CodedTokens(near);
    for (int slot = 0; slot < coded; slot += group) run.groups.push_back(slot);
    max_blocks_ += BlocksOfRun(context_, format_, run, MostTokensOf(run, distant));

    const TokenRange ranges[] = {{run.distant, 0, run.sinks, distant},
                                 {run.coded, 0, near_begin, coded},
                                 {run.open, 0, 0, run.sinks},
                                 {run.open, run.sinks, near_begin + coded, near - coded}};
    for (const TokenRange& range : ranges) {
      if (range.count == 0) continue;
      if (absl::Status status = table_->Extend(range.segment, range.count); !status.ok()) {
        return status;
      }
      write->ranges.push_back(range);
    }
    return absl::OkStatus();
  }

  void AddSegments(size_t index) {
    Run& run = runs_[index];
    run.coded = table_->AddSegment(OptionsOf(run.heads, *format_.coded));
    run.open = table_->AddSegment(OptionsOf(run.heads, format_.open));
    const SegmentOptions distant = OptionsOf(run.heads, DistantFormat(format_, run.role));
    if (run.role == RunRole::kFollows) {
      run.distant = table_->AddValuesSegment(distant, cache_->layer(run.lowest_layer),
                                             run.lowest->runs_[index].distant);
    } else {
      run.distant = table_->AddSegment(distant);
    }
  }

  /// What the run may come to, with `distant` tokens of the prompt in its distant segment.
  MostTokens MostTokensOf(const Run& run, int distant) const {
    const int prompt = context_.prompt_tokens, appended = context_.appended_tokens;
    const int new_sinks = std::clamp(options_.sinks - prompt, 0, appended);
    const int leave = TokensToLeave(context_, run.window);
    const int group = format_.group();
    return {static_cast<size_t>(run.sinks + new_sinks),
            MostNear(context_, format_, run.window.size() + appended - new_sinks),
            static_cast<size_t>(distant + leave / group * group)};
  }

  /// What is due before the token at `position` is written: at most one group becomes distant, and
  /// one becomes codes, since each step adds one token to either.
  absl::Status MoveGroups(size_t index, int position, std::vector<CacheEdit>* edits) {
    Run& run = runs_[index];
    const int group = format_.group();
    int from_tail = 0;  // tokens that leave the tail
    int hole = -1;      // the near group that has left
    const int near = static_cast<int>(run.window.size());
    if (near >= group && run.window[group - 1] <= position - options_.recent) {
      if (run.role == RunRole::kFollows) {
        table_->RefreshKeys(run.distant, *run.lowest->table_, run.lowest->runs_[index].distant);
      }
      const int to = SlotsOf(run.distant);
      if (absl::Status status = table_->Extend(run.distant, group); !status.ok()) return status;
      if (run.groups.empty()) {
        Copy(run.open, run.sinks, group, run.distant, to, edits);
        from_tail = group;
      } else {
        hole = run.groups.front();
        run.groups.pop_front();
        Copy(run.coded, hole, group, run.distant, to, edits);
      }
      run.window.erase(run.window.begin(), run.window.begin() + group);
    }
    if (SlotsOf(run.open) - run.sinks - from_tail >= format_.residual + group) {
      const int to = hole >= 0 ? hole : SlotsOf(run.coded);
      if (hole < 0) {
        if (absl::Status status = table_->Extend(run.coded, group); !status.ok()) return status;
      }
      Copy(run.open, run.sinks + from_tail, group, run.coded, to, edits);
      run.groups.push_back(to);
      from_tail += group;
      hole = -1;
    }
    if (hole >= 0) FillHole(run, hole, edits);
    if (from_tail > 0) {
      const int first = run.sinks + from_tail;
      Copy(run.open, first, SlotsOf(run.open) - first, run.open, run.sinks, edits);
      run.open_left = from_tail;
    }
    return absl::OkStatus();
  }

  /// The last slots of the near codes are given up: what stands there moves to `hole`.
  void FillHole(Run& run, int hole, std::vector<CacheEdit>* edits) {
    const int group = format_.group(), last = SlotsOf(run.coded) - group;
    if (last != hole) {
      Copy(run.coded, last, group, run.coded, hole, edits);
      *std::find(run.groups.begin(), run.groups.end(), last) = hole;
    }
    run.coded_left = group;
  }

  void Copy(int from, int first, int count, int to, int first_slot,
            std::vector<CacheEdit>* edits) const {
    if (count == 0) return;
    edits->push_back(CopySlots(*table_, from, first, count, to, first_slot));
  }

  void Shrink(int segment, int* left) {
    if (*left == 0) return;
    table_->Truncate(segment, SlotsOf(segment) - *left);
    *left = 0;
  }

  int SlotsOf(int segment) const { return table_->view()[segment].num_slots; }

  const StoreContext& context_;
  const DistantOptions& options_;
  StoreFormat format_;
  SequenceCache* cache_;
  LayerBlockTable* table_;
  size_t max_blocks_ = 0;
  std::vector<Run> runs_;
  std::vector<TokenTarget> targets_;
};

}  // namespace

size_t MaxGroupedDistantBlocks(const StoreContext& context, int layer) {
  const CachePlan& plan = *context.plan;
  const StoreFormat format = context.Format();
  const size_t appended = context.appended_tokens, recent = plan.distant->recent;
  const size_t tokens = plan.layers[layer].prompt_tokens_kept + appended;
  const size_t sinks = std::min<size_t>(plan.distant->sinks, tokens);
  MostTokens most{sinks, MostNear(context, format, tokens - sinks),
                  tokens - sinks - std::min(tokens - sinks, recent)};
  if (plan.SelectsTokens()) {
    // Sinks and recent tokens of the prompt may all have been dropped.
    most.near = MostNear(context, format, tokens);
    most.distant = tokens - std::min(appended, recent);
  }
  most.distant -= most.distant % format.group();
  size_t blocks = 0;
  for (const LayerRun& run : RunsOf(plan, layer)) {
    blocks += run.role == RunRole::kAlone
                  ? TokenList::MaxBlocks(*context.geometry, format, run.heads.count, tokens)
                  : BlocksOfRun(context, format, run, most);
  }
  return blocks;
}

std::unique_ptr<LayerStore> MakeGroupedDistantStore(
    const StoreContext& context, int layer, SequenceCache* cache,
    absl::Span<const std::unique_ptr<LayerStore>> stores) {
  return std::make_unique<GroupedDistantStore>(context, layer, cache, stores);
}

}  // namespace ziggurat

// The layers of one sequence together: their stores, their part of the reservation, and the
// decisions that need all of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "block_manager/sequence_cache.h"
#include "compression/policy.h"
#include "model/model_runner.h"
#include "scheduler/reservation.h"
#include "scheduler/store/layer_store.h"

namespace ziggurat {

/// What is known of a layer beyond its segments.
struct LayerFacts {
  bool lazy = false;
  size_t kept_tokens = 0;        ///< of the prompt, per KV head
  double attention_recall = -1;  ///< negative: not measured
};

/// From admission to the end of a request. Engine thread only.
///
/// Every call keeps the reservation of each layer at what the layer may still take: its bound less
/// the blocks that it holds. Until a decision (DecideAt) only the sum of the bounds means anything.
class SequenceStore {
 public:
  /// Reserves the blocks of the plan. All three outlive the store, which gives back blocks and
  /// reservation when it is destroyed.
  SequenceStore(const BlockPlan& plan, BlockPool* pool, ReservationLedger* ledger);
  ~SequenceStore() { ledger_->Cancel(reservation_); }
  SequenceStore(const SequenceStore&) = delete;  // the stores refer to what is in it
  SequenceStore& operator=(const SequenceStore&) = delete;

  /// Lays out layer `layer` of the prompt. Layers come in order.
  absl::Status FillLayer(int layer, const LayerMeasured& measured, LayerWrite* write);
  void SetImportance(int layer, double value) { importance_[layer] = value; }

  /// Whether the policy is to decide now (DecideAt), the layers holding all tokens so far.
  bool IsUndecided() const { return undecided_; }
  /// Asks the policy, which planned this, and lays out every layer anew.
  ///   prompt  its stored scores select (DecideAt::kPrompt)
  absl::Status Decide(const Policy& policy, const PolicyContext& context, BatchPrompt prompt,
                      ModelRunner* model);

  /// Makes room for what must move before the token at `position` is written, and orders it. Where
  /// it fails the sequence can only be ended.
  absl::Status PrepareStep(int position, std::vector<CacheEdit>* edits);
  /// Whether edits may be carried out before it is known that the token comes that they make room
  /// for. If it does not, the layers hold the tokens that they would hold, in fewer blocks perhaps.
  bool MayEditAhead() const { return may_edit_ahead_; }
  /// After the edits have been carried out; not called where there were none.
  absl::Status FinishEdits();
  /// Places the token at `position` in every layer. The step's input, but for the token and the
  /// sequence's number; valid until the next call. Where it fails the sequence can only be ended.
  /// Looks at no layer in which the token goes one slot on from the last one, so that a step costs
  /// what changes.
  absl::StatusOr<DecodeInput> Append(int position);
  /// Does the next Append's work ahead, in the layers in which that will take a block: takes the
  /// block, which the reservation must have, and finds the place of the token, but does not count
  /// its slot yet. Comes after Append, where another token may follow; the places that Append
  /// returned are those of the next step then.
  /// True: there was such work, and all of it is done.
  bool PrepareAppend();
  /// Releases what PrepareAppend took, where no Append will follow.
  void Unprepare();
  int step() const { return step_; }
  /// The latest step in which any layer was looked at, or for which it was prepared.
  int changed_at() const { return changed_at_; }
  /// Lets the block tables count what Append left for later. Before anybody reads them but a step.
  void CatchUp();

  const LayerFacts& facts(int layer) const { return facts_[layer]; }
  const SequenceCache& cache() const { return cache_; }
  size_t reserved_blocks() const { return reservation_.total; }

  DistantCounts distant_counts;

 private:
  /// The steps before which layers must be asked for something. A step compares the earliest, and
  /// only where that has come walks through the layers, of which most have nothing to do.
  class DueSteps {
   public:
    explicit DueSteps(size_t layers) : of_layer_(layers) {}
    int of_layer(int layer) const { return of_layer_[layer]; }
    /// Whether any layer may be due in `step`, and whether this one is.
    bool AnyBy(int step) const { return earliest_ <= step; }
    bool IsBy(int layer, int step) const { return of_layer_[layer] <= step; }
    void Set(int layer, int step) {
      of_layer_[layer] = step;
      earliest_ = std::min(earliest_, step);
    }
    /// After those that were due have been set to later steps.
    void FindEarliest() { earliest_ = std::ranges::min(of_layer_); }

   private:
    std::vector<int> of_layer_;
    int earliest_ = 0;  ///< no layer is due before
  };

  struct LayerState {
    size_t bound = 0;         ///< most blocks that it may own from now on
    size_t owned = 0;         ///< those that it owns
    int append_segment = -1;  ///< LayerStore::AppendSegment
    int counted_step = 0;     ///< up to which its table counts the slots
  };

  /// Tokens behind the prompt that a decision lays out with it.
  int GeneratedAtDecision() const { return plan_->decide == DecideAt::kFirstToken ? 1 : 0; }
  absl::Status LayOutAgain(int layer, const LayerPlan& plan, int tokens, BatchPrompt prompt,
                           ModelRunner* model);
  /// Asks the layer's store, which has just been filled, how it takes tokens from now on.
  void NoteStore(int layer);
  /// Asks it when its next edit is due, once the coming step has been prepared.
  void NoteEdits(int layer);
  DecodeInput InputAt(int position);
  absl::Status AppendToLayer(int layer, int position);
  bool PrepareLayer(int layer);
  /// Asks memory for what the layers to come need while this one is worked on.
  void PrefetchAfter(int layer) const;
  void CatchUpLayer(int layer, int step);
  /// Once it is known what the layer keeps: the most that it may own from now on, which is no more
  /// than was promised, or INTERNAL.
  absl::Status LowerBound(int layer);
  /// The same of all layers together, which have just been laid out anew.
  absl::Status ShareBounds();
  /// Sets the reservation of the layer to `bound` less what it holds.
  absl::Status Settle(int layer);

  const CachePlan* plan_;
  CachePlan decided_plan_;  ///< after the decision
  StoreContext context_;
  ReservationLedger* ledger_;
  Reservation reservation_;
  SequenceCache cache_;

  // One of each layer.
  std::vector<std::unique_ptr<LayerStore>> stores_;
  std::vector<LayerState> layers_;
  DueSteps edit_due_;                       ///< PrepareStep
  DueSteps append_due_;                     ///< Append
  std::vector<TokenTarget> targets_;        ///< of layers that have an append_segment
  std::vector<DecodeInput::Layer> places_;  ///< DecodeInput::layers; they name targets_
  std::vector<LayerFacts> facts_;
  std::vector<double> importance_;

  int step_ = 0;  ///< calls of Append
  int changed_at_ = 0;
  bool undecided_;
  bool may_edit_ahead_ = true;  ///< in every layer
};

}  // namespace ziggurat

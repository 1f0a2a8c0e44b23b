// How one layer of one sequence is laid out in segments, and how that changes as tokens come.
//
// Policies say which tokens stay and in which encoding (compression/cache_plan.h); a store knows
// what segments that takes, where every token goes, and which copies are due before a step. It
// touches no memory but the block table: what is to be written or copied is ordered from the model
// runner. Each kind is one file.
#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "block_manager/sequence_cache.h"
#include "compression/cache_plan.h"
#include "model/model_runner.h"
#include "scheduler/block_plan.h"
#include "scheduler/store/store_format.h"

namespace ziggurat {

/// What the stores of one sequence share. Outlives them.
struct StoreContext {
  const CachePlan* plan = nullptr;
  const CacheGeometry* geometry = nullptr;
  ElementType element = ElementType::kBf16;
  int prompt_tokens = 0;
  int appended_tokens = 0;  ///< most tokens that come after the prompt

  /// How the plan stores tokens; with `merged` those of pairs.
  StoreFormat Format(bool merged = false) const {
    return MakeStoreFormat(element, plan->quantization, merged);
  }
};
/// `plan` outlives it.
inline StoreContext StoreContextOf(const BlockPlan& plan) {
  return {&plan.plan, plan.geometry, plan.element, plan.limits.prompt_tokens,
          static_cast<int>(plan.limits.appended_tokens())};
}

/// Where a token goes.
struct Placement {
  absl::Span<const TokenTarget> targets;  ///< valid until the next token is placed
  int score_recent = 0;                   ///< DecodeItem::score_recent
  bool is_final = false;  ///< every token to come goes to the one target, and nothing changes
};

/// One layer's store, which its SequenceStore alone calls, on the engine's thread:
///
///   SequenceStore     calls
///   FillLayer         Fill; then MaxBlocks, AppendSegment, TokensBeforeEdit, MayEditAhead (of an
///                     upper layer of a pair also of the lower one)
///   Decide            the same, over a layer that holds all tokens already
///   PrepareStep       PrepareStep and TokensBeforeEdit, of layers that this does not excuse
///   FinishEdits       where that ordered edits, which are done now: FinishEdits of all layers,
///                     then TokensBeforeEdit
///   Append            Append of layers without an AppendSegment
///
/// Layers come in order, so that one may rely on what those below it have just done.
///
/// What happens there differs:
///
///   kind              before a step                     the token goes
///   growing           groups become codes               to the end of AppendSegment
///   ring              nothing                           round the ring of AppendSegment
///   ring of groups    a group becomes codes, over the   to the end of AppendSegment; first sinks
///                     oldest one                        (Append)
///   scored            nothing                           to a new slot, then always to that of the
///                                                       lowest score (Append)
///   pair              a full tail is merged, by the     to the end of AppendSegment, the tail
///                     upper layer
///   distant           a token, or a group, leaves the   to a slot of each run of heads (Append)
///                     near window
///
/// RESOURCE_EXHAUSTED from the pool is a broken bound: `MaxBlocks` was wrong.
class LayerStore {
 public:
  virtual ~LayerStore() = default;

  // ---- Once, with the prompt --------------------------------------------------------------------

  /// Makes room for the tokens of the prompt that stay and says where each goes. The lower layer of
  /// a pair waits: its write's view stays empty, and the upper one does it for both.
  virtual absl::Status Fill(const LayerMeasured& measured, LayerWrite* write) = 0;
  /// Most blocks that the layer may take from the pool from Fill on, for the tokens that Fill was
  /// told of.
  virtual size_t MaxBlocks() const = 0;

  // ---- Before a step ----------------------------------------------------------------------------

  static constexpr int kNever = std::numeric_limits<int>::max();
  /// At least so many tokens may come, from the next one on, before PrepareStep has anything to do:
  /// for these it need not be called. The last answer holds.
  virtual int TokensBeforeEdit() const { return 0; }
  /// Room for, and order of, what must move before the token at `position` is written.
  virtual absl::Status PrepareStep(int /*position*/, std::vector<CacheEdit>* /*edits*/) {
    return absl::OkStatus();
  }
  /// After the edits of a step have been carried out.
  virtual void FinishEdits() {}
  /// Whether that may be done before it is known that the token comes: the layer holds the same
  /// tokens afterwards.
  virtual bool MayEditAhead() const { return true; }

  // ---- The token --------------------------------------------------------------------------------

  /// The segment to whose end, or round whose ring, every token goes, which is then all that Append
  /// would do; negative: there is more to it. So a step need not ask a layer in which nothing
  /// happens (docs/architecture.md, "A token in a layer").
  virtual int AppendSegment() const { return -1; }
  /// Where the token at `position` goes. Not asked while AppendSegment names the place.
  virtual absl::StatusOr<Placement> Append(int /*position*/) {
    return absl::InternalError("a layer whose tokens go to the end of a segment was asked where");
  }
};

/// Most blocks that each layer can take, before anything has been measured. Where the policy
/// decides when the layers hold all tokens, it is not known which layer will take how many: there
/// the sum is what all can take together.
std::vector<size_t> MaxLayerBlocks(const StoreContext& context);

/// A lazy layer keeps the ring of its test, whatever its edit says. `stores` are those of the
/// layers below, of the same sequence, which the new one may refer to.
std::unique_ptr<LayerStore> MakeLayerStore(const StoreContext& context, int layer, bool lazy,
                                           SequenceCache* cache,
                                           absl::Span<const std::unique_ptr<LayerStore>> stores);

// ---- The kinds ---------------------------------------------------------------------------------

/// Tokens are appended for ever. MaxGrowingBlocks: as the plan stores them.
size_t MaxGrowingBlocks(const StoreContext& context, size_t tokens);
std::unique_ptr<LayerStore> MakeGrowingStore(const StoreContext& context, const StoreFormat& format,
                                             LayerBlockTable* table);
/// Without quantization, over segment `segment`, which holds the kept tokens already.
std::unique_ptr<LayerStore> AdoptGrowingStore(const StoreContext& context, LayerBlockTable* table,
                                              int segment);

/// The first `sinks` tokens and the last `recent`. Grouped codes: recent to recent + group - 1.
size_t MaxRingBlocks(const StoreContext& context, const KeepRing& ring);
std::unique_ptr<LayerStore> MakeRingStore(const StoreContext& context, const KeepRing& ring,
                                          LayerBlockTable* table);
std::unique_ptr<LayerStore> AdoptRingStore(const StoreContext& context, const KeepRing& ring,
                                           LayerBlockTable* table, int segment);

/// H2O: heavy + recent + 1 slots with scores.
size_t MaxScoredBlocks(const StoreContext& context, const KeepHeavy& edit);
std::unique_ptr<LayerStore> MakeScoredStore(const StoreContext& context, const KeepHeavy& edit,
                                            LayerBlockTable* table);

/// MiniCache: the two layers of a pair. `prompt_retained`: the tokens of the prompt that stay
/// unmerged, once that is known.
size_t MaxMergedBlocks(const StoreContext& context, MergeRole role,
                       std::optional<int> prompt_retained = std::nullopt);
std::unique_ptr<LayerStore> MakeLowerStore(const StoreContext& context, LayerBlockTable* table);
std::unique_ptr<LayerStore> MakeUpperStore(const StoreContext& context, LayerBlockTable* table,
                                           LayerStore* lower);

/// PoD: near tokens with keys, distant ones with keys in the lowest layer of the group alone.
size_t MaxDistantBlocks(const StoreContext& context, int layer);
std::unique_ptr<LayerStore> MakeDistantStore(const StoreContext& context, int layer,
                                             SequenceCache* cache,
                                             absl::Span<const std::unique_ptr<LayerStore>> stores);

}  // namespace ziggurat

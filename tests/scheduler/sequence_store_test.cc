// The layers of one sequence, step by step.

#include "scheduler/sequence_store.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "block_manager/block_pool.h"
#include "compression/registry.h"
#include "scheduler/block_plan.h"
#include "scheduler/null_model.h"

namespace ziggurat {
namespace {

constexpr int kLayers = 3;
constexpr int kPrompt = 10;

/// A sequence under a policy, in a pool of `blocks` blocks.
class SmallSequence {
 public:
  /// Of the prompt layer l keeps `kept_less` l tokens less; `measure` says what else is measured.
  explicit SmallSequence(size_t blocks, const char* policy_text = "full", int new_tokens = 50,
                         int prompt = kPrompt, int kept_less = 0,
                         const std::function<void(int layer, LayerMeasured*)>& measure = {})
      : ledger_(kLayers) {
    pool_ = *BlockPool::Create(blocks, geometry_.block_bytes);
    shape_.num_layers = kLayers;
    shape_.num_q_heads = shape_.num_kv_heads = geometry_.num_kv_heads;
    shape_.head_dim = geometry_.head_dim;
    shape_.max_context_tokens = prompt + new_tokens;
    policy_ = *ParsePolicy(policy_text, {});
    plan_ = *PlanBlocks(*policy_, shape_, geometry_, {prompt, new_tokens});
    store_.emplace(plan_, pool_.get(), &ledger_);
    for (int layer = 0; layer < kLayers; ++layer) {
      LayerMeasured measured;
      measured.kept_tokens = measured.first_tokens = prompt - kept_less * layer;
      if (measure) measure(layer, &measured);
      LayerWrite write;
      EXPECT_TRUE(store_->FillLayer(layer, measured, &write).ok());
    }
  }

  /// As the engine does it, where no edits are due.
  absl::StatusOr<DecodeInput> Step(int position) {
    std::vector<CacheEdit> edits;
    EXPECT_TRUE(store_->PrepareStep(position, &edits).ok());
    EXPECT_TRUE(edits.empty());
    return store_->Append(position);
  }
  /// As the engine does it after the first token.
  absl::Status Decide() {
    NullModel model(shape_);
    return store_->Decide(*policy_, PolicyContextOf(shape_), {}, &model);
  }
  SequenceStore& store() { return *store_; }
  void Release() { store_.reset(); }
  const SequenceCache& cache() const { return store_->cache(); }
  BlockPool& pool() { return *pool_; }

 private:
  const CacheGeometry geometry_ = {kLayers, 1, 32, CacheGeometry::DefaultBlockBytes(1, 32)};
  std::unique_ptr<BlockPool> pool_;
  ModelShape shape_;
  std::shared_ptr<const Policy> policy_;
  BlockPlan plan_;
  ReservationLedger ledger_;
  std::optional<SequenceStore> store_;
};

TEST(SequenceStore, TablesCountATokenWhenTheyAreAskedTo) {
  SmallSequence sequence(100);
  for (int token = kPrompt; token < 45; ++token) {
    const auto input = sequence.store().Append(token);
    ASSERT_TRUE(input.ok()) << input.status();
    for (const DecodeInput::Layer& place : input->layers) {
      const int steps = input->StepsSince(place);
      EXPECT_EQ(place.targets[0].slot + steps, token);
      // A block has 16 slots: it is looked at when the first of them is taken, and at the start.
      EXPECT_EQ(steps, token < 16 ? token - kPrompt : token % 16);
    }
    if (token != 40) continue;
    sequence.store().CatchUp();
    for (int layer = 0; layer < kLayers; ++layer) {
      EXPECT_EQ(sequence.cache().layer(layer).view()[0].num_slots, token + 1);
    }
    EXPECT_TRUE(sequence.cache().CheckIntegrity().ok());
    for (const DecodeInput::Layer& place : input->layers) {
      EXPECT_EQ(place.as_of, sequence.store().step());
      EXPECT_EQ(place.targets[0].slot, token);
      EXPECT_EQ(place.view[0].num_slots, token + 1);
    }
    break;  // the steps counted above no longer hold
  }
}

TEST(SequenceStore, AnAppendThatFindsNoBlockLeavesTablesThatAgree) {
  SmallSequence sequence(kLayers + 1);  // one block a layer, and one more
  for (int token = kPrompt; token < 16; ++token) {
    ASSERT_TRUE(sequence.store().Append(token).ok());
  }
  EXPECT_EQ(sequence.store().Append(16).status().code(), absl::StatusCode::kResourceExhausted);
  sequence.store().CatchUp();
  for (int layer = 0; layer < kLayers; ++layer) {
    EXPECT_EQ(sequence.cache().layer(layer).view()[0].num_slots, layer == 0 ? 17 : 16);
  }
  EXPECT_TRUE(sequence.cache().CheckIntegrity().ok());
  sequence.Release();
  EXPECT_EQ(sequence.pool().used_blocks(), 0u);
}

TEST(SequenceStore, APreparedTokenIsPlacedAsAnAppendedOneIsAndCountsWhenItComes) {
  SmallSequence prepared(100), appended(100);
  int times = 0;
  for (int token = kPrompt; token < 45; ++token) {
    const auto places = prepared.Step(token);
    const auto expected = appended.Step(token);
    ASSERT_TRUE(places.ok() && expected.ok());
    EXPECT_EQ(prepared.store().changed_at(), appended.store().changed_at());
    for (int layer = 0; layer < kLayers; ++layer) {
      EXPECT_EQ(places->layers[layer].as_of, expected->layers[layer].as_of) << token;
      EXPECT_EQ(places->layers[layer].targets[0].slot, expected->layers[layer].targets[0].slot)
          << token;
    }
    const size_t blocks = prepared.cache().blocks();
    EXPECT_EQ(prepared.store().PrepareAppend(), token % 16 == 15) << token;
    times += token % 16 == 15;
    EXPECT_EQ(prepared.cache().blocks(), blocks + (token % 16 == 15 ? kLayers : 0));
    if (token % 3 != 0) continue;
    // Somebody looks on, at what has come so far.
    prepared.store().CatchUp();
    appended.store().CatchUp();
    EXPECT_EQ(prepared.cache().layer(0).view()[0].num_slots, token + 1);
    EXPECT_TRUE(prepared.cache().CheckIntegrity().ok());
  }
  EXPECT_EQ(times, 2);
}

TEST(SequenceStore, WhatWasPreparedGoesBackAndIsTakenAgain) {
  SmallSequence sequence(100);
  for (int token = kPrompt; token < 16; ++token) {
    ASSERT_TRUE(sequence.Step(token).ok());
  }
  for (int twice = 0; twice < 2; ++twice) {
    EXPECT_TRUE(sequence.store().PrepareAppend());
    EXPECT_EQ(sequence.cache().blocks(), size_t{2} * kLayers);
    sequence.store().CatchUp();
    sequence.store().Unprepare();
    EXPECT_EQ(sequence.cache().blocks(), size_t{kLayers});
    EXPECT_EQ(sequence.cache().layer(0).view()[0].num_slots, 16);
    EXPECT_TRUE(sequence.cache().CheckIntegrity().ok());
  }
  const auto places = sequence.Step(16);
  ASSERT_TRUE(places.ok()) << places.status();
  EXPECT_EQ(places->layers[kLayers - 1].targets[0].slot, 16);
  sequence.store().CatchUp();
  EXPECT_EQ(sequence.cache().layer(0).view()[0].num_slots, 17);
}

TEST(SequenceStore, NothingIsPreparedBeforeAnEditNorWithoutBlocks) {
  SmallSequence kivi(100, "kivi(group=32,residual=32)");
  for (int token = kPrompt; token < 64; ++token) {
    ASSERT_TRUE(kivi.Step(token).ok());
    EXPECT_EQ(kivi.store().PrepareAppend(), token == 15 || token == 31 || token == 47) << token;
  }
  SmallSequence tight(kLayers + 1);
  for (int token = kPrompt; token < 16; ++token) {
    ASSERT_TRUE(tight.Step(token).ok());
  }
  EXPECT_FALSE(tight.store().PrepareAppend());
  EXPECT_EQ(tight.Step(16).status().code(), absl::StatusCode::kResourceExhausted);
  tight.store().CatchUp();
  tight.store().Unprepare();
  EXPECT_TRUE(tight.cache().CheckIntegrity().ok());
  EXPECT_EQ(tight.cache().blocks(), size_t{kLayers});
}

TEST(SequenceStore, ALayerWhoseBoundBreaksEndsTheSequenceAndNothingElse) {
  SmallSequence sequence(100);
  absl::Status status;
  int token = kPrompt;
  for (; status.ok() && token < 200; ++token) {
    status = sequence.store().Append(token).status();
    if (status.ok()) sequence.store().PrepareAppend();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << token;
  sequence.store().CatchUp();  // as the engine reports what it held
  sequence.store().Unprepare();
  EXPECT_TRUE(sequence.cache().CheckIntegrity().ok());
  sequence.Release();
  EXPECT_EQ(sequence.pool().used_blocks(), 0u);
}

TEST(SequenceStore, EditsAreNotMadeAheadWhereAnyLayerWouldLoseATokenByThem) {
  constexpr int kLongPrompt = 60;
  const char* const policy = "simlayerkv(sinks=2,recent=30)+kivi(group=8,residual=8)";
  const auto filled = [&](int lazy_layer) {
    return std::make_unique<SmallSequence>(1000, policy, 50, kLongPrompt, 0,
                                           [&](int layer, LayerMeasured* measured) {
                                             measured->lazy = layer == lazy_layer;
                                             if (measured->lazy)
                                               measured->KeepFirstAndLast(2, 30, kLongPrompt);
                                           });
  };
  EXPECT_TRUE(filled(-1)->store().MayEditAhead()) << "whole tokens become codes";
  for (int layer = 0; layer < kLayers; ++layer) {
    EXPECT_FALSE(filled(layer)->store().MayEditAhead()) << layer << ": groups are overwritten";
  }
}

TEST(SequenceStore, RecallIsNotMeasuredOfWhatIsDecidedLater) {
  constexpr int kLongPrompt = 60;
  SmallSequence sequence(1000, "simlayerkv(threshold=0.5,sinks=2,recent=30,decide=decode)", 50,
                         kLongPrompt, 0, [](int /*layer*/, LayerMeasured* measured) {
                           measured->attention_recall = 1;
                           measured->distant = {.attended = 3, .skipped = 2};
                         });
  SequenceStore& store = sequence.store();
  EXPECT_EQ(store.distant_counts.attended, 3u * kLayers);
  EXPECT_EQ(store.distant_counts.skipped, 2u * kLayers);
  ASSERT_TRUE(store.IsUndecided());
  const auto input = store.Append(kLongPrompt);
  ASSERT_EQ(input.status(), absl::OkStatus());
  for (int layer = 0; layer < kLayers; ++layer) input->lazy_mass[layer] = layer == 1 ? 1 : 0;
  ASSERT_EQ(sequence.Decide(), absl::OkStatus());
  for (int layer = 0; layer < kLayers; ++layer) {
    const LayerFacts& facts = store.facts(layer);
    EXPECT_EQ(facts.lazy, layer == 1) << layer;
    EXPECT_EQ(facts.kept_tokens, layer == 1 ? 31u : 60u) << layer;
    EXPECT_EQ(facts.attention_recall, layer == 1 ? -1 : 1) << layer;
  }
}

TEST(SequenceStore, NothingIsPreparedWhileThePolicyHasNotDecided) {
  // The token behind the first one needs a block, of layers that are laid out anew until then.
  SmallSequence sequence(100, "simlayerkv(threshold=0.5,sinks=2,recent=8,decide=decode)", 50, 15);
  SequenceStore& store = sequence.store();
  ASSERT_EQ(sequence.Step(15).status(), absl::OkStatus());
  EXPECT_FALSE(store.PrepareAppend());
  EXPECT_EQ(sequence.cache().blocks(), size_t{kLayers});
  EXPECT_EQ(store.changed_at(), store.step());
  ASSERT_EQ(sequence.Decide(), absl::OkStatus());
  EXPECT_TRUE(store.PrepareAppend());
  EXPECT_EQ(sequence.cache().blocks(), size_t{2} * kLayers);
}

TEST(SequenceStore, OfWhatAPairHasMergedWholeGroupsAreCodesAtOnce) {
  // Residual tokens are the tail's.
  const SmallSequence sequence(1000,
                               "minicache(start=1,retain=0.4,tail=20)+kivi(group=32,residual=32)",
                               50, 100, 0, [](int layer, LayerMeasured* measured) {
                                 if (layer == 2) measured->retained_tokens = 40;
                               });
  for (const int layer : {1, 2}) {
    std::vector<int> slots;
    for (const SegmentView& segment : sequence.cache().layer(layer).view()) {
      slots.push_back(segment.num_slots);
    }
    EXPECT_EQ(slots, std::vector<int>({32, 60 - 32, 32, 40 - 32, 0})) << "layer " << layer;
  }
}

struct Looks {
  int count = 0;           ///< steps in which any layer was looked at
  std::vector<int> edits;  ///< steps before which something was moved
  size_t blocks = 0;       ///< at the end
};

struct LooksCase {
  const char* policy;
  int snapshot_every = 1000;  ///< somebody looks on
  bool prepares = false;      ///< every step, while a device computes the one before
  int prompt = kPrompt;
  int kept_less = 0;  ///< as SmallSequence takes it
};

/// 200 steps; edits are ordered, and taken for done.
Looks LooksOf(const LooksCase& of) {
  constexpr int kSteps = 200;
  SmallSequence sequence(1000, of.policy, kSteps + 1, of.prompt, of.kept_less);
  SequenceStore& store = sequence.store();
  Looks looks;
  for (int step = 1; step <= kSteps; ++step) {
    std::vector<CacheEdit> edits;
    const int position = of.prompt + step - 1;
    EXPECT_EQ(store.PrepareStep(position, &edits), absl::OkStatus());
    if (!edits.empty()) {
      looks.edits.push_back(step);
      EXPECT_EQ(store.FinishEdits(), absl::OkStatus());
    }
    EXPECT_EQ(store.Append(position).status(), absl::OkStatus()) << of.policy << ", " << step;
    const bool was_looked_at = store.changed_at() == step;
    EXPECT_TRUE(edits.empty() || was_looked_at) << "of what was moved nobody is told";
    looks.count += was_looked_at;
    if (of.prepares) store.PrepareAppend();
    if (step % of.snapshot_every == 0) {
      store.CatchUp();
      EXPECT_EQ(sequence.cache().CheckIntegrity(), absl::OkStatus());
    }
  }
  store.CatchUp();
  store.Unprepare();
  looks.blocks = sequence.cache().blocks();
  return looks;
}

TEST(SequenceStore, ARingOfCodesKeepsToItsBoundWhereItsTailFillsABlock) {
  // One token stays open and groups are of 16: the tail has at most 16, which are a block.
  for (const int prompt : {2, 3, 18, 19}) {
    for (const bool prepares : {false, true}) {
      const Looks looks =
          LooksOf({.policy = "streaming(sinks=2,recent=17)+kivi(group=16,residual=1)",
                   .prepares = prepares,
                   .prompt = prompt});
      EXPECT_GE(looks.edits.size(), 11u) << prompt << ": a group of 16 in 200 steps";
    }
  }
}

TEST(SequenceStore, LooksAtLayersOnlyWhenABlockIsTakenOrSomethingMoves) {
  // Blocks of 16 slots of bf16, begun by the prompt's 10 tokens.
  EXPECT_EQ(LooksOf({"full"}).count, 1 + 194 / 16 + 1);
  // The first 32 of 64 open tokens become codes: before tokens 64, 96, ...
  const Looks kivi = LooksOf({"kivi(group=32,residual=32)"});
  EXPECT_EQ(kivi.edits, std::vector<int>({55, 87, 119, 151, 183}));
  // Besides, blocks begin at slots 16, 32 and 48, and then at 48 of every 32 to 63.
  EXPECT_EQ(kivi.count, 1 + 3 + 5 + 5);
  // Twenty generated tokens are merged before the next one.
  const Looks minicache = LooksOf({"minicache(start=1,tail=20)"});
  EXPECT_EQ(minicache.edits, std::vector<int>({21, 41, 61, 81, 101, 121, 141, 161, 181}));
  // Once all slots are taken each token overwrites one, which the device chooses.
  EXPECT_EQ(LooksOf({"h2o(heavy=20,recent=20)"}).count, 20 + 20 + 1 - kPrompt + 1);
  for (const char* policy :
       {"full", "kivi(group=32,residual=32)", "minicache(start=1,tail=20)",
        "streaming(sinks=4,recent=28)+kivi(group=16,residual=4)", "h2o(heavy=20,recent=20)"}) {
    const Looks alone = LooksOf({policy}), watched = LooksOf({policy, 7});
    EXPECT_EQ(watched.edits, alone.edits) << policy;
    EXPECT_LT(alone.count, 60) << policy;
  }
}

// Layers that take blocks and are edited in different steps.
TEST(SequenceStore, StepsThatArePreparedEditWhenOthersDo) {
  for (const char* policy : {"full", "kivi(group=32,residual=32)", "kivi(group=32,residual=0)"}) {
    for (const int kept_less : {0, 1, 5, 15}) {
      for (const int prompt : {70, 77, 100}) {
        LooksCase of{policy, 1000, false, prompt, kept_less};
        const Looks appended = LooksOf(of);
        of.prepares = true;
        const Looks prepared = LooksOf(of);
        EXPECT_EQ(prepared.edits, appended.edits) << policy << ", " << prompt << ", " << kept_less;
        EXPECT_EQ(prepared.blocks, appended.blocks) << policy << ", " << prompt;
      }
    }
  }
}

}  // namespace
}  // namespace ziggurat

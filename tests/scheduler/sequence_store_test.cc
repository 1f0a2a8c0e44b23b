// The layers of one sequence, step by step.

#include "scheduler/sequence_store.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "block_manager/block_pool.h"
#include "compression/registry.h"
#include "scheduler/sequence.h"

namespace ziggurat {
namespace {

constexpr int kLayers = 3;
constexpr int kPrompt = 10;

/// A sequence under a policy, in a pool of `blocks` blocks.
class SmallSequence {
 public:
  explicit SmallSequence(size_t blocks, const char* policy_text = "full", int new_tokens = 50)
      : ledger_(kLayers) {
    pool_ = *BlockPool::Create(blocks, geometry_.block_bytes);
    cache_.emplace(pool_.get(), &geometry_);
    ModelShape shape;
    shape.num_layers = kLayers;
    shape.num_q_heads = shape.num_kv_heads = geometry_.num_kv_heads;
    shape.head_dim = geometry_.head_dim;
    shape.max_context_tokens = kPrompt + new_tokens;
    const auto policy = *ParsePolicy(policy_text, {});
    plan_ = *PlanBlocks(*policy, shape, geometry_, kPrompt, new_tokens);
    reservation_ = ledger_.Reserve(plan_.layer_blocks);
    store_.emplace(plan_.plan, geometry_, ElementType::kBf16, kPrompt, new_tokens - 1, &*cache_,
                   &reservation_, &ledger_);
    LayerMeasured measured;
    measured.kept_tokens = measured.first_tokens = kPrompt;
    for (int layer = 0; layer < kLayers; ++layer) {
      LayerWrite write;
      EXPECT_TRUE(store_->FillLayer(layer, measured, &write).ok());
    }
  }

  SequenceStore& store() { return *store_; }
  SequenceCache& cache() { return *cache_; }
  BlockPool& pool() { return *pool_; }

 private:
  const CacheGeometry geometry_ = {kLayers, 1, 32, CacheGeometry::DefaultBlockBytes(1, 32)};
  std::unique_ptr<BlockPool> pool_;
  std::optional<SequenceCache> cache_;
  BlockPlan plan_;
  ReservationLedger ledger_;
  Reservation reservation_;
  std::optional<SequenceStore> store_;
};

TEST(SequenceStore, TablesCountATokenWhenTheyAreAskedTo) {
  SmallSequence sequence(100);
  for (int token = kPrompt; token < 45; ++token) {
    const auto places = sequence.store().Append(token);
    ASSERT_TRUE(places.ok()) << places.status();
    for (const DecodeInput::Layer& place : *places) {
      const int steps = sequence.store().step() - place.as_of;
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
    for (const DecodeInput::Layer& place : *places) {
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
  sequence.cache().Clear();
  EXPECT_EQ(sequence.pool().used_blocks(), 0u);
}

/// Steps of 200 in which a layer was looked at; edits are ordered, and taken for done.
int StepsLookedAt(const char* policy) {
  constexpr int kSteps = 200;
  SmallSequence sequence(1000, policy, kSteps + 1);
  int looked_at = 0;
  for (int i = 0; i < kSteps; ++i) {
    std::vector<CacheEdit> edits;
    EXPECT_TRUE(sequence.store().PrepareStep(kPrompt + i, &edits).ok());
    EXPECT_TRUE(edits.empty() || sequence.store().FinishEdits().ok());
    EXPECT_TRUE(sequence.store().Append(kPrompt + i).ok());
    looked_at += sequence.store().changed() == sequence.store().step();
    EXPECT_TRUE(edits.empty() || sequence.store().changed() == sequence.store().step())
        << "what was edited was not looked at";
  }
  sequence.cache().Clear();
  return looked_at;
}

TEST(SequenceStore, LooksAtLayersOnlyWhenABlockIsTakenOrSomethingMoves) {
  // Blocks of 16 slots of bf16, begun by the prompt's 10 tokens.
  EXPECT_EQ(StepsLookedAt("full"), 1 + 194 / 16 + 1);
  // 32 to 63 open tokens: every 32 tokens 32 become codes, and every 16 a block is taken.
  EXPECT_LE(StepsLookedAt("kivi(group=32,residual=32)"), 1 + 200 / 16 + 200 / 32 + 2);
  EXPECT_LE(StepsLookedAt("minicache(start=1,tail=20)"), 1 + 200 / 20 * 3 + 200 / 16 + 1);
  // Once all slots are taken each token overwrites one, which the device chooses.
  EXPECT_EQ(StepsLookedAt("h2o(heavy=20,recent=20)"), 20 + 20 + 1 - kPrompt + 1);
  EXPECT_LE(StepsLookedAt("streaming(sinks=4,recent=28)+kivi(group=16,residual=4)"),
            1 + 200 / 16 * 3);
}

}  // namespace
}  // namespace ziggurat

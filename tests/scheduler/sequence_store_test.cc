// The layers of one sequence, step by step.

#include "scheduler/sequence_store.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "block_manager/block_pool.h"
#include "compression/registry.h"
#include "scheduler/sequence.h"

namespace ziggurat {
namespace {

constexpr int kLayers = 3;
constexpr int kPrompt = 10;

/// A sequence that keeps everything, in a pool of `blocks` blocks.
class FullSequence {
 public:
  explicit FullSequence(size_t blocks) : ledger_(kLayers) {
    pool_ = *BlockPool::Create(blocks, geometry_.block_bytes);
    cache_.emplace(pool_.get(), &geometry_);
    ModelShape shape;
    shape.num_layers = kLayers;
    shape.num_q_heads = shape.num_kv_heads = geometry_.num_kv_heads;
    shape.head_dim = geometry_.head_dim;
    shape.max_context_tokens = 100;
    const auto policy = *ParsePolicy("full", {});
    plan_ = *PlanBlocks(*policy, shape, geometry_, kPrompt, 50);
    reservation_ = ledger_.Reserve(plan_.layer_blocks);
    store_.emplace(plan_.plan, geometry_, ElementType::kBf16, kPrompt, 49, &*cache_, &reservation_,
                   &ledger_);
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
  FullSequence sequence(100);
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
  FullSequence sequence(kLayers + 1);  // one block a layer, and one more
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

}  // namespace
}  // namespace ziggurat

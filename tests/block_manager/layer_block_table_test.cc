#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <set>

#include "block_manager/occupancy.h"
#include "block_manager/sequence_cache.h"

namespace ziggurat {
namespace {

constexpr int kKvHeads = 4;
constexpr int kHeadDim = 32;
constexpr size_t kBlockBytes = 64 * kKvHeads * kHeadDim;  // 16 tokens of bf16 K and V

class LayerBlockTableTest : public ::testing::Test {
 protected:
  void MakePool(size_t blocks) {
    pool_ = *BlockPool::Create(blocks, kBlockBytes);
    ASSERT_TRUE(geometry_.Validate().ok());
  }
  void SetUp() override { MakePool(64); }

  LayerBlockTable MakeTable() { return LayerBlockTable(pool_.get(), &geometry_); }

  std::vector<int> Append(LayerBlockTable& table, int segment, int tokens) {
    std::vector<int> slots;
    for (int i = 0; i < tokens; ++i) {
      const absl::StatusOr<int> slot = table.AppendSlot(segment);
      EXPECT_TRUE(slot.ok()) << slot.status();
      slots.push_back(slot.value_or(-1));
    }
    return slots;
  }

  // The blocks of a plane in slot order, as a kernel sees them.
  static std::vector<BlockId> Blocks(const PlaneView& plane, int num_slots) {
    const int per_block = static_cast<int>(plane.slots_per_block);
    return {plane.blocks, plane.blocks + (num_slots + per_block - 1) / per_block};
  }

  CacheGeometry geometry_{2, kKvHeads, kHeadDim, kBlockBytes};
  std::unique_ptr<BlockPool> pool_;
};

TEST_F(LayerBlockTableTest, ExtendTakesExactlyTheBlocksThatTheSlotsNeed) {
  for (const int tokens : {0, 1, 15, 16, 17, 512, 513}) {
    LayerBlockTable table = MakeTable();
    const int segment = table.AddSegment({.format = CacheFormat::kBf16});
    ASSERT_TRUE(table.Extend(segment, tokens).ok());
    EXPECT_EQ(pool_->used_blocks(), static_cast<size_t>((tokens + 15) / 16)) << tokens;
    EXPECT_EQ(table.blocks(), pool_->used_blocks());
    EXPECT_EQ(table.view()[0].num_slots, tokens);
    EXPECT_TRUE(table.CheckIntegrity().ok()) << table.CheckIntegrity();
  }
  EXPECT_EQ(pool_->used_blocks(), 0u);
}

TEST_F(LayerBlockTableTest, ViewPlacesEachHeadContiguousInItsBlock) {
  LayerBlockTable table = MakeTable();
  table.AddSegment({.format = CacheFormat::kBf16});
  table.AddSegment({.format = CacheFormat::kF32, .first_kv_head = 2, .num_kv_heads = 1});
  const SegmentView& all = table.view()[0];
  EXPECT_EQ(all.element, ElementType::kBf16);
  EXPECT_EQ(all.num_kv_heads, kKvHeads);
  EXPECT_EQ(all.keys.slots_per_block, 16u);
  EXPECT_EQ(all.keys.head_stride_bytes, kBlockBytes / kKvHeads);
  EXPECT_EQ(all.keys.offset_bytes, 0u);
  EXPECT_EQ(all.values.head_stride_bytes, kBlockBytes / kKvHeads);
  EXPECT_EQ(all.values.offset_bytes, kBlockBytes / kKvHeads / 2);

  const SegmentView& one = table.view()[1];
  EXPECT_EQ(one.element, ElementType::kF32);
  EXPECT_EQ(one.first_kv_head, 2);
  EXPECT_EQ(one.num_kv_heads, 1);
  EXPECT_EQ(one.keys.slots_per_block, 8u * kKvHeads);
  EXPECT_EQ(one.values.offset_bytes, kBlockBytes / 2);
}

TEST_F(LayerBlockTableTest, AppendSlotCountsUpAndTakesABlockOnlyWhenTheLastIsFull) {
  LayerBlockTable table = MakeTable();
  const int segment = table.AddSegment({.format = CacheFormat::kBf16});
  ASSERT_TRUE(table.Extend(segment, 10).ok());
  for (int i = 10; i < 100; ++i) {
    const size_t used = pool_->used_blocks();
    const size_t expected = table.BlocksToAppend(segment, 1);
    EXPECT_EQ(expected, i % 16 == 0 ? 1u : 0u) << i;
    EXPECT_EQ(table.AppendSlot(segment).value(), i);
    EXPECT_EQ(pool_->used_blocks(), used + expected);
    EXPECT_EQ(table.view()[0].num_slots, i + 1);
    ASSERT_TRUE(table.CheckIntegrity().ok()) << table.CheckIntegrity();
  }
  EXPECT_EQ(table.BlocksToAppend(segment, 12), 0u);
  EXPECT_EQ(table.BlocksToAppend(segment, 13), 1u);
  EXPECT_EQ(table.BlocksToAppend(segment, 29), 2u);
}

TEST_F(LayerBlockTableTest, FullRingOverwritesItsOldestSlotAndNeverTheSinks) {
  LayerBlockTable table = MakeTable();
  const int segment = table.AddSegment({.ring = RingShape{.sinks = 2, .recent = 3}});
  EXPECT_EQ(table.BlocksToAppend(segment, 1000), 1u);
  ASSERT_TRUE(table.Extend(segment, 3).ok());
  EXPECT_EQ(Append(table, segment, 9), (std::vector<int>{3, 4, 2, 3, 4, 2, 3, 4, 2}));
  EXPECT_EQ(table.view()[0].num_slots, 5);
  EXPECT_EQ(pool_->used_blocks(), 1u);
  EXPECT_EQ(table.BlocksToAppend(segment, 1000), 0u);
  EXPECT_TRUE(table.CheckIntegrity().ok()) << table.CheckIntegrity();
}

TEST_F(LayerBlockTableTest, RingFilledByExtendOverwritesBehindTheSinksFirst) {
  LayerBlockTable table = MakeTable();
  const int segment = table.AddSegment({.ring = RingShape{.sinks = 4, .recent = 30}});
  ASSERT_TRUE(table.Extend(segment, 34).ok());
  EXPECT_EQ(pool_->used_blocks(), 3u);
  for (int lap = 0; lap < 3; ++lap) {
    for (int slot = 4; slot < 34; ++slot) {
      ASSERT_EQ(table.AppendSlot(segment).value(), slot);
      ASSERT_TRUE(table.CheckIntegrity().ok()) << table.CheckIntegrity();
    }
  }
  EXPECT_EQ(pool_->used_blocks(), 3u);
}

TEST_F(LayerBlockTableTest, RingOfOneRecentSlotOverwritesThatSlot) {
  LayerBlockTable table = MakeTable();
  const int segment = table.AddSegment({.ring = RingShape{.sinks = 0, .recent = 1}});
  EXPECT_EQ(Append(table, segment, 4), (std::vector<int>{0, 0, 0, 0}));
  EXPECT_TRUE(table.CheckIntegrity().ok());
}

TEST_F(LayerBlockTableTest, ExhaustedPoolLeavesTheTableAsItWas) {
  MakePool(3);
  LayerBlockTable table = MakeTable();
  const int segment = table.AddSegment({.format = CacheFormat::kBf16});
  ASSERT_TRUE(table.Extend(segment, 20).ok());
  const std::vector<BlockId> before = Blocks(table.view()[0].keys, 20);

  EXPECT_EQ(table.Extend(segment, 29).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(table.view()[0].num_slots, 20);
  EXPECT_EQ(Blocks(table.view()[0].keys, 20), before);
  EXPECT_EQ(pool_->used_blocks(), 2u);

  ASSERT_TRUE(table.Extend(segment, 28).ok());
  EXPECT_EQ(table.AppendSlot(segment).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(table.view()[0].num_slots, 48);
  EXPECT_TRUE(table.CheckIntegrity().ok());

  LayerBlockTable empty = MakeTable();
  EXPECT_EQ(empty.Extend(empty.AddSegment({}), 1).code(), absl::StatusCode::kResourceExhausted);
  table.Clear();
  EXPECT_TRUE(empty.Extend(0, 48).ok());
}

TEST_F(LayerBlockTableTest, FullRingGoesOnInAnExhaustedPool) {
  MakePool(2);
  LayerBlockTable table = MakeTable();
  const int segment = table.AddSegment({.ring = RingShape{.sinks = 4, .recent = 28}});
  ASSERT_TRUE(table.Extend(segment, 32).ok());
  ASSERT_EQ(pool_->free_blocks(), 0u);
  EXPECT_EQ(Append(table, segment, 29).back(), 4);
}

TEST_F(LayerBlockTableTest, BlocksFreedByOneLayerServeAnotherWithAnotherFormat) {
  MakePool(4);
  LayerBlockTable low = MakeTable();
  ASSERT_TRUE(low.Extend(low.AddSegment({.format = CacheFormat::kBf16}), 64).ok());
  LayerBlockTable high = MakeTable();
  const int segment = high.AddSegment({.format = CacheFormat::kF32});
  EXPECT_FALSE(high.Extend(segment, 1).ok());
  low.Clear();
  EXPECT_TRUE(high.Extend(segment, 32).ok());
  EXPECT_EQ(pool_->used_blocks(), 4u);
}

TEST_F(LayerBlockTableTest, SharedSegmentLivesUntilBothLayersAreGone) {
  LayerBlockTable low = MakeTable();
  ASSERT_TRUE(low.Extend(low.AddSegment({.format = CacheFormat::kBf16}), 40).ok());
  LayerBlockTable high = MakeTable();
  const int tail = high.AddSegment({.format = CacheFormat::kBf16});
  const int shared = high.ShareSegment(low, 0);
  EXPECT_EQ(shared, 1);
  ASSERT_TRUE(high.Extend(tail, 5).ok());
  EXPECT_EQ(pool_->used_blocks(), 4u);

  const SegmentView& view = high.view()[shared];
  EXPECT_EQ(view.num_slots, 40);
  EXPECT_EQ(Blocks(view.keys, 40), Blocks(low.view()[0].keys, 40));
  EXPECT_NE(view.keys.blocks, low.view()[0].keys.blocks) << "each table has a list of its own";

  std::vector<BlockId> owners;
  low.AppendOwnedBlocks(&owners);
  high.AppendOwnedBlocks(&owners);
  EXPECT_EQ(owners.size(), 7u);
  EXPECT_TRUE(pool_->CheckIntegrity(owners).ok());

  low.Clear();
  EXPECT_EQ(pool_->used_blocks(), 4u);
  EXPECT_TRUE(high.CheckIntegrity().ok()) << high.CheckIntegrity();
  high.Clear();
  EXPECT_EQ(pool_->used_blocks(), 0u);
}

TEST_F(LayerBlockTableTest, ValuesSegmentReadsTheOtherLayersKeys) {
  LayerBlockTable low = MakeTable();
  ASSERT_TRUE(low.Extend(low.AddSegment({.format = CacheFormat::kBf16}), 40).ok());
  LayerBlockTable high = MakeTable();
  const int segment = high.AddValuesSegment({.format = CacheFormat::kBf16Values}, low, 0);
  ASSERT_TRUE(high.Extend(segment, 40).ok());

  const SegmentView& view = high.view()[segment];
  EXPECT_EQ(Blocks(view.keys, 40), Blocks(low.view()[0].keys, 40));
  EXPECT_EQ(view.keys.slots_per_block, 16u);
  EXPECT_EQ(view.values.slots_per_block, 32u);
  EXPECT_EQ(view.values.offset_bytes, 0u);
  EXPECT_EQ(view.values.head_stride_bytes, kBlockBytes / kKvHeads);
  EXPECT_EQ(pool_->used_blocks(), 3u + 2u);

  // Freeing the layer that made the keys does not free them.
  low.Clear();
  EXPECT_EQ(pool_->used_blocks(), 5u);
  EXPECT_TRUE(high.CheckIntegrity().ok()) << high.CheckIntegrity();
  high.Clear();
  EXPECT_EQ(pool_->used_blocks(), 0u);
}

TEST_F(LayerBlockTableTest, ValuesSegmentGrowsAsFarAsItsRefreshedKeys) {
  LayerBlockTable low = MakeTable();
  LayerBlockTable high = MakeTable();
  low.AddSegment({.format = CacheFormat::kF32});
  high.AddValuesSegment({.format = CacheFormat::kF32Values}, low, 0);
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(low.AppendSlot(0).value(), i);
    high.RefreshKeys(0, low, 0);
    ASSERT_EQ(high.AppendSlot(0).value(), i);
    ASSERT_TRUE(high.CheckIntegrity().ok()) << high.CheckIntegrity();
  }
  EXPECT_EQ(Blocks(high.view()[0].keys, 50), Blocks(low.view()[0].keys, 50));
  EXPECT_EQ(pool_->used_blocks(), 7u + 4u);
}

TEST_F(LayerBlockTableTest, ValuesSegmentOfOneHeadPointsAtThatHeadsKeys) {
  LayerBlockTable low = MakeTable();
  ASSERT_TRUE(low.Extend(low.AddSegment({.format = CacheFormat::kBf16}), 20).ok());
  LayerBlockTable high = MakeTable();
  high.AddValuesSegment({.format = CacheFormat::kBf16Values, .first_kv_head = 3, .num_kv_heads = 1},
                        low, 0);
  ASSERT_TRUE(high.Extend(0, 20).ok());
  EXPECT_EQ(high.view()[0].keys.offset_bytes, 3 * kBlockBytes / kKvHeads);
  EXPECT_EQ(high.view()[0].values.slots_per_block, 32u * kKvHeads);
  EXPECT_EQ(pool_->used_blocks(), 2u + 1u);
}

TEST_F(LayerBlockTableTest, MovedTableKeepsItsViewsAndBlocks) {
  LayerBlockTable table = MakeTable();
  table.AddSegment({.format = CacheFormat::kBf16});
  table.AddSegment({.ring = RingShape{1, 20}});
  ASSERT_TRUE(table.Extend(0, 33).ok());
  ASSERT_TRUE(table.Extend(1, 21).ok());
  const std::vector<BlockId> before = Blocks(table.view()[0].keys, 33);

  LayerBlockTable moved = std::move(table);
  EXPECT_EQ(table.num_segments(), 0);  // NOLINT(*-use-after-move,*-cplusplus.Move)
  EXPECT_TRUE(moved.CheckIntegrity().ok()) << moved.CheckIntegrity();
  EXPECT_EQ(Blocks(moved.view()[0].keys, 33), before);
  EXPECT_EQ(moved.AppendSlot(0).value(), 33);
  EXPECT_EQ(moved.AppendSlot(1).value(), 1);
  EXPECT_EQ(pool_->used_blocks(), 5u);
}

TEST_F(LayerBlockTableTest, ViewTakenOnceFollowsTheGrowingTable) {
  SequenceCache sequence(pool_.get(), &geometry_);
  sequence.layer(0).AddSegment({.format = CacheFormat::kBf16});
  const LayerView view = sequence.layer(0).view();
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(sequence.layer(0).AppendSlot(0).ok());
    ASSERT_EQ(view[0].num_slots, i + 1);
    ASSERT_EQ(Blocks(view[0].keys, i + 1), Blocks(sequence.layer(0).view()[0].keys, i + 1));
  }
  const SequenceCache moved = std::move(sequence);
  EXPECT_EQ(moved.layer(0).view().data(), view.data());
}

TEST_F(LayerBlockTableTest, OccupancyCountsBlocksLiveBytesAndTailWaste) {
  LayerBlockTable table = MakeTable();
  table.AddSegment({.format = CacheFormat::kBf16});
  table.AddSegment({.format = CacheFormat::kF32, .ring = RingShape{4, 10}});
  ASSERT_TRUE(table.Extend(0, 40).ok());
  Append(table, 1, 30);  // 14 slots, overwritten

  const LayerOccupancy occupancy = table.occupancy();
  const size_t bf16_live = size_t{40} * 2 * kKvHeads * kHeadDim * 2;
  const size_t f32_live = size_t{14} * 2 * kKvHeads * kHeadDim * 4;
  EXPECT_EQ(occupancy.blocks, 3u + 2u);
  EXPECT_EQ(occupancy.charged_blocks, 5.0);
  EXPECT_EQ(occupancy.live_bytes, bf16_live + f32_live);
  EXPECT_EQ(occupancy.tail_waste_bytes, 5 * kBlockBytes - bf16_live - f32_live);
  EXPECT_EQ(occupancy.tokens, 54u);

  std::vector<LayerOccupancy> formats(kNumCacheFormats);
  table.AddOccupancyByFormat(absl::MakeSpan(formats));
  const LayerOccupancy& bf16 = formats[static_cast<size_t>(CacheFormat::kBf16)];
  const LayerOccupancy& f32 = formats[static_cast<size_t>(CacheFormat::kF32)];
  EXPECT_EQ(bf16.blocks, 3u);
  EXPECT_EQ(bf16.live_bytes, bf16_live);
  EXPECT_EQ(bf16.tokens, 40u);
  EXPECT_EQ(f32.blocks, 2u);
  EXPECT_EQ(f32.tail_waste_bytes, 2 * kBlockBytes - f32_live);
  EXPECT_EQ(f32.tokens, 14u);
}

TEST_F(LayerBlockTableTest, TokensOfHeadGroupsAreThoseOfTheLongestHead) {
  LayerBlockTable table = MakeTable();
  table.AddSegment({});
  for (int head = 0; head < kKvHeads; ++head) {
    table.AddSegment({.first_kv_head = head, .num_kv_heads = 1});
    ASSERT_TRUE(table.Extend(1 + head, 10 * (head + 1)).ok());
  }
  ASSERT_TRUE(table.Extend(0, 7).ok());
  EXPECT_EQ(table.occupancy().tokens, 47u);
  EXPECT_EQ(table.blocks(), 5u);
}

TEST_F(LayerBlockTableTest, SharedBlocksCountInBothLayersButAreChargedOnce) {
  SequenceCache sequence(pool_.get(), &geometry_);
  LayerBlockTable& low = sequence.layer(0);
  LayerBlockTable& high = sequence.layer(1);
  ASSERT_TRUE(low.Extend(low.AddSegment({.format = CacheFormat::kBf16}), 40).ok());
  ASSERT_TRUE(low.Extend(low.AddSegment({.format = CacheFormat::kBf16}), 33).ok());
  high.ShareSegment(low, 0);
  ASSERT_TRUE(
      high.Extend(high.AddValuesSegment({.format = CacheFormat::kBf16Values}, low, 1), 33).ok());

  CacheOccupancy occupancy(2);
  occupancy.Add(sequence);
  EXPECT_EQ(occupancy.layers[0].blocks, 6u);
  EXPECT_EQ(occupancy.layers[0].charged_blocks, 3.0);
  EXPECT_EQ(occupancy.layers[1].blocks, 3u + 2u);
  EXPECT_EQ(occupancy.layers[1].borrowed_blocks, 3u);
  EXPECT_EQ(occupancy.layers[1].charged_blocks, 1.5 + 1.5 + 2);
  EXPECT_EQ(occupancy.total.charged_blocks, static_cast<double>(pool_->used_blocks()));
  EXPECT_EQ(occupancy.layers[1].tokens, 73u);
  EXPECT_EQ(occupancy.layers[1].live_bytes, size_t{40 * 2 + 33} * kKvHeads * kHeadDim * 2);

  const SequenceCache* sequences[] = {&sequence};
  EXPECT_TRUE(CheckIntegrity(*pool_, sequences).ok());
  EXPECT_EQ(CheckIntegrity(*pool_, {}).code(), absl::StatusCode::kInternal);
}

TEST_F(LayerBlockTableTest, LayersOfASequenceHoldWhatEachNeeds) {
  SequenceCache sequence(pool_.get(), &geometry_);
  ASSERT_EQ(sequence.num_layers(), 2);
  ASSERT_TRUE(sequence.layer(0).Extend(sequence.layer(0).AddSegment({}), 160).ok());
  ASSERT_TRUE(sequence.layer(1).Extend(sequence.layer(1).AddSegment({}), 17).ok());
  EXPECT_EQ(sequence.blocks(), 12u);
  EXPECT_EQ(pool_->used_blocks(), 12u);
  EXPECT_TRUE(sequence.CheckIntegrity().ok());
  sequence.Clear();
  EXPECT_EQ(pool_->used_blocks(), 0u);
}

using LayerBlockTableDeathTest = LayerBlockTableTest;

TEST_F(LayerBlockTableDeathTest, AbortsOnOurOwnMistakes) {
  LayerBlockTable low = MakeTable();
  LayerBlockTable high = MakeTable();
  ASSERT_TRUE(low.Extend(low.AddSegment({.format = CacheFormat::kBf16}), 20).ok());

  EXPECT_DEATH(low.AddSegment({.first_kv_head = 4, .num_kv_heads = 1}), "covers KV heads");
  EXPECT_DEATH(low.AddSegment({.ring = RingShape{4, 0}}), "at least one recent slot");
  EXPECT_DEATH(low.AddSegment({.format = CacheFormat::kBf16Values}), "needs keys");
  EXPECT_DEATH(low.ShareSegment(low, 0), "not within one");
  EXPECT_DEATH(high.AddValuesSegment({.format = CacheFormat::kF32Values}, low, 0),
               "one element type");

  const int ring = high.AddSegment({.ring = RingShape{4, 6}});
  EXPECT_DEATH(static_cast<void>(high.Extend(ring, 11)), "past sinks \\+ recent");
  const int values = high.AddValuesSegment({.format = CacheFormat::kBf16Values}, low, 0);
  ASSERT_TRUE(high.Extend(values, 20).ok());
  EXPECT_DEATH(static_cast<void>(high.AppendSlot(values)), "past its keys");

  const int shared = high.ShareSegment(low, 0);
  EXPECT_DEATH(static_cast<void>(high.AppendSlot(shared)), "may not grow");
  EXPECT_DEATH(static_cast<void>(low.AppendSlot(0)), "may not grow");
  EXPECT_DEATH(static_cast<void>(low.Extend(0, 1)), "may not grow");
}

// Not asserted: a shared machine. The step of 1,024 sequences of 80 layers should take about 1 ms.
TEST(LayerBlockTableTimingTest, PrintsTheTimeOfOneStepsAppends) {
  constexpr int kLayers = 80;
  constexpr int kSequences = 1024;
  constexpr int kSteps = 32;
  const CacheGeometry geometry{kLayers, 1, 8, CacheGeometry::DefaultBlockBytes(1, 8)};
  const auto pool = *BlockPool::Create(size_t{kSequences} * kLayers * 4, geometry.block_bytes);
  std::vector<SequenceCache> sequences;
  for (int i = 0; i < kSequences; ++i) {
    SequenceCache& sequence = sequences.emplace_back(pool.get(), &geometry);
    for (int layer = 0; layer < kLayers; ++layer) {
      LayerBlockTable& table = sequence.layer(layer);
      const bool is_ring = i % 4 == 3;
      const int segment =
          table.AddSegment({.ring = is_ring ? std::optional(RingShape{4, 13}) : std::nullopt});
      ASSERT_TRUE(table.Extend(segment, 1 + i % 16).ok());
    }
  }
  double best_ms = 1e9;
  double sum_ms = 0;
  int64_t slots = 0;
  for (int step = 0; step < kSteps; ++step) {
    const auto start = std::chrono::steady_clock::now();
    for (SequenceCache& sequence : sequences) {
      for (int layer = 0; layer < kLayers; ++layer) {
        slots += sequence.layer(layer).AppendSlot(0).value();
      }
    }
    const std::chrono::duration<double, std::milli> elapsed =
        std::chrono::steady_clock::now() - start;
    best_ms = std::min(best_ms, elapsed.count());
    sum_ms += elapsed.count();
  }
  std::printf("append of %d sequences x %d layers: mean %.2f ms, best %.2f ms a step (%lld)\n",
              kSequences, kLayers, sum_ms / kSteps, best_ms, static_cast<long long>(slots));
  EXPECT_GT(slots, 0);
}

}  // namespace
}  // namespace ziggurat

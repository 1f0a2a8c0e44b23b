// How the segments of one layer grow, wrap and follow the pool.
#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "tests/block_manager/table_fixture.h"

namespace ziggurat {
namespace {

using LayerBlockTableTest = TableFixture;

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
  EXPECT_EQ(all.encoding, Encoding::kBf16);
  EXPECT_EQ(all.num_kv_heads, kKvHeads);
  EXPECT_EQ(all.keys.slots_per_block, 16u);
  EXPECT_EQ(all.keys.head_stride_bytes, kBlockBytes / kKvHeads);
  EXPECT_EQ(all.keys.offset_bytes, 0u);
  EXPECT_EQ(all.values.head_stride_bytes, kBlockBytes / kKvHeads);
  EXPECT_EQ(all.values.offset_bytes, kBlockBytes / kKvHeads / 2);

  const SegmentView& one = table.view()[1];
  EXPECT_EQ(one.encoding, Encoding::kF32);
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

TEST_F(LayerBlockTableTest, ReservedListsDoNotMoveAndTakeNoBlocks) {
  for (const CacheFormat& format : {CacheFormat::kBf16, CacheFormat{Encoding::kInt8}}) {
    LayerBlockTable table = MakeTable();
    const int segment = table.AddSegment({.format = format});
    ASSERT_TRUE(table.Extend(segment, 5).ok());
    const size_t used = pool_->used_blocks();
    table.ReserveLists(segment, 200);
    EXPECT_EQ(pool_->used_blocks(), used);
    ASSERT_TRUE(table.CheckIntegrity().ok()) << table.CheckIntegrity();
    const SegmentView before = table.view()[0];
    while (table.view()[0].num_slots < 200) ASSERT_TRUE(table.AppendSlot(segment).ok());
    EXPECT_GT(pool_->used_blocks(), used);
    EXPECT_EQ(table.view()[0].values.blocks, before.values.blocks);
    EXPECT_EQ(table.view()[0].value_scales.blocks, before.value_scales.blocks);
    ASSERT_TRUE(table.CheckIntegrity().ok()) << table.CheckIntegrity();
  }
}

TEST_F(LayerBlockTableTest, SlotsThatFollowOneAnotherMayBeAppendedTogether) {
  for (const auto& ring : {std::optional<RingShape>(), std::optional(RingShape{4, 18})}) {
    LayerBlockTable one_by_one = MakeTable(), together = MakeTable();
    for (LayerBlockTable* table : {&one_by_one, &together}) {
      ASSERT_TRUE(table->Extend(table->AddSegment({.ring = ring}), 3).ok());
    }
    for (int i = 0; i < 60; ++i) {
      const int room = std::min(together.RoomToAppend(0), i % 7);
      together.AppendSlots(0, room);
      Append(one_by_one, 0, room);
      ASSERT_TRUE(together.CheckIntegrity().ok()) << together.CheckIntegrity();
      ASSERT_EQ(together.AppendSlot(0).value(), one_by_one.AppendSlot(0).value()) << i;
      ASSERT_EQ(together.view()[0].num_slots, one_by_one.view()[0].num_slots) << i;
      ASSERT_EQ(together.RoomToAppend(0), one_by_one.RoomToAppend(0)) << i;
    }
  }
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

// One segment is kept in place, not behind a pointer that a move would take along.
TEST_F(LayerBlockTableTest, MovedTableOfOneSegmentLeavesNothingBehind) {
  LayerBlockTable table = MakeTable();
  ASSERT_TRUE(table.Extend(table.AddSegment({.format = Merged(kInt4)}), 300).ok());
  const TableSnapshot before(table);
  LayerBlockTable moved = std::move(table);
  EXPECT_EQ(table.num_segments(), 0);  // NOLINT(*-use-after-move,*-cplusplus.Move)
  EXPECT_TRUE(table.view().empty());
  table.Clear();
  EXPECT_TRUE(TableSnapshot(moved) == before);
  ExpectConserved({&moved});
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

TEST_F(LayerBlockTableTest, LayersOfASequenceHoldWhatEachNeeds) {
  {
    SequenceCache sequence(pool_.get(), &geometry_);
    ASSERT_EQ(sequence.num_layers(), 2);
    ASSERT_TRUE(sequence.layer(0).Extend(sequence.layer(0).AddSegment({}), 160).ok());
    ASSERT_TRUE(sequence.layer(1).Extend(sequence.layer(1).AddSegment({}), 17).ok());
    EXPECT_EQ(sequence.blocks(), 12u);
    EXPECT_EQ(pool_->used_blocks(), 12u);
    EXPECT_TRUE(sequence.CheckIntegrity().ok());
  }
  EXPECT_EQ(pool_->used_blocks(), 0u);
}

// Codes, scales, norms and scores each take blocks of their own, together, when theirs are full.
TEST_F(LayerBlockTableTest, EveryPlaneOfEveryFormatGrowsWhenItsBlocksAreFull) {
  MakePool(256);
  for (const CacheFormat& format : AllFormats(kHeadDim)) {
    if (format.values_only) continue;
    LayerBlockTable table = MakeTable();
    const int segment = table.AddSegment({.format = format});
    int slots = 0;
    for (const int tokens : {1, 30, 1, 32, 64, 127, 1, 300, 5}) {
      const size_t missing = BlocksOf(format, slots + tokens) - BlocksOf(format, slots);
      EXPECT_EQ(table.BlocksToAppend(segment, tokens), missing) << FormatText(format);
      ASSERT_TRUE(table.Extend(segment, tokens).ok());
      slots += tokens;
      ASSERT_EQ(table.blocks(), BlocksOf(format, slots)) << FormatText(format) << " " << slots;
      ASSERT_EQ(pool_->used_blocks(), table.blocks());
      ASSERT_TRUE(table.CheckIntegrity().ok()) << table.CheckIntegrity();
    }
    for (int i = 0; i < 150; ++i, ++slots) {
      const size_t missing = BlocksOf(format, slots + 1) - BlocksOf(format, slots);
      ASSERT_EQ(table.BlocksToAppend(segment, 1), missing) << FormatText(format) << " " << slots;
      ASSERT_EQ(table.AppendSlot(segment).value(), slots);
      ASSERT_EQ(table.blocks(), BlocksOf(format, slots + 1)) << FormatText(format) << " " << slots;
    }
    ExpectConserved({&table});
  }
}

// A block belongs to one plane of one segment.
TEST_F(LayerBlockTableTest, PlanesHaveBlocksOfTheirOwn) {
  LayerBlockTable table = MakeTable();
  table.AddSegment({.format = Merged(kInt4)});
  table.AddSegment({.format = Scored({Encoding::kInt8})});
  ASSERT_TRUE(table.Extend(0, 300).ok());
  ASSERT_TRUE(table.Extend(1, 300).ok());
  std::set<BlockId> blocks;
  size_t named = 0;
  for (const SegmentView& view : table.view()) {
    for (const PlaneView* plane :
         {&view.values, &view.value_scales, &view.key_norms, &view.scores}) {
      for (const BlockId id : Blocks(*plane, 300)) {
        blocks.insert(id);
        ++named;
      }
    }
    EXPECT_EQ(Blocks(view.keys, 300), Blocks(view.values, 300));
    EXPECT_EQ(Blocks(view.key_scales, 300), Blocks(view.value_scales, 300));
    EXPECT_EQ(Blocks(view.key_norms, 300), Blocks(view.value_norms, 300));
    EXPECT_EQ(Blocks(view.scores, 300), Blocks(view.positions, 300));
  }
  EXPECT_EQ(blocks.size(), named);
  EXPECT_EQ(blocks.size(), pool_->used_blocks());
}

TEST_F(LayerBlockTableTest, RingsOfScoredAndPerTokenFormatsOverwriteLikeOthers) {
  for (const CacheFormat& format : {CacheFormat{Encoding::kInt8}, Scored({Encoding::kFp8}),
                                    Scored(CacheFormat::kBf16), Merged(CacheFormat::kF32)}) {
    LayerBlockTable table = MakeTable();
    const int segment = table.AddSegment({.format = format, .ring = RingShape{2, 3}});
    EXPECT_EQ(Append(table, segment, 9), (std::vector<int>{0, 1, 2, 3, 4, 2, 3, 4, 2}));
    EXPECT_EQ(table.blocks(), BlocksOf(format, 5)) << FormatText(format);
    EXPECT_TRUE(table.CheckIntegrity().ok()) << table.CheckIntegrity();
  }
}

}  // namespace
}  // namespace ziggurat

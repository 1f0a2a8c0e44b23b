// Segments that two layers hold, and keys that one layer reads from another.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "tests/block_manager/table_fixture.h"

namespace ziggurat {
namespace {

using SharedSegmentTest = TableFixture;

TEST_F(SharedSegmentTest, SharedSegmentLivesUntilBothLayersAreGone) {
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
  low.AppendReferences(&owners);
  high.AppendReferences(&owners);
  EXPECT_EQ(owners.size(), 7u);
  EXPECT_TRUE(pool_->CheckIntegrity(owners).ok());

  low.Clear();
  EXPECT_EQ(pool_->used_blocks(), 4u);
  EXPECT_TRUE(high.CheckIntegrity().ok()) << high.CheckIntegrity();
  high.Clear();
  EXPECT_EQ(pool_->used_blocks(), 0u);
}

TEST_F(SharedSegmentTest, ValuesSegmentReadsTheOtherLayersKeys) {
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

TEST_F(SharedSegmentTest, ValuesSegmentGrowsAsFarAsItsRefreshedKeys) {
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

TEST_F(SharedSegmentTest, ValuesSegmentOfOneHeadPointsAtThatHeadsKeys) {
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

/// Formats of the segments that pairs share: directions as numbers, per-token codes, groups.
std::vector<CacheFormat> PairFormats() {
  return {CacheFormat::kBf16,           Merged(CacheFormat::kF32), Merged(CacheFormat::kBf16),
          Merged({Encoding::kInt8}),    Merged({Encoding::kFp8}),  Merged(kInt4),
          Merged({Encoding::kInt2, 16})};
}

/// All blocks of one view, of all planes.
std::set<BlockId> BlocksOfView(const SegmentView& view) {
  std::set<BlockId> blocks;
  for (const NamedPlane& named : kPlanesOfAView) {
    const std::vector<BlockId> plane = Blocks(view.*named.plane, view.num_slots);
    blocks.insert(plane.begin(), plane.end());
  }
  return blocks;
}

/// The sharer names the owner's blocks in every plane.
void ExpectSameBlocks(const SegmentView& ours, const SegmentView& theirs) {
  ASSERT_EQ(ours.num_slots, theirs.num_slots);
  for (const NamedPlane& named : kPlanesOfAView) {
    EXPECT_EQ(Blocks(ours.*named.plane, ours.num_slots),
              Blocks(theirs.*named.plane, ours.num_slots))
        << named.name;
  }
}

TEST_F(SharedSegmentTest, FollowsItsOwnerThroughGrowthAndShrinking) {
  for (const CacheFormat& format : PairFormats()) {
    LayerBlockTable low = MakeTable(), high = MakeTable();
    low.AddSegment({.format = format});
    high.ShareSegment(low, 0);  // while it is empty, as pairs of layers do
    int slots = 0;
    for (const int change : {32, 1, 63, 160, -1, -159, 32, -128, 0, 300, -300, 64}) {
      if (change >= 0) {
        ASSERT_TRUE(low.Extend(0, change).ok());
        EXPECT_EQ(high.view()[0].num_slots, slots) << "follows only when told";
        ExpectConserved({&low, &high});
      } else {
        low.Truncate(0, slots + change);
      }
      slots += change;
      high.RefreshShared(0, low, 0);
      ExpectSameBlocks(high.view()[0], low.view()[0]);
      EXPECT_EQ(low.view()[0].num_slots, slots);
      EXPECT_EQ(pool_->used_blocks(), BlocksOf(format, slots)) << FormatText(format) << slots;
      EXPECT_EQ(high.owned_blocks(), 0u);
      ExpectConserved({&low, &high});
    }
    for (const BlockId id : BlocksOfView(low.view()[0])) {
      EXPECT_EQ(pool_->reference_count(id), 2u);
    }
  }
}

TEST_F(SharedSegmentTest, BlocksThatTheOwnerGivesUpStayUntilTheOtherSideFollows) {
  LayerBlockTable low = MakeTable(), high = MakeTable();
  ASSERT_TRUE(low.Extend(low.AddSegment({.format = Merged(kInt4)}), 320).ok());
  high.ShareSegment(low, 0);
  const size_t used = pool_->used_blocks();
  low.Truncate(0, 64);
  EXPECT_EQ(pool_->used_blocks(), used);
  ExpectConserved({&low, &high});
  high.RefreshShared(0, low, 0);
  EXPECT_EQ(pool_->used_blocks(), BlocksOf(Merged(kInt4), 64));
  ExpectConserved({&low, &high});
}

// Three layers that read one segment in different ways, freed in every order. What is left keeps
// its blocks and their bytes: a block that was freed by mistake would be handed to the filler.
TEST_F(SharedSegmentTest, FreeingOneLayerNeverFreesAnothersBlocksInAnyOrder) {
  MakePool(256);
  int orders = 0;
  for (CacheFormat format : PairFormats()) {
    std::vector<int> order = {0, 1, 2};
    do {
      LayerBlockTable tables[] = {MakeTable(), MakeTable(), MakeTable()};
      ASSERT_TRUE(tables[0].Extend(tables[0].AddSegment({.format = format}), 200).ok());
      tables[1].ShareSegment(tables[0], 0);
      if (format.merged) {
        tables[2].ShareSegment(tables[1], 0);
      } else {
        tables[2].AddValuesSegment({.format = ValuesOnly(format)}, tables[0], 0);
        ASSERT_TRUE(tables[2].Extend(0, 150).ok());
      }
      // Both sides of a pair have a tail of their own besides.
      for (LayerBlockTable& table : tables) {
        ASSERT_TRUE(table.Extend(table.AddSegment({}), 20).ok());
      }
      std::vector<BlockId> all;
      for (const LayerBlockTable& table : tables) table.AppendReferences(&all);
      for (const BlockId id : all) {
        std::memset(pool_->view().Block(id), static_cast<int>(id % 251), kBlockBytes);
      }
      for (size_t gone = 0; gone < order.size(); ++gone) {
        tables[order[gone]].Clear();
        LayerBlockTable filler = MakeTable();
        ASSERT_TRUE(
            filler.Extend(filler.AddSegment({}), static_cast<int>(16 * pool_->free_blocks())).ok());
        std::vector<BlockId> filled, kept;
        filler.AppendReferences(&filled);
        for (const BlockId id : filled) std::memset(pool_->view().Block(id), 0xff, kBlockBytes);
        for (size_t left = gone + 1; left < order.size(); ++left) {
          const LayerBlockTable& table = tables[order[left]];
          EXPECT_TRUE(table.CheckIntegrity().ok()) << table.CheckIntegrity();
          table.AppendReferences(&kept);
          EXPECT_EQ(table.view()[0].num_slots, order[left] == 2 && !format.merged ? 150 : 200);
        }
        for (const BlockId id : kept) {
          const std::byte* bytes = pool_->view().Block(id);
          ASSERT_TRUE(std::all_of(bytes, bytes + kBlockBytes,
                                  [&](std::byte b) { return static_cast<BlockId>(b) == id % 251; }))
              << "block " << id << " of " << FormatText(format);
        }
        kept.insert(kept.end(), filled.begin(), filled.end());
        EXPECT_TRUE(pool_->CheckIntegrity(kept).ok()) << pool_->CheckIntegrity(kept);
      }
      EXPECT_EQ(pool_->used_blocks(), 0u);
      ++orders;
    } while (std::next_permutation(order.begin(), order.end()));
  }
  EXPECT_EQ(orders, 7 * 6);
}

// The lower layer of a pair is freed first, then the upper goes on reading and is freed.
TEST_F(SharedSegmentTest, SharerOutlivesItsOwnersTable) {
  LayerBlockTable high = MakeTable();
  {
    LayerBlockTable low = MakeTable();
    ASSERT_TRUE(low.Extend(low.AddSegment({.format = Merged({Encoding::kInt8})}), 100).ok());
    high.ShareSegment(low, 0);
  }
  EXPECT_EQ(pool_->used_blocks(), BlocksOf(Merged({Encoding::kInt8}), 100));
  ExpectConserved({&high});
  high.Clear();
  EXPECT_EQ(pool_->used_blocks(), 0u);
}

TEST_F(SharedSegmentTest, BorrowersOfCodesReadTheScalesToo) {
  for (const CacheFormat& format :
       {CacheFormat{Encoding::kInt8}, CacheFormat{Encoding::kFp8}, kInt4}) {
    LayerBlockTable low = MakeTable(), high = MakeTable();
    low.AddSegment({.format = format});
    high.AddValuesSegment({.format = ValuesOnly(format)}, low, 0);
    int slots = 0;
    for (const int tokens : {32, 256, 32, 64}) {
      ASSERT_TRUE(low.Extend(0, tokens).ok());
      high.RefreshKeys(0, low, 0);
      ASSERT_TRUE(high.Extend(0, tokens).ok());
      slots += tokens;
      const SegmentView& ours = high.view()[0];
      const SegmentView& theirs = low.view()[0];
      EXPECT_EQ(Blocks(ours.keys, slots), Blocks(theirs.keys, slots));
      EXPECT_EQ(Blocks(ours.key_scales, slots), Blocks(theirs.key_scales, slots));
      EXPECT_EQ(high.blocks(), BlocksOf(ValuesOnly(format), slots)) << FormatText(format);
      EXPECT_EQ(pool_->used_blocks(), high.blocks() + BlocksOf(format, slots));
      std::set<BlockId> ids = BlocksOfView(ours);
      EXPECT_EQ(ids.size(), high.blocks() + BlocksOf(format, slots)) << "none stands for two";
      ExpectConserved({&low, &high});
    }
    low.Clear();
    ExpectConserved({&high});
    high.Clear();
    EXPECT_EQ(pool_->used_blocks(), 0u);
  }
}

TEST_F(SharedSegmentTest, ValuesMayShrinkWhileTheirKeysStay) {
  LayerBlockTable low = MakeTable(), high = MakeTable();
  ASSERT_TRUE(low.Extend(low.AddSegment({.format = CacheFormat::kBf16}), 100).ok());
  high.AddValuesSegment({.format = CacheFormat::kBf16Values}, low, 0);
  ASSERT_TRUE(high.Extend(0, 100).ok());
  high.Truncate(0, 33);
  EXPECT_EQ(high.blocks(), 2u);
  EXPECT_EQ(high.occupancy().borrowed_blocks, 7u);
  ExpectConserved({&low, &high});
  EXPECT_EQ(high.AppendSlot(0).value(), 33);
  ASSERT_TRUE(high.Extend(0, 66).ok());
  ExpectConserved({&low, &high});
}

}  // namespace
}  // namespace ziggurat

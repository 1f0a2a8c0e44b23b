// Segments that give slots back, and segments that become rings.
#include <gtest/gtest.h>

#include "tests/block_manager/table_fixture.h"

namespace ziggurat {
namespace {

using ShrinkingSegmentTest = TableFixture;

TEST_F(ShrinkingSegmentTest, TruncateKeepsExactlyTheBlocksOfTheFirstSlotsInEveryPlane) {
  for (const CacheFormat& format : AllFormats(kHeadDim)) {
    if (format.values_only) continue;
    for (const int kept : {0, 1, 31, 32, 33, 64, 127, 128, 129, 256, 299, 300}) {
      LayerBlockTable table = MakeTable();
      ASSERT_TRUE(table.Extend(table.AddSegment({.format = format}), 300).ok());
      const SegmentView before = table.view()[0];
      std::vector<std::vector<BlockId>> first;
      for (const NamedPlane& named : kPlanesOfAView) {
        first.push_back(Blocks(before.*named.plane, kept));
      }
      table.Truncate(0, kept);
      const SegmentView& after = table.view()[0];
      EXPECT_EQ(after.num_slots, kept);
      for (size_t i = 0; i < std::size(kPlanesOfAView); ++i) {
        EXPECT_EQ(Blocks(after.*kPlanesOfAView[i].plane, kept), first[i])
            << FormatText(format) << " " << kPlanesOfAView[i].name;
      }
      EXPECT_EQ(table.blocks(), BlocksOf(format, kept)) << FormatText(format) << " " << kept;
      EXPECT_EQ(pool_->used_blocks(), table.blocks());
      ExpectConserved({&table});
      // It grows again from there.
      const size_t missing = BlocksOf(format, kept + 1) - BlocksOf(format, kept);
      EXPECT_EQ(table.BlocksToAppend(0, 1), missing);
      EXPECT_EQ(table.AppendSlot(0).value(), kept);
      ASSERT_TRUE(table.Extend(0, 299 - kept + 1).ok());
      EXPECT_EQ(table.blocks(), BlocksOf(format, 301)) << FormatText(format);
      ExpectConserved({&table});
    }
  }
}

TEST_F(ShrinkingSegmentTest, RemoveFirstLeavesTheOthersWhereTheyAre) {
  int removed_some = 0;
  for (const CacheFormat& format : AllFormats(kHeadDim)) {
    if (format.values_only) continue;
    for (const int removed : {0, 128, 256}) {
      LayerBlockTable table = MakeTable();
      ASSERT_TRUE(table.Extend(table.AddSegment({.format = format}), 300).ok());
      const SegmentView before = table.view()[0];
      if (!table.CanRemoveFirst(0, removed)) continue;  // a block has slots of both
      removed_some += removed > 0;
      std::vector<std::vector<BlockId>> last;
      for (const NamedPlane& named : kPlanesOfAView) {
        std::vector<BlockId> all = Blocks(before.*named.plane, 300);
        const size_t gone = Blocks(before.*named.plane, removed).size();
        last.emplace_back(all.begin() + static_cast<ptrdiff_t>(gone), all.end());
      }
      table.RemoveFirst(0, removed);
      const SegmentView& after = table.view()[0];
      EXPECT_EQ(after.num_slots, 300 - removed);
      for (size_t i = 0; i < std::size(kPlanesOfAView); ++i) {
        EXPECT_EQ(Blocks(after.*kPlanesOfAView[i].plane, 300 - removed), last[i])
            << FormatText(format) << " " << kPlanesOfAView[i].name;
      }
      EXPECT_EQ(table.blocks(), BlocksOf(format, 300 - removed)) << FormatText(format);
      EXPECT_EQ(table.owned_blocks(), table.blocks());
      ExpectConserved({&table});
      EXPECT_EQ(table.AppendSlot(0).value(), 300 - removed);
      ExpectConserved({&table});
    }
  }
  EXPECT_GE(removed_some, 4);
}

TEST_F(ShrinkingSegmentTest, OnlyWholeBlocksThatNobodyElseReadsGoInFront) {
  LayerBlockTable table = MakeTable(), upper = MakeTable();
  ASSERT_TRUE(table.Extend(table.AddSegment({}), 40).ok());
  EXPECT_TRUE(table.CanRemoveFirst(0, 16));
  EXPECT_FALSE(table.CanRemoveFirst(0, 8)) << "half a block";
  EXPECT_FALSE(table.CanRemoveFirst(0, 48)) << "more than there are";
  EXPECT_FALSE(table.CanRemoveFirst(0, -16));
  ASSERT_TRUE(table.Extend(table.AddSegment({.ring = RingShape{0, 32}}), 32).ok());
  EXPECT_FALSE(table.CanRemoveFirst(1, 16)) << "a ring";
  upper.ShareSegment(table, 0);
  EXPECT_FALSE(table.CanRemoveFirst(0, 16)) << "another layer would not follow";
  EXPECT_FALSE(upper.CanRemoveFirst(0, 16));
  EXPECT_DEATH(table.RemoveFirst(0, 16), "nobody else reads");
}

TEST_F(ShrinkingSegmentTest, BlocksTakenAheadAreThoseOfTheNextSlotAndGoBackUnlessItComes) {
  for (const CacheFormat& format : AllFormats(kHeadDim)) {
    if (format.values_only || IsGrouped(format.encoding)) continue;
    for (const int held : {0, 1, 31, 32, 33, 64, 127, 128, 256}) {
      LayerBlockTable table = MakeTable();
      ASSERT_TRUE(table.Extend(table.AddSegment({.format = format}), held).ok());
      for (const bool comes : {false, true}) {
        ASSERT_TRUE(table.TakeAhead(0));
        ASSERT_TRUE(table.TakeAhead(0)) << "again, which takes nothing";
        EXPECT_EQ(table.blocks(), BlocksOf(format, held + 1)) << FormatText(format) << " " << held;
        EXPECT_EQ(table.owned_blocks(), table.blocks());
        EXPECT_EQ(table.view()[0].num_slots, held);
        EXPECT_EQ(table.next_slot(0), held);
        EXPECT_EQ(table.BlocksToAppend(0, 1), 0u);
        ExpectConserved({&table});
        if (comes) {
          EXPECT_EQ(table.AppendSlot(0).value(), held);
        }
        table.ReleaseAhead(0);
        EXPECT_EQ(table.blocks(), BlocksOf(format, held + (comes ? 1 : 0))) << FormatText(format);
        ExpectConserved({&table});
      }
    }
  }
}

TEST_F(ShrinkingSegmentTest, NothingIsTakenAheadWhereMoreWouldHappenOrThePoolIsEmpty) {
  MakePool(3);
  LayerBlockTable ring = MakeTable(), full = MakeTable(), upper = MakeTable();
  ASSERT_TRUE(ring.Extend(ring.AddSegment({.ring = RingShape{2, 14}}), 15).ok());
  EXPECT_TRUE(ring.TakeAhead(0));
  EXPECT_EQ(ring.AppendSlot(0).value(), 15);
  EXPECT_FALSE(ring.TakeAhead(0)) << "the next one is overwritten";
  ASSERT_TRUE(full.Extend(full.AddSegment({}), 32).ok());
  EXPECT_EQ(pool_->free_blocks(), 0u);
  EXPECT_FALSE(full.TakeAhead(0));
  EXPECT_EQ(full.blocks(), 2u);
  full.Truncate(0, 16);
  upper.ShareSegment(full, 0);
  EXPECT_FALSE(full.TakeAhead(0)) << "another layer would not follow";
  EXPECT_FALSE(upper.TakeAhead(0));
  ExpectConserved({&ring, &full, &upper});
}

TEST_F(ShrinkingSegmentTest, FreedBlocksServeOthersAtOnce) {
  MakePool(5);
  LayerBlockTable table = MakeTable(), other = MakeTable();
  ASSERT_TRUE(table.Extend(table.AddSegment({}), 80).ok());
  other.AddSegment({.format = {Encoding::kInt8}});
  EXPECT_FALSE(other.Extend(0, 1).ok());
  table.Truncate(0, 48);
  EXPECT_TRUE(other.Extend(0, 32).ok());
  EXPECT_EQ(pool_->free_blocks(), 0u);
  ExpectConserved({&table, &other});
}

// As the tail in front of which tokens become codes: it fills, groups leave, it fills again.
TEST_F(ShrinkingSegmentTest, TailThatIsEmptiedAgainAndAgainTakesTheSameBlocks) {
  LayerBlockTable table = MakeTable();
  const int codes = table.AddSegment({.format = kInt4});
  const int tail = table.AddSegment({.format = CacheFormat::kBf16});
  for (int flush = 0; flush < 6; ++flush) {
    while (table.view()[tail].num_slots < 40) Append(table, tail, 1);
    ASSERT_TRUE(table.Extend(codes, 32).ok());
    table.Truncate(tail, 8);
    EXPECT_EQ(table.view()[codes].num_slots, 32 * (flush + 1));
    EXPECT_EQ(table.blocks(), BlocksOf(kInt4, 32 * (flush + 1)) + 1);
    ExpectConserved({&table});
  }
}

TEST_F(ShrinkingSegmentTest, SegmentMadeARingWrapsBehindItsSinks) {
  for (const int held : {0, 3, 9, 10}) {
    LayerBlockTable table = MakeTable();
    ASSERT_TRUE(table.Extend(table.AddSegment({}), held).ok());
    table.MakeRing(0, {4, 6});
    EXPECT_TRUE(table.CheckIntegrity().ok()) << table.CheckIntegrity();
    std::vector<int> expected;
    for (int token = held; token < held + 20; ++token) {
      expected.push_back(token < 10 ? token : 4 + (token - 10) % 6);
    }
    EXPECT_EQ(Append(table, 0, 20), expected) << held;
    EXPECT_EQ(table.view()[0].num_slots, 10);
    EXPECT_EQ(table.blocks(), 1u);
    ExpectConserved({&table});
  }
}

// A layer found lazy after the prompt: what it holds too much goes, what is left becomes a ring.
TEST_F(ShrinkingSegmentTest, TruncatedSegmentMadeARingNeedsNoBlockAnyMore) {
  for (const CacheFormat& format : {CacheFormat::kBf16, CacheFormat{Encoding::kInt8},
                                    CacheFormat{Encoding::kFp8}, Scored(CacheFormat::kF32)}) {
    LayerBlockTable table = MakeTable();
    ASSERT_TRUE(table.Extend(table.AddSegment({.format = format}), 200).ok());
    table.Truncate(0, 32);
    EXPECT_GT(table.BlocksToAppend(0, 300), 0u);
    table.MakeRing(0, {4, 28});
    EXPECT_EQ(table.BlocksToAppend(0, 300), 0u) << FormatText(format);
    const size_t blocks = table.blocks();
    EXPECT_EQ(Append(table, 0, 300).back(), 4 + 299 % 28);
    EXPECT_EQ(table.blocks(), blocks);
    ExpectConserved({&table});
  }
}

TEST_F(ShrinkingSegmentTest, RingGivesBackTheBlockThatWasTakenAheadOfItsEnd) {
  LayerBlockTable table = MakeTable();
  ASSERT_TRUE(table.Extend(table.AddSegment({}), 32).ok());
  ASSERT_TRUE(table.TakeAhead(0));
  EXPECT_EQ(table.blocks(), 3u);
  table.MakeRing(0, {4, 28});
  EXPECT_EQ(table.blocks(), 2u);
  ExpectConserved({&table});
  EXPECT_EQ(table.AppendSlot(0).value(), 4);
}

TEST_F(ShrinkingSegmentTest, RingMadeLargerThanTheSegmentGrowsToItsSizeFirst) {
  LayerBlockTable table = MakeTable();
  ASSERT_TRUE(table.Extend(table.AddSegment({}), 10).ok());
  table.MakeRing(0, {2, 38});
  EXPECT_EQ(table.BlocksToAppend(0, 1000), 2u);
  ASSERT_TRUE(table.Extend(0, 25).ok());
  EXPECT_EQ(Append(table, 0, 6), (std::vector<int>{35, 36, 37, 38, 39, 2}));
  EXPECT_EQ(table.blocks(), 3u);
  ExpectConserved({&table});
}

TEST_F(ShrinkingSegmentTest, RingThatHasNotWrappedShrinksAndFillsAgain) {
  LayerBlockTable table = MakeTable();
  table.AddSegment({.ring = RingShape{4, 28}});
  ASSERT_TRUE(table.Extend(0, 32).ok());
  table.Truncate(0, 16);
  EXPECT_EQ(table.blocks(), 1u);
  EXPECT_EQ(table.BlocksToAppend(0, 1000), 1u);
  std::vector<int> slots = Append(table, 0, 18);
  EXPECT_EQ(slots.front(), 16);
  EXPECT_EQ(slots[15], 31);
  EXPECT_EQ(slots.back(), 5);
  ExpectConserved({&table});
}

}  // namespace
}  // namespace ziggurat

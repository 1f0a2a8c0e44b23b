// What tables report of themselves.
#include "block_manager/occupancy.h"

#include <gtest/gtest.h>

#include "tests/block_manager/table_fixture.h"

namespace ziggurat {
namespace {

using OccupancyTest = TableFixture;

TEST_F(OccupancyTest, OccupancyCountsBlocksLiveBytesAndTailWaste) {
  LayerBlockTable table = MakeTable();
  table.AddSegment({.format = CacheFormat::kBf16});
  table.AddSegment({.format = CacheFormat::kF32, .ring = RingShape{4, 10}});
  ASSERT_TRUE(table.Extend(0, 40).ok());
  Append(table, 1, 30);  // 14 slots, overwritten

  const LayerOccupancy occupancy = table.occupancy();
  const size_t bf16_live = size_t{40} * 2 * kKvHeads * kHeadDim * 2;
  const size_t f32_live = size_t{14} * 2 * kKvHeads * kHeadDim * 4;
  EXPECT_EQ(occupancy.blocks, 3u + 2u);
  EXPECT_EQ(occupancy.live_bytes, bf16_live + f32_live);
  EXPECT_EQ(occupancy.tail_waste_bytes, 5 * kBlockBytes - bf16_live - f32_live);

  OccupancyByFormat formats;
  table.AddOccupancyByFormat(&formats);
  ASSERT_EQ(formats.size(), 2u);
  const LayerOccupancy& bf16 = formats[CacheFormat::kBf16];
  const LayerOccupancy& f32 = formats[CacheFormat::kF32];
  EXPECT_EQ(bf16.blocks, 3u);
  EXPECT_EQ(bf16.live_bytes, bf16_live);
  EXPECT_EQ(f32.blocks, 2u);
  EXPECT_EQ(f32.tail_waste_bytes, 2 * kBlockBytes - f32_live);
}

TEST_F(OccupancyTest, SharedBlocksCountInBothLayersButAreOwnedByOne) {
  SequenceCache sequence(pool_.get(), &geometry_);
  LayerBlockTable& low = sequence.layer(0);
  LayerBlockTable& high = sequence.layer(1);
  ASSERT_TRUE(low.Extend(low.AddSegment({.format = CacheFormat::kBf16}), 40).ok());
  ASSERT_TRUE(low.Extend(low.AddSegment({.format = CacheFormat::kBf16}), 33).ok());
  high.ShareSegment(low, 0);
  ASSERT_TRUE(
      high.Extend(high.AddValuesSegment({.format = CacheFormat::kBf16Values}, low, 1), 33).ok());

  const LayerOccupancy below = low.occupancy(), above = high.occupancy();
  EXPECT_EQ(below.blocks, 6u);
  EXPECT_EQ(below.owned_blocks, 6u);
  EXPECT_EQ(above.blocks, 3u + 2u);
  EXPECT_EQ(above.owned_blocks, 2u);
  EXPECT_EQ(above.borrowed_blocks, 3u);
  EXPECT_EQ(above.live_bytes, size_t{40 * 2 + 33} * kKvHeads * kHeadDim * 2);
  EXPECT_EQ(above.owned_live_bytes, size_t{33} * kKvHeads * kHeadDim * 2);
  EXPECT_EQ(below.owned_blocks + above.owned_blocks, pool_->used_blocks());

  const SequenceCache* sequences[] = {&sequence};
  EXPECT_TRUE(CheckIntegrity(*pool_, sequences).ok());
  EXPECT_EQ(CheckIntegrity(*pool_, {}).code(), absl::StatusCode::kInternal);
}

// A pair of layers as MiniCache has it with 4 bits: directions, norms, and the tail of one layer.
TEST_F(OccupancyTest, MergedPairCountsEveryPlaneOnceForThePool) {
  SequenceCache sequence(pool_.get(), &geometry_);
  LayerBlockTable& low = sequence.layer(0);
  LayerBlockTable& high = sequence.layer(1);
  ASSERT_TRUE(low.Extend(low.AddSegment({.format = Merged(kInt4)}), 288).ok());
  high.ShareSegment(low, 0);
  ASSERT_TRUE(high.Extend(high.AddSegment({}), 5).ok());
  const size_t codes = 5, scales = 2, norms = 3, tail = 1;
  const size_t shared = codes + scales + norms;
  EXPECT_EQ(low.blocks(), shared);
  EXPECT_EQ(low.owned_blocks(), shared);
  EXPECT_EQ(high.blocks(), shared + tail);
  EXPECT_EQ(high.owned_blocks(), tail);
  EXPECT_EQ(pool_->used_blocks(), shared + tail);

  const LayerOccupancy below = low.occupancy();
  const size_t live = 288 * (2 * kKvHeads * kHeadDim / 2)  // codes of 4 bits
                      + 288 / 32 * (kKvHeads * kHeadDim * 2 * 4) + 288 * kKvHeads * 4 * 4;
  EXPECT_EQ(below.live_bytes, live);
  EXPECT_EQ(below.tail_waste_bytes, shared * kBlockBytes - live);
  OccupancyByFormat formats;
  low.AddOccupancyByFormat(&formats);
  high.AddOccupancyByFormat(&formats);
  EXPECT_EQ(formats[Merged(kInt4)].blocks, 2 * shared);
  EXPECT_EQ(formats[Merged(kInt4)].owned_blocks, shared);
  EXPECT_EQ(formats[CacheFormat::kBf16].owned_blocks, tail);

  // What the other layer has grown by is its own until it is followed.
  ASSERT_TRUE(low.Extend(0, 256).ok());
  const size_t grown = pool_->used_blocks() - shared - tail;
  EXPECT_EQ(low.occupancy().owned_blocks, shared + grown);
  EXPECT_EQ(high.occupancy().blocks, shared + tail);
  high.RefreshShared(0, low, 0);
  EXPECT_EQ(high.occupancy().blocks, shared + grown + tail);
  EXPECT_EQ(high.occupancy().owned_blocks, tail);
}

TEST_F(OccupancyTest, BorrowedScalesCountAsBorrowed) {
  SequenceCache sequence(pool_.get(), &geometry_);
  LayerBlockTable& low = sequence.layer(0);
  LayerBlockTable& high = sequence.layer(1);
  const CacheFormat int8 = {Encoding::kInt8};
  ASSERT_TRUE(low.Extend(low.AddSegment({.format = int8}), 100).ok());
  high.AddValuesSegment({.format = ValuesOnly(int8)}, low, 0);
  const size_t keys = 4 + 1;  // codes of 32 tokens a block, scales of 256
  EXPECT_EQ(high.occupancy().borrowed_blocks, keys);
  EXPECT_EQ(high.blocks(), 0u);
  // Formats and the layer agree even before there is a value.
  OccupancyByFormat formats;
  high.AddOccupancyByFormat(&formats);
  ASSERT_EQ(formats.size(), 1u);
  EXPECT_EQ(formats[ValuesOnly(int8)].borrowed_blocks, keys);
  EXPECT_EQ(formats[ValuesOnly(int8)].live_bytes, 0u);

  ASSERT_TRUE(high.Extend(0, 100).ok());
  EXPECT_EQ(high.owned_blocks(), 2u + 1u);
  EXPECT_EQ(high.occupancy().borrowed_blocks, keys);
  EXPECT_EQ(high.occupancy().live_bytes, size_t{100} * kKvHeads * (kHeadDim + 4));
}

TEST_F(OccupancyTest, GroupsOfOneEncodingAreFormatsApart) {
  LayerBlockTable table = MakeTable();
  table.AddSegment({.format = {Encoding::kInt4, 32}});
  table.AddSegment({.format = {Encoding::kInt4, 16}});
  table.AddSegment({.format = {Encoding::kInt4, 16}});
  table.AddSegment({.format = CacheFormat::kF32});
  for (int segment = 0; segment < 3; ++segment) {
    ASSERT_TRUE(table.Extend(segment, 32 * (segment + 1)).ok());
  }
  OccupancyByFormat formats;
  table.AddOccupancyByFormat(&formats);
  ASSERT_EQ(formats.size(), 2u) << "a segment that holds nothing is left out";
  const PlaneList planes = PlanesOf({Encoding::kInt4, 16}, kKvHeads, kHeadDim);
  const size_t live = planes.planes[0].LiveBytes(64 + 96) + planes.planes[1].LiveBytes(64 + 96);
  EXPECT_EQ((formats[{Encoding::kInt4, 16}].live_bytes), live);
  table.AddOccupancyByFormat(&formats);
  EXPECT_EQ((formats[{Encoding::kInt4, 16}].live_bytes), 2 * live) << "it adds";
}

}  // namespace
}  // namespace ziggurat

// What tables report of themselves, alone and summed.
#include "block_manager/occupancy.h"

#include <gtest/gtest.h>

#include <map>

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
  EXPECT_EQ(occupancy.charged_blocks, 5.0);
  EXPECT_EQ(occupancy.live_bytes, bf16_live + f32_live);
  EXPECT_EQ(occupancy.tail_waste_bytes, 5 * kBlockBytes - bf16_live - f32_live);
  EXPECT_EQ(occupancy.tokens, 54u);

  std::map<CacheFormat, LayerOccupancy> formats;
  table.AddOccupancyByFormat(&formats);
  ASSERT_EQ(formats.size(), 2u);
  const LayerOccupancy& bf16 = formats[CacheFormat::kBf16];
  const LayerOccupancy& f32 = formats[CacheFormat::kF32];
  EXPECT_EQ(bf16.blocks, 3u);
  EXPECT_EQ(bf16.live_bytes, bf16_live);
  EXPECT_EQ(bf16.tokens, 40u);
  EXPECT_EQ(f32.blocks, 2u);
  EXPECT_EQ(f32.tail_waste_bytes, 2 * kBlockBytes - f32_live);
  EXPECT_EQ(f32.tokens, 14u);
}

TEST_F(OccupancyTest, TokensOfHeadGroupsAreThoseOfTheLongestHead) {
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

TEST_F(OccupancyTest, SharedBlocksCountInBothLayersButAreChargedOnce) {
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
  EXPECT_EQ(occupancy.layers[0].owned_blocks, 6u);
  EXPECT_EQ(occupancy.layers[0].charged_blocks, 3.0);
  EXPECT_EQ(occupancy.layers[1].blocks, 3u + 2u);
  EXPECT_EQ(occupancy.layers[1].owned_blocks, 2u);
  EXPECT_EQ(occupancy.layers[1].borrowed_blocks, 3u);
  EXPECT_EQ(occupancy.layers[1].charged_blocks, 1.5 + 1.5 + 2);
  EXPECT_EQ(occupancy.total.charged_blocks, static_cast<double>(pool_->used_blocks()));
  EXPECT_EQ(occupancy.layers[1].tokens, 73u);
  EXPECT_EQ(occupancy.layers[1].live_bytes, size_t{40 * 2 + 33} * kKvHeads * kHeadDim * 2);

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

  CacheOccupancy occupancy(2);
  occupancy.Add(sequence);
  const size_t live = 288 * (2 * kKvHeads * kHeadDim / 2)  // codes of 4 bits
                      + 288 / 32 * (kKvHeads * kHeadDim * 2 * 4) + 288 * kKvHeads * 4 * 4;
  EXPECT_EQ(occupancy.layers[0].live_bytes, live);
  EXPECT_EQ(occupancy.layers[0].tail_waste_bytes, shared * kBlockBytes - live);
  EXPECT_EQ(occupancy.layers[0].charged_blocks, shared / 2.0);
  EXPECT_EQ(occupancy.layers[1].charged_blocks, shared / 2.0 + tail);
  EXPECT_EQ(occupancy.total.owned_blocks, pool_->used_blocks());
  EXPECT_EQ(occupancy.formats[Merged(kInt4)].blocks, 2 * shared);
  EXPECT_EQ(occupancy.formats[Merged(kInt4)].owned_blocks, shared);
  EXPECT_EQ(occupancy.formats[Merged(kInt4)].tokens, 2u * 288);
  EXPECT_EQ(occupancy.formats[CacheFormat::kBf16].tokens, 5u);

  // What the other layer has grown by is charged to that one alone until it is followed.
  ASSERT_TRUE(low.Extend(0, 256).ok());
  const size_t grown = pool_->used_blocks() - shared - tail;
  EXPECT_EQ(low.occupancy().charged_blocks, shared / 2.0 + grown);
  high.RefreshShared(0, low, 0);
  EXPECT_EQ(low.occupancy().charged_blocks, (shared + grown) / 2.0);
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
  EXPECT_EQ(high.occupancy().charged_blocks, keys / 2.0);
  EXPECT_EQ(high.blocks(), 0u);
  // Formats and the layer agree even before there is a value.
  std::map<CacheFormat, LayerOccupancy> formats;
  high.AddOccupancyByFormat(&formats);
  ASSERT_EQ(formats.size(), 1u);
  EXPECT_EQ(formats[ValuesOnly(int8)].borrowed_blocks, keys);
  EXPECT_EQ(formats[ValuesOnly(int8)].charged_blocks, keys / 2.0);
  EXPECT_EQ(formats[ValuesOnly(int8)].tokens, 0u);

  ASSERT_TRUE(high.Extend(0, 100).ok());
  EXPECT_EQ(high.owned_blocks(), 2u + 1u);
  EXPECT_EQ(high.occupancy().charged_blocks, 3 + keys / 2.0);
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
  std::map<CacheFormat, LayerOccupancy> formats;
  table.AddOccupancyByFormat(&formats);
  ASSERT_EQ(formats.size(), 2u) << "a segment that holds nothing is left out";
  EXPECT_EQ((formats[{Encoding::kInt4, 32}].tokens), 32u);
  EXPECT_EQ((formats[{Encoding::kInt4, 16}].tokens), 64u + 96u);
  table.AddOccupancyByFormat(&formats);
  EXPECT_EQ((formats[{Encoding::kInt4, 16}].tokens), 2 * (64u + 96u)) << "it adds";
}

}  // namespace
}  // namespace ziggurat

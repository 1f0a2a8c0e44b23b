#include "block_manager/cache_format.h"

#include <gtest/gtest.h>

namespace ziggurat {
namespace {

CacheGeometry Geometry(int kv_heads, int head_dim) {
  return {4, kv_heads, head_dim, CacheGeometry::DefaultBlockBytes(kv_heads, head_dim)};
}

// architecture.md, section 1: blocks of 64·G·D bytes.
TEST(CacheFormatTest, DefaultBlockHolds16TokensOfBf16And8OfF32And32OfBf16Values) {
  for (const int kv_heads : {1, 2, 4, 8, 32}) {
    for (const int head_dim : {8, 16, 32, 64, 80, 96, 128, 256}) {
      const CacheGeometry geometry = Geometry(kv_heads, head_dim);
      ASSERT_TRUE(geometry.Validate().ok()) << geometry.Validate();
      EXPECT_EQ(geometry.SlotsPerBlock(CacheFormat::kBf16, kv_heads), 16);
      EXPECT_EQ(geometry.SlotsPerBlock(CacheFormat::kF32, kv_heads), 8);
      EXPECT_EQ(geometry.SlotsPerBlock(CacheFormat::kBf16Values, kv_heads), 32);
      EXPECT_EQ(geometry.SlotsPerBlock(CacheFormat::kF32Values, kv_heads), 16);
    }
  }
}

TEST(CacheFormatTest, BlockOfOneHeadHoldsGTimesTheSlots) {
  const CacheGeometry geometry = Geometry(8, 64);
  EXPECT_EQ(geometry.SlotsPerBlock(CacheFormat::kBf16, 1), 16 * 8);
  EXPECT_EQ(geometry.SlotsPerBlock(CacheFormat::kF32, 1), 8 * 8);
  EXPECT_EQ(geometry.SlotsPerBlock(CacheFormat::kBf16Values, 1), 32 * 8);
  EXPECT_EQ(geometry.SlotsPerBlock(CacheFormat::kBf16, 2), 16 * 4);
}

TEST(CacheFormatTest, BlocksForRoundsUpToWholeBlocks) {
  const CacheGeometry geometry = Geometry(4, 32);
  EXPECT_EQ(geometry.BlocksFor(CacheFormat::kBf16, 4, 0), 0u);
  EXPECT_EQ(geometry.BlocksFor(CacheFormat::kBf16, 4, 1), 1u);
  EXPECT_EQ(geometry.BlocksFor(CacheFormat::kBf16, 4, 16), 1u);
  EXPECT_EQ(geometry.BlocksFor(CacheFormat::kBf16, 4, 17), 2u);
  EXPECT_EQ(geometry.BlocksFor(CacheFormat::kF32, 4, 17), 3u);
  EXPECT_EQ(geometry.BlocksFor(CacheFormat::kBf16, 1, 64), 1u);
  EXPECT_EQ(geometry.BlocksFor(CacheFormat::kBf16, 1, 65), 2u);
}

// A later format: int4 codes of K and V in groups of 32 tokens, G·D bytes for each token.
TEST(CacheFormatTest, PlaneWithUnitsOfSeveralTokensCountsWholeUnits) {
  const int channels = 4 * 32;
  const size_t block_bytes = 64 * channels;
  const PlaneSpec codes{"codes", 32, size_t{32} * channels};
  EXPECT_EQ(codes.UnitsPerBlock(block_bytes), 2u);
  EXPECT_EQ(codes.BlocksFor(block_bytes, 0), 0u);
  EXPECT_EQ(codes.BlocksFor(block_bytes, 64), 1u);
  EXPECT_EQ(codes.BlocksFor(block_bytes, 65), 2u);
  EXPECT_EQ(codes.LiveBytes(33), 2 * codes.unit_bytes);
}

TEST(CacheFormatTest, PlanesCountBothKeysAndValues) {
  const PlaneList kv = PlanesOf(CacheFormat::kBf16, 3, 10);
  ASSERT_EQ(kv.count, 1);
  EXPECT_EQ(kv.planes[0].unit_bytes, size_t{2} * 3 * 10 * 2);
  EXPECT_EQ(kv.planes[0].LiveBytes(7), size_t{7} * 2 * 3 * 10 * 2);
  EXPECT_EQ(PlanesOf(CacheFormat::kF32Values, 3, 10).planes[0].unit_bytes, size_t{3} * 10 * 4);
}

TEST(CacheFormatTest, ValidateRefusesWhatBlocksCannotHold) {
  EXPECT_TRUE(Geometry(2, 8).Validate().ok());
  const CacheGeometry wrong[] = {
      {0, 2, 8, 1024},        // no layers
      {1, 0, 8, 1024},        // no heads
      {1, 2, 0, 1024},        // no channels
      {1, 2, 7, 64 * 2 * 7},  // odd head size: bf16 keys are stored in pairs of channels
      {1, 2, 8, 0},           // no bytes
      {1, 2, 8, 1000},        // not a multiple of 64
      {1, 2, 8, 64},          // smaller than one f32 token
      {1, 3, 8, 64 * 2 * 8},  // a token of f32 K and V (192 bytes) does not divide 1,024
  };
  for (const CacheGeometry& geometry : wrong) {
    EXPECT_EQ(geometry.Validate().code(), absl::StatusCode::kInvalidArgument)
        << geometry.num_layers << " " << geometry.num_kv_heads << " " << geometry.head_dim << " "
        << geometry.block_bytes;
  }
}

TEST(CacheFormatTest, FormatsOfAnElementTypeAgreeWithIt) {
  for (const ElementType element : {ElementType::kF32, ElementType::kBf16}) {
    EXPECT_EQ(ElementOf(KeyValueFormat(element)), element);
    EXPECT_FALSE(IsValuesOnly(KeyValueFormat(element)));
  }
  EXPECT_EQ(ElementOf(CacheFormat::kBf16Values), ElementType::kBf16);
  EXPECT_TRUE(IsValuesOnly(CacheFormat::kF32Values));
}

}  // namespace
}  // namespace ziggurat

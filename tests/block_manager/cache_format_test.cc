#include "block_manager/cache_format.h"

#include <gtest/gtest.h>

#include "tests/block_manager/format_list.h"

namespace ziggurat {
namespace {

constexpr int kHeadSizes[] = {8, 16, 32, 64, 80, 96, 128, 256};

CacheGeometry Geometry(int kv_heads, int head_dim) {
  return {4, kv_heads, head_dim, CacheGeometry::DefaultBlockBytes(kv_heads, head_dim)};
}

// docs/block_layout.md, the table of units and slots.
TEST(CacheFormatTest, DefaultBlockHoldsTheSlotsOfTheDocumentedTable) {
  for (const int kv_heads : {1, 2, 4, 8, 32}) {
    for (const int head_dim : kHeadSizes) {
      const CacheGeometry geometry = Geometry(kv_heads, head_dim);
      ASSERT_TRUE(geometry.Validate().ok()) << geometry.Validate();
      const auto slots = [&](const CacheFormat& format, PlaneRole role) -> int {
        const PlaneList list = PlanesOf(format, kv_heads, head_dim);
        const PlaneSpec& plane = list.planes[list.Find(role)];
        return static_cast<int>(plane.UnitsPerBlock(geometry.block_bytes)) * plane.tokens_per_unit;
      };
      const auto codes = [&](const CacheFormat& format) {
        EXPECT_EQ(slots(format, PlaneRole::kCodes), geometry.SlotsPerBlock(format, kv_heads));
        return geometry.SlotsPerBlock(format, kv_heads);
      };
      EXPECT_EQ(codes(CacheFormat::kF32), 8);
      EXPECT_EQ(codes(CacheFormat::kBf16), 16);
      EXPECT_EQ(codes({Encoding::kInt8}), 32);
      EXPECT_EQ(codes({Encoding::kFp8}), 32);
      EXPECT_EQ(codes({Encoding::kInt4, 8}), 64);
      EXPECT_EQ(codes({Encoding::kInt2, 8}), 128);
      EXPECT_EQ(codes(CacheFormat::kF32Values), 16);
      EXPECT_EQ(codes(CacheFormat::kBf16Values), 32);
      EXPECT_EQ(codes(ValuesOnly({Encoding::kInt8})), 64);
      EXPECT_EQ(codes(ValuesOnly({Encoding::kInt4, 8})), 128);
      EXPECT_EQ(codes(ValuesOnly({Encoding::kInt2, 8})), 256);
      EXPECT_EQ(codes(Merged(CacheFormat::kBf16)), 16);
      EXPECT_EQ(codes(Scored(CacheFormat::kBf16)), 16);

      const int d = head_dim;
      EXPECT_EQ(slots({Encoding::kInt8}, PlaneRole::kScales), 8 * d);
      EXPECT_EQ(slots({Encoding::kFp8}, PlaneRole::kScales), 8 * d);
      EXPECT_EQ(slots(ValuesOnly({Encoding::kInt8}), PlaneRole::kScales), 16 * d);
      EXPECT_EQ(slots({Encoding::kInt4, 8}, PlaneRole::kScales), 8 * 8);
      EXPECT_EQ(slots({Encoding::kInt2, 8}, PlaneRole::kScales), 8 * 8);
      EXPECT_EQ(slots({Encoding::kInt4, static_cast<uint16_t>(d)}, PlaneRole::kScales), 8 * d);
      EXPECT_EQ(slots(ValuesOnly({Encoding::kInt4, 8}), PlaneRole::kScales), 16 * 8);
      EXPECT_EQ(slots(Merged(CacheFormat::kF32), PlaneRole::kNorms), 4 * d);
      EXPECT_EQ(slots(Scored(CacheFormat::kF32), PlaneRole::kScores), 8 * d);
    }
  }
}

TEST(CacheFormatTest, PlanesAreThoseCountedNumberByNumber) {
  int formats = 0;
  for (const int kv_heads : {1, 2, 3, 5, 8}) {
    for (const int head_dim : kHeadSizes) {
      for (const CacheFormat& format : AllFormats(head_dim)) {
        const PlaneList list = PlanesOf(format, kv_heads, head_dim);
        const auto expected = ExpectedPlanes(format, kv_heads, head_dim);
        ASSERT_EQ(list.count, static_cast<int>(expected.size())) << FormatText(format);
        ASSERT_LE(list.count, kMaxPlanes);
        for (int p = 0; p < list.count; ++p) {
          EXPECT_EQ(list.planes[p].role, expected[p].role) << FormatText(format);
          EXPECT_EQ(list.Find(expected[p].role), p) << FormatText(format);
          EXPECT_EQ(list.planes[p].tokens_per_unit, static_cast<int>(expected[p].tokens))
              << FormatText(format) << " plane " << p;
          EXPECT_EQ(list.planes[p].unit_bytes * 8, expected[p].bits)
              << FormatText(format) << " plane " << p;
        }
        ++formats;
      }
    }
  }
  EXPECT_GT(formats, 1000);
}

TEST(CacheFormatTest, PlanesThatAFormatLacksAreNotFound) {
  const PlaneList plain = PlanesOf(CacheFormat::kBf16, 2, 8);
  EXPECT_EQ(plain.Find(PlaneRole::kScales), -1);
  EXPECT_EQ(plain.Find(PlaneRole::kNorms), -1);
  EXPECT_EQ(plain.Find(PlaneRole::kScores), -1);
  EXPECT_EQ(PlanesOf(Merged({Encoding::kInt8}), 2, 8).Find(PlaneRole::kScores), -1);
  EXPECT_EQ(PlanesOf(Scored({Encoding::kInt8}), 2, 8).Find(PlaneRole::kNorms), -1);
}

TEST(CacheFormatTest, BlockOfOneHeadHoldsGTimesTheSlots) {
  const CacheGeometry geometry = Geometry(8, 64);
  EXPECT_EQ(geometry.SlotsPerBlock(CacheFormat::kBf16, 1), 16 * 8);
  EXPECT_EQ(geometry.SlotsPerBlock(CacheFormat::kF32, 1), 8 * 8);
  EXPECT_EQ(geometry.SlotsPerBlock(CacheFormat::kBf16Values, 1), 32 * 8);
  EXPECT_EQ(geometry.SlotsPerBlock(CacheFormat::kBf16, 2), 16 * 4);
  for (const CacheFormat& format : AllFormats(64)) {
    EXPECT_EQ(geometry.SlotsPerBlock(format, 1), 8 * geometry.SlotsPerBlock(format, 8))
        << FormatText(format);
  }
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
  // Codes 64 a block, scales of 8 groups of 32 a block.
  const CacheFormat int4 = {Encoding::kInt4, 32};
  EXPECT_EQ(geometry.BlocksFor(int4, 4, 1), 2u);
  EXPECT_EQ(geometry.BlocksFor(int4, 4, 64), 2u);
  EXPECT_EQ(geometry.BlocksFor(int4, 4, 65), 3u);
  EXPECT_EQ(geometry.BlocksFor(int4, 4, 256), 4u + 1u);
  EXPECT_EQ(geometry.BlocksFor(int4, 4, 257), 5u + 2u);
  EXPECT_EQ(geometry.BlocksFor(Merged(int4), 4, 257), 5u + 2u + 3u);  // norms 4 * 32 a block
}

TEST(CacheFormatTest, BlocksAndLiveBytesOfEveryPlaneAreThoseOfFillingThem) {
  for (const int kv_heads : {1, 3, 4}) {
    for (const int head_dim : {8, 80, 128}) {
      const CacheGeometry geometry = Geometry(kv_heads, head_dim);
      const size_t bytes = geometry.block_bytes;
      for (const CacheFormat& format : AllFormats(head_dim)) {
        for (const int heads : {1, kv_heads}) {
          const PlaneList list = PlanesOf(format, heads, head_dim);
          const auto expected = ExpectedPlanes(format, heads, head_dim);
          const auto per_block = static_cast<size_t>(geometry.SlotsPerBlock(format, heads));
          for (const size_t slots : {size_t{0}, size_t{1}, per_block - 1, per_block, per_block + 1,
                                     size_t{1000}, size_t{5001}}) {
            size_t blocks = 0;
            for (int p = 0; p < list.count; ++p) {
              blocks += expected[p].BlocksFor(bytes, slots);
              EXPECT_EQ(list.planes[p].BlocksFor(bytes, slots), expected[p].BlocksFor(bytes, slots))
                  << FormatText(format) << " plane " << p << " slots " << slots;
              EXPECT_EQ(list.planes[p].LiveBytes(slots), expected[p].LiveBytes(slots))
                  << FormatText(format) << " plane " << p << " slots " << slots;
              EXPECT_LE(list.planes[p].LiveBytes(slots),
                        expected[p].BlocksFor(bytes, slots) * bytes);
            }
            EXPECT_EQ(geometry.BlocksFor(format, heads, slots), blocks) << FormatText(format);
          }
        }
      }
    }
  }
}

TEST(CacheFormatTest, PlaneWithUnitsOfSeveralTokensCountsWholeUnits) {
  const size_t block_bytes = 64 * 128;
  const PlaneSpec scales{PlaneRole::kScales, 32, block_bytes / 2};
  EXPECT_EQ(scales.UnitsPerBlock(block_bytes), 2u);
  EXPECT_EQ(scales.BlocksFor(block_bytes, 0), 0u);
  EXPECT_EQ(scales.BlocksFor(block_bytes, 64), 1u);
  EXPECT_EQ(scales.BlocksFor(block_bytes, 65), 2u);
  EXPECT_EQ(scales.LiveBytes(33), 2 * scales.unit_bytes);
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
      {0, 2, 8, 1024},              // no layers
      {1, 0, 8, 1024},              // no heads
      {1, 2, 0, 1024},              // no channels
      {1, 2, 7, 64 * 2 * 7},        // odd head size: bf16 keys are stored in pairs of channels
      {1, 2, 8, 0},                 // no bytes
      {1, 2, 8, 1000},              // not a multiple of 64
      {1, 2, 8, 64},                // smaller than one f32 token
      {1, 3, 8, 64 * 2 * 8},        // a token of f32 K and V (192 bytes) does not divide 1,024
      {1, 2, 8, size_t{64} << 30},  // more than a view's 32 bits
  };
  for (const CacheGeometry& geometry : wrong) {
    EXPECT_EQ(geometry.Validate().code(), absl::StatusCode::kInvalidArgument)
        << geometry.num_layers << " " << geometry.num_kv_heads << " " << geometry.head_dim << " "
        << geometry.block_bytes;
  }
}

TEST(CacheFormatTest, CheckFormatTakesEveryFormatOfADefaultBlock) {
  for (const int kv_heads : {1, 2, 3, 8}) {
    for (const int head_dim : kHeadSizes) {
      const CacheGeometry geometry = Geometry(kv_heads, head_dim);
      for (const CacheFormat& format : AllFormats(head_dim)) {
        EXPECT_TRUE(geometry.CheckFormat(format).ok())
            << geometry.CheckFormat(format) << " for " << FormatText(format) << " of " << head_dim;
      }
    }
  }
}

// The message names what is wrong, so that a user can set it right.
TEST(CacheFormatTest, CheckFormatRefusesWhatSegmentsCannotBe) {
  struct Wrong {
    CacheGeometry geometry;
    CacheFormat format;
    const char* message;
  };
  const auto small = Geometry(2, 8);
  const auto odd = Geometry(2, 36);
  const auto usual = Geometry(2, 64);
  const Wrong wrongs[] = {
      {small, {Encoding::kInt2, 8}, "int2 needs a head size that is a multiple of 16, not 8"},
      {odd, {Encoding::kInt4, 4}, "int4 needs a head size that is a multiple of 8, not 36"},
      {Geometry(2, 10), {Encoding::kInt8}, "int8 needs a head size that is a multiple of 4"},
      {Geometry(2, 10), {Encoding::kFp8}, "fp8 needs a head size that is a multiple of 4"},
      {usual, {Encoding::kInt4, 1}, "a quantization group has at least 2 numbers, not 1"},
      {usual, {Encoding::kInt4}, "a quantization group of 0 does not divide the head size 64"},
      {usual, {Encoding::kInt4, 24}, "a quantization group of 24 does not divide the head size 64"},
      {usual, {Encoding::kInt2, 128}, "group of 128 does not divide the head size 64"},
      {usual, {Encoding::kBf16, 32}, "bf16 has no groups, and so none of 32"},
      {usual, {Encoding::kInt8, 32}, "int8 has no groups, and so none of 32"},
      {usual, ValuesOnly(Merged(CacheFormat::kBf16)), "exclude each other"},
      {usual, ValuesOnly(Scored(CacheFormat::kBf16)), "exclude each other"},
      {usual, Merged(Scored(CacheFormat::kBf16)), "exclude each other"},
      {{1, 2, 96, 384},
       {Encoding::kInt4, 96},
       "a block of 384 bytes holds no whole number of units of 1536 bytes (int4, plane scales)"},
      {{1, 3, 4, 128}, {Encoding::kInt8}, "units of 24 bytes (int8, plane codes)"},
  };
  for (const Wrong& wrong : wrongs) {
    const absl::Status status = wrong.geometry.CheckFormat(wrong.format);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << FormatText(wrong.format);
    EXPECT_NE(status.message().find(wrong.message), absl::string_view::npos)
        << status << "\nshould say: " << wrong.message;
  }
}

// Over block sizes and formats that fit and that do not, and flags and groups of no meaning.
TEST(CacheFormatTest, CheckFormatAgreesWithTheUnitsOfEveryPlane) {
  int taken = 0, refused = 0;
  for (const int kv_heads : {1, 3}) {
    for (const int head_dim : {4, 8, 10, 16, 24, 32}) {
      for (size_t block_bytes = 64; block_bytes <= 6144; block_bytes += 64) {
        const CacheGeometry geometry{1, kv_heads, head_dim, block_bytes};
        for (const Encoding encoding : kEncodings) {
          for (const uint16_t group : {0, 1, 2, 3, 8, 16, 48}) {
            for (int flags = 0; flags < 8; ++flags) {
              CacheFormat format{encoding, group};
              format.values_only = flags % 2 != 0;
              format.merged = flags / 2 % 2 != 0;
              format.scored = flags / 4 != 0;
              const bool has_meaning = flags == 0 || flags == 1 || flags == 2 || flags == 4;
              const bool group_fits =
                  HasGroups(encoding) ? group > 1 && head_dim % group == 0 : group == 0;
              bool fits = has_meaning && group_fits && head_dim * ChannelBits(encoding) % 32 == 0;
              if (fits) {
                for (const ExpectedPlane& plane : ExpectedPlanes(format, kv_heads, head_dim)) {
                  fits = fits && block_bytes * 8 % plane.bits == 0;
                }
              }
              ASSERT_EQ(geometry.CheckFormat(format).ok(), fits)
                  << FormatText(format) << ", " << kv_heads << " heads of " << head_dim
                  << ", blocks of " << block_bytes << ": " << geometry.CheckFormat(format);
              ++(fits ? taken : refused);
            }
          }
        }
      }
    }
  }
  EXPECT_GT(taken, 1000);
  EXPECT_GT(refused, 1000);
}

TEST(CacheFormatTest, NamesSayEncodingAndKind) {
  EXPECT_EQ(CacheFormatName(CacheFormat::kBf16), "bf16");
  EXPECT_EQ(CacheFormatName(CacheFormat::kF32Values), "f32-values");
  EXPECT_EQ(CacheFormatName({Encoding::kInt4, 32}), "int4");
  EXPECT_EQ(CacheFormatName(Merged({Encoding::kInt2, 16})), "int2-merged");
  EXPECT_EQ(CacheFormatName(Scored({Encoding::kFp8})), "fp8-scored");
  EXPECT_EQ(CacheFormatName(ValuesOnly({Encoding::kInt8})), "int8-values");
}

TEST(CacheFormatTest, FormatsOfAnElementTypeAgreeWithIt) {
  for (const ElementType element : {ElementType::kF32, ElementType::kBf16}) {
    EXPECT_EQ(EncodingBits(KeyValueFormat(element).encoding) / 8,
              static_cast<int>(ElementBytes(element)));
    EXPECT_TRUE(IsPlain(KeyValueFormat(element).encoding));
    EXPECT_FALSE(KeyValueFormat(element).values_only);
  }
  EXPECT_EQ(KeyValueFormat(ElementType::kF32), CacheFormat::kF32);
  EXPECT_EQ(KeyValueFormat(ElementType::kBf16), CacheFormat::kBf16);
  EXPECT_EQ(CacheFormat::kBf16Values, ValuesOnly(CacheFormat::kBf16));
  EXPECT_EQ(CacheFormat::kF32Values, ValuesOnly(CacheFormat::kF32));
}

// One kind each.
TEST(CacheFormatTest, EncodingsArePlainPerTokenOrGrouped) {
  for (const Encoding encoding : kEncodings) {
    EXPECT_EQ(EncodingBits(encoding), static_cast<int>(ChannelBits(encoding)));
    EXPECT_EQ(IsGrouped(encoding), HasGroups(encoding));
    EXPECT_EQ(IsPerToken(encoding), HasTokenScales(encoding));
    EXPECT_EQ(IsPlain(encoding), !HasGroups(encoding) && !HasTokenScales(encoding));
  }
}

}  // namespace
}  // namespace ziggurat

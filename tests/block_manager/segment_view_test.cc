// Offsets and strides of every view against the packed model, number by number.
#include "block_manager/segment_view.h"

#include <gtest/gtest.h>

#include "block_manager/layer_block_table.h"
#include "tests/block_manager/block_layout_model.h"
#include "tests/block_manager/table_fixture.h"

namespace ziggurat {
namespace {

/// Where a view says that a number lies, by the words of segment_view.h.
struct Place {
  BlockId block = 0;
  size_t bit = 0;  ///< inside the block
  bool operator==(const Place&) const = default;
};

size_t AreaBit(const PlaneView& plane, int head) {
  return 8 * (static_cast<size_t>(head) * plane.head_stride_bytes + plane.offset_bytes);
}

/// `slot` counts from the segment's first.
Place PlaceOf(const SegmentView& lower, const SegmentView& upper, const Datum& datum, int slot,
              int head_dim) {
  const size_t bits = ChannelBits(lower.encoding), cell = 32 / bits;
  const auto channel = static_cast<size_t>(datum.channel);
  const auto in = [&](const PlaneView& plane, size_t bit_of_area) {
    return Place{plane.blocks[slot / plane.slots_per_block],
                 AreaBit(plane, datum.head) + bit_of_area};
  };
  const auto of_token = [&](const PlaneView& plane) {
    return in(plane, 32 * (slot % plane.slots_per_block));
  };
  const auto of_group = [&](const PlaneView& plane, size_t index) {
    const size_t unit = slot % plane.slots_per_block / lower.group;
    return in(plane, 8 * unit * plane.unit_bytes + 16 * index);
  };
  const bool grouped = HasGroups(lower.encoding);
  const size_t d = head_dim;
  // values: [group][D / group]
  const size_t of_value =
      grouped ? slot % lower.group * (d / lower.group) + channel / lower.group : 0;
  switch (datum.part) {
    case Part::kKey:
      return in(lower.keys, 32 * (channel / cell * lower.keys.slots_per_block +
                                  slot % lower.keys.slots_per_block) +
                                bits * (channel % cell));
    case Part::kValue:
      return in(lower.values, bits * (slot % lower.values.slots_per_block * d + channel));
    case Part::kKeyScale:
      return grouped ? of_group(lower.key_scales, channel) : of_token(lower.key_scales);
    case Part::kKeyZero:
      return of_group(lower.key_scales, d + channel);
    case Part::kValueScale:
      return grouped ? of_group(lower.value_scales, of_value) : of_token(lower.value_scales);
    case Part::kValueZero:
      return of_group(lower.value_scales, d + of_value);
    case Part::kLowerKeyNorm:
      return of_token(lower.key_norms);
    case Part::kLowerValueNorm:
      return of_token(lower.value_norms);
    case Part::kUpperKeyNorm:
      return of_token(upper.key_norms);
    case Part::kUpperValueNorm:
      return of_token(upper.value_norms);
    case Part::kScore:
      return of_token(lower.scores);
    case Part::kPosition:
      return of_token(lower.positions);
  }
  return {};
}

/// The view that a plane's blocks stand in.
const PlaneView& AnyViewOf(const SegmentView& view, PlaneRole role) {
  switch (role) {
    case PlaneRole::kCodes:
      return view.values;
    case PlaneRole::kScales:
      return view.value_scales;
    case PlaneRole::kNorms:
      return view.key_norms;
    case PlaneRole::kScores:
      return view.scores;
  }
  return view.values;
}

/// Compares every number of two blocks of every plane; returns how many there were.
size_t CompareWithTheModel(const CacheFormat& format, const SegmentView& lower,
                           const SegmentView& upper, int heads, int head_dim, size_t block_bytes) {
  size_t numbers = 0, wrong = 0;
  for (const ExpectedPlane& plane : ExpectedPlanes(format, heads, head_dim)) {
    const PlaneView& view = AnyViewOf(lower, plane.role);
    const size_t slots = plane.slots_per_block(block_bytes);
    EXPECT_EQ(view.slots_per_block, slots);
    for (size_t block = 0; block < 2; ++block) {
      std::vector<bool> taken(8 * block_bytes);
      PackBlock(format, plane, heads, head_dim, block_bytes,
                [&](const Datum& datum, size_t bit, size_t bits) {
                  ++numbers;
                  const int slot = static_cast<int>(block * slots) + datum.slot;
                  const Place place = PlaceOf(lower, upper, datum, slot, head_dim);
                  bool is_right = place == Place{view.blocks[block], bit};
                  for (size_t i = place.bit; is_right && i < place.bit + bits; ++i) {
                    is_right = i < taken.size() && !taken[i];
                    if (is_right) taken[i] = true;
                  }
                  if (!is_right && ++wrong <= 3) {
                    ADD_FAILURE() << FormatText(format) << ", " << heads << " heads of " << head_dim
                                  << ": " << kPartNames[static_cast<int>(datum.part)] << " of head "
                                  << datum.head << ", slot " << slot << ", channel "
                                  << datum.channel << " is at bit " << bit << " of block "
                                  << view.blocks[block] << ", not at bit " << place.bit
                                  << " of block " << place.block;
                  }
                });
    }
  }
  return numbers;
}

class SegmentViewTest : public ::testing::TestWithParam<int> {};

// Groups of heads that do and do not divide the model's; formats of all kinds. That two numbers
// never share a bit and that all lie inside the block is seen on the way.
TEST_P(SegmentViewTest, PlacesEveryNumberWhereTheDocumentedLayoutHasIt) {
  const int head_dim = GetParam();
  size_t numbers = 0;
  for (const int kv_heads : {1, 3, 4}) {
    const CacheGeometry geometry{2, kv_heads, head_dim,
                                 CacheGeometry::DefaultBlockBytes(kv_heads, head_dim)};
    ASSERT_TRUE(geometry.Validate().ok()) << geometry.Validate();
    const auto pool = *BlockPool::Create(1 << 16, geometry.block_bytes);
    for (const CacheFormat& format : AllFormats(head_dim)) {
      for (int heads = 1; heads <= kv_heads; ++heads) {
        LayerBlockTable low(pool.get(), &geometry), high(pool.get(), &geometry);
        const int first = kv_heads - heads;
        size_t slots = 0;  // two whole blocks of the plane that holds most
        for (const ExpectedPlane& plane : ExpectedPlanes(format, heads, head_dim)) {
          slots = std::max(slots, 2 * plane.slots_per_block(geometry.block_bytes));
        }
        const SegmentOptions options{format, first, heads};
        SegmentView lower, upper;
        if (format.values_only) {
          CacheFormat keys = format;
          keys.values_only = false;
          ASSERT_TRUE(
              high.Extend(high.AddSegment({keys, first, heads}), static_cast<int>(slots)).ok());
          ASSERT_TRUE(
              low.Extend(low.AddValuesSegment(options, high, 0), static_cast<int>(slots)).ok());
          lower = upper = low.view()[0];
        } else {
          ASSERT_TRUE(low.Extend(low.AddSegment(options), static_cast<int>(slots)).ok());
          high.ShareSegment(low, 0);
          lower = low.view()[0];
          upper = high.view()[0];
        }
        EXPECT_EQ(lower.first_kv_head, first);
        EXPECT_EQ(lower.num_kv_heads, heads);
        EXPECT_EQ(lower.encoding, format.encoding);
        EXPECT_EQ(lower.group, format.group);
        numbers += CompareWithTheModel(format, lower, upper, heads, head_dim, geometry.block_bytes);
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_GT(numbers, 100000u);
}

INSTANTIATE_TEST_SUITE_P(HeadSizes, SegmentViewTest, ::testing::Values(8, 20, 32, 80));

using BorrowedViewTest = TableFixture;

// The heads of a borrower are some of the lender's; their keys, scales and zeros are where the
// lender has them.
TEST_F(BorrowedViewTest, KeysOfABorrowerAreThoseOfTheSameHeadsOfTheLender) {
  for (CacheFormat format : AllFormats(kHeadDim)) {
    if (format.merged || format.scored || format.values_only) continue;
    for (int first = 0; first < 3; ++first) {
      for (int heads = 1; first + heads <= 3; ++heads) {
        LayerBlockTable low = MakeTable(), high = MakeTable();
        // The lender has heads 1, 2 and 3 of the model.
        ASSERT_TRUE(low.Extend(low.AddSegment({format, 1, 3}), 300).ok());
        high.AddValuesSegment({ValuesOnly(format), 1 + first, heads}, low, 0);
        ASSERT_TRUE(high.Extend(0, 300).ok());
        const SegmentView& theirs = low.view()[0];
        const SegmentView& ours = high.view()[0];
        EXPECT_EQ(ours.use, SegmentUse::kBorrowedKeys);
        EXPECT_EQ(theirs.use, SegmentUse::kDistantKeys);
        for (const auto plane : {&SegmentView::keys, &SegmentView::key_scales}) {
          const PlaneView& a = ours.*plane;
          const PlaneView& b = theirs.*plane;
          ASSERT_EQ(a.slots_per_block, b.slots_per_block);
          if (b.slots_per_block == 0) continue;
          EXPECT_EQ(Blocks(a, 300), Blocks(b, 300)) << FormatText(format);
          EXPECT_EQ(a.unit_bytes, b.unit_bytes);
          for (int head = 0; head < heads; ++head) {
            EXPECT_EQ(AreaBit(a, head), AreaBit(b, first + head)) << FormatText(format);
          }
        }
      }
    }
  }
}

TEST_F(BorrowedViewTest, BothLayersOfAMergedPairSeeAllButTheNormsAlike) {
  for (const Encoding encoding : {Encoding::kBf16, Encoding::kInt8, Encoding::kInt4}) {
    const CacheFormat format = Merged({encoding, static_cast<uint16_t>(HasGroups(encoding) * 32)});
    LayerBlockTable low = MakeTable(), high = MakeTable();
    ASSERT_TRUE(low.Extend(low.AddSegment({.format = format}), 300).ok());
    high.ShareSegment(low, 0);
    const SegmentView& lower = low.view()[0];
    const SegmentView& upper = high.view()[0];
    for (const NamedPlane& named : kPlanesOfAView) {
      const PlaneView& a = lower.*named.plane;
      const PlaneView& b = upper.*named.plane;
      EXPECT_EQ(Blocks(a, 300), Blocks(b, 300)) << named.name;
      EXPECT_EQ(a.slots_per_block, b.slots_per_block) << named.name;
      EXPECT_EQ(a.head_stride_bytes, b.head_stride_bytes) << named.name;
      EXPECT_EQ(a.unit_bytes, b.unit_bytes) << named.name;
      const bool is_norm =
          named.plane == &SegmentView::key_norms || named.plane == &SegmentView::value_norms;
      // A head: K and V of the lower layer, K and V of the upper one, 4 bytes a slot each.
      const uint32_t expected = a.offset_bytes + (is_norm ? 2 * 4 * a.slots_per_block : 0);
      EXPECT_EQ(b.offset_bytes, expected) << named.name;
    }
  }
}

}  // namespace
}  // namespace ziggurat

// The segments of these tests are those that the block tables make.

#include "block_manager/sequence_cache.h"
#include "tests/attention/test_cache.h"

namespace ziggurat {
namespace {

void ExpectSamePlane(const PlaneView& ours, const PlaneView& theirs, const std::string& what) {
  ASSERT_EQ(ours.blocks == nullptr, theirs.blocks == nullptr) << what;
  if (ours.blocks == nullptr) return;
  EXPECT_EQ(ours.slots_per_block, theirs.slots_per_block) << what;
  EXPECT_EQ(ours.head_stride_bytes, theirs.head_stride_bytes) << what;
  EXPECT_EQ(ours.offset_bytes, theirs.offset_bytes) << what;
  EXPECT_EQ(ours.unit_bytes, theirs.unit_bytes) << what;
}

void ExpectSameView(const SegmentView& ours, const SegmentView& theirs, const std::string& what) {
  EXPECT_EQ(ours.encoding, theirs.encoding) << what;
  EXPECT_EQ(ours.group, theirs.group) << what;
  EXPECT_EQ(ours.first_kv_head, theirs.first_kv_head) << what;
  EXPECT_EQ(ours.num_kv_heads, theirs.num_kv_heads) << what;
  EXPECT_EQ(ours.num_slots, theirs.num_slots) << what;
  ExpectSamePlane(ours.keys, theirs.keys, what + " keys");
  ExpectSamePlane(ours.values, theirs.values, what + " values");
  ExpectSamePlane(ours.key_scales, theirs.key_scales, what + " key scales");
  ExpectSamePlane(ours.value_scales, theirs.value_scales, what + " value scales");
  ExpectSamePlane(ours.key_norms, theirs.key_norms, what + " key norms");
  ExpectSamePlane(ours.value_norms, theirs.value_norms, what + " value norms");
  ExpectSamePlane(ours.scores, theirs.scores, what + " scores");
  ExpectSamePlane(ours.positions, theirs.positions, what + " positions");
}

TEST(SegmentLayout, OfTheseTestsIsThatOfTheBlockTables) {
  constexpr int kHeads = 4, kSlots = 300;
  for (int head_dim : {8, 16, 80, 128}) {
    const CacheGeometry geometry{2, kHeads, head_dim,
                                 CacheGeometry::DefaultBlockBytes(kHeads, head_dim)};
    ASSERT_TRUE(geometry.Validate().ok());
    auto blocks = *BlockPool::Create(200, geometry.block_bytes);
    for (const CacheFormat& base : EncodedFormats(head_dim)) {
      for (const CacheFormat& format : {base, Merged(base), Scored(base)}) {
        if (!geometry.CheckFormat(format).ok()) continue;
        for (int heads : {kHeads, 2, 1}) {
          const std::string what = Name(format) + " D=" + std::to_string(head_dim);
          SequenceCache cache(blocks.get(), &geometry);
          TestPool pool(geometry.block_bytes, 100);
          const int first = heads == kHeads ? 0 : 1;
          const int segment = cache.layer(0).AddSegment({format, first, heads});
          ASSERT_TRUE(cache.layer(0).Extend(segment, kSlots).ok());
          const SegmentView ours = TakeSegment(pool, format, first, heads, head_dim, kSlots);
          ExpectSameView(ours, cache.layer(0).view()[0], what);
          if (format.merged) {
            cache.layer(1).ShareSegment(cache.layer(0), segment);
            ExpectSameView(UpperView(ours), cache.layer(1).view()[0], what + " upper");
          } else if (!format.scored && heads == 2) {
            cache.layer(1).AddValuesSegment({ValuesOnly(format), 2, 1}, cache.layer(0), segment);
            ASSERT_TRUE(cache.layer(1).Extend(0, kSlots).ok());
            const SegmentView values = TakeValuesSegment(pool, ours, head_dim, 2, 1);
            ExpectSameView(values, cache.layer(1).view()[0], what + " values only");
            EXPECT_EQ(cache.layer(1).view()[0].use, values.use);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace ziggurat

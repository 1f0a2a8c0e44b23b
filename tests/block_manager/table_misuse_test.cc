// Misuse of a table aborts, in every build, with a word on what was wrong.
#include <gtest/gtest.h>

#include "tests/block_manager/table_fixture.h"

namespace ziggurat {
namespace {

using LayerBlockTableDeathTest = TableFixture;

TEST_F(LayerBlockTableDeathTest, SegmentsThatCannotBe) {
  LayerBlockTable table = MakeTable();
  EXPECT_DEATH(table.AddSegment({.first_kv_head = 4, .num_kv_heads = 1}), "covers KV heads");
  EXPECT_DEATH(table.AddSegment({.first_kv_head = -1, .num_kv_heads = 1}), "covers KV heads");
  EXPECT_DEATH(table.AddSegment({.first_kv_head = 1}), "starts at head 0");
  EXPECT_DEATH(table.AddSegment({.ring = RingShape{4, 0}}), "at least one recent slot");
  EXPECT_DEATH(table.AddSegment({.ring = RingShape{-1, 4}}), "at least one recent slot");
  EXPECT_DEATH(table.AddSegment({.format = CacheFormat::kBf16Values}), "needs keys");
  EXPECT_DEATH(table.AddSegment({.format = kInt4, .ring = RingShape{4, 60}}), "slots one by one");
  EXPECT_DEATH(table.AddSegment({.format = {Encoding::kInt4}}), "suits the geometry");
  EXPECT_DEATH(table.AddSegment({.format = {Encoding::kInt4, 24}}), "suits the geometry");
  EXPECT_DEATH(table.AddSegment({.format = Merged(Scored(CacheFormat::kBf16))}),
               "suits the geometry");
}

TEST_F(LayerBlockTableDeathTest, GrowthPastWhatThereIs) {
  LayerBlockTable low = MakeTable(), high = MakeTable();
  ASSERT_TRUE(low.Extend(low.AddSegment({.format = CacheFormat::kBf16}), 20).ok());
  const int ring = high.AddSegment({.ring = RingShape{4, 6}});
  EXPECT_DEATH(static_cast<void>(high.Extend(ring, 11)), "past sinks \\+ recent");
  EXPECT_DEATH(static_cast<void>(high.Extend(ring, -1)), "no negative number");
  const int values = high.AddValuesSegment({.format = CacheFormat::kBf16Values}, low, 0);
  EXPECT_DEATH(static_cast<void>(high.Extend(values, 21)), "past its keys");
  ASSERT_TRUE(high.Extend(values, 20).ok());
  EXPECT_DEATH(static_cast<void>(high.AppendSlot(values)), "past its keys");
  EXPECT_DEATH(low.AppendSlots(0, 13), "more slots appended than there is room");
}

TEST_F(LayerBlockTableDeathTest, SharingOfWhatIsNotShared) {
  LayerBlockTable low = MakeTable(), high = MakeTable();
  const auto other_pool = *BlockPool::Create(8, kBlockBytes);
  LayerBlockTable elsewhere(other_pool.get(), &geometry_);
  ASSERT_TRUE(low.Extend(low.AddSegment({}), 20).ok());
  const int ring = low.AddSegment({.ring = RingShape{4, 6}});
  EXPECT_DEATH(low.ShareSegment(low, 0), "not within one");
  EXPECT_DEATH(elsewhere.ShareSegment(low, 0), "share its pool");
  EXPECT_DEATH(high.ShareSegment(low, ring), "overwrites, and is not shared");
  const int values = high.AddValuesSegment({.format = CacheFormat::kBf16Values}, low, 0);
  EXPECT_DEATH(low.ShareSegment(high, values), "values alone are not shared");
}

TEST_F(LayerBlockTableDeathTest, TheSideThatRefersGrowsShrinksAndWrapsOnlyWithItsOwner) {
  LayerBlockTable low = MakeTable(), high = MakeTable();
  ASSERT_TRUE(low.Extend(low.AddSegment({.format = Merged(kInt4)}), 64).ok());
  const int bf16 = low.AddSegment({});
  ASSERT_TRUE(low.Extend(bf16, 20).ok());
  const int shared = high.ShareSegment(low, bf16);
  EXPECT_DEATH(static_cast<void>(high.AppendSlot(shared)), "may not grow");
  EXPECT_DEATH(static_cast<void>(high.Extend(shared, 1)), "may not grow");
  EXPECT_DEATH(high.Truncate(shared, 0), "on the side that owns it");
  EXPECT_DEATH(high.MakeRing(shared, {4, 100}), "is not shared");
  EXPECT_DEATH(low.MakeRing(bf16, {4, 100}), "is not shared");
  // The owner may: that is what RefreshShared is for.
  EXPECT_EQ(low.AppendSlot(bf16).value(), 20);
  EXPECT_DEATH(low.RefreshShared(bf16, high, shared), "only a segment that refers");
  // Another segment than the one that was shared.
  EXPECT_DEATH(high.RefreshShared(shared, low, 0), "refreshed from the segment");
  // The owner gave blocks up and took others before the other side followed.
  low.Truncate(bf16, 0);
  LayerBlockTable thief = MakeTable();
  ASSERT_TRUE(thief.Extend(thief.AddSegment({}), 200).ok());
  ASSERT_TRUE(low.Extend(bf16, 40).ok());
  EXPECT_DEATH(high.RefreshShared(shared, low, bf16), "refreshed from the segment");
}

TEST_F(LayerBlockTableDeathTest, KeysOfAnotherKind) {
  LayerBlockTable low = MakeTable(), high = MakeTable();
  ASSERT_TRUE(low.Extend(low.AddSegment({.format = CacheFormat::kBf16}), 20).ok());
  const int merged = low.AddSegment({.format = Merged(CacheFormat::kBf16)});
  const int groups = low.AddSegment({.format = kInt4});
  const int head = low.AddSegment({.first_kv_head = 1, .num_kv_heads = 2});
  const CacheFormat values = CacheFormat::kBf16Values;
  EXPECT_DEATH(high.AddValuesSegment({.format = CacheFormat::kF32Values}, low, 0), "one encoding");
  EXPECT_DEATH(high.AddValuesSegment({.format = ValuesOnly({Encoding::kInt4, 16})}, low, groups),
               "one encoding");
  EXPECT_DEATH(high.AddValuesSegment({.format = CacheFormat::kBf16}, low, 0), "is values-only");
  EXPECT_DEATH(high.AddValuesSegment({.format = values}, low, merged), "without their norms");
  EXPECT_DEATH(low.AddValuesSegment({.format = values}, low, 0), "another layer's keys");
  EXPECT_DEATH(high.AddValuesSegment({.format = values}, low, head), "covers these KV heads");
  EXPECT_DEATH(high.AddValuesSegment({.format = values, .num_kv_heads = 1}, low, head),
               "covers these KV heads");
  const int borrower =
      high.AddValuesSegment({.format = values, .first_kv_head = 2, .num_kv_heads = 1}, low, head);
  LayerBlockTable third = MakeTable();
  EXPECT_DEATH(third.AddValuesSegment({.format = values, .first_kv_head = 2, .num_kv_heads = 1},
                                      high, borrower),
               "stores keys");
  EXPECT_DEATH(low.RefreshKeys(0, high, borrower), "only a values-only segment");
}

TEST_F(LayerBlockTableDeathTest, ShrinkingOfWhatOthersRead) {
  LayerBlockTable low = MakeTable(), high = MakeTable(), third = MakeTable();
  ASSERT_TRUE(low.Extend(low.AddSegment({}), 40).ok());
  EXPECT_DEATH(low.Truncate(0, 41), "what it holds");
  EXPECT_DEATH(low.Truncate(0, -1), "what it holds");
  high.ShareSegment(low, 0);
  third.AddValuesSegment({.format = CacheFormat::kBf16Values}, high, 0);
  low.Truncate(0, 30);
  EXPECT_DEATH(high.RefreshShared(0, low, 0), "keys that others read do not shrink");
  third.AddValuesSegment({.format = CacheFormat::kBf16Values}, low, 0);
  EXPECT_DEATH(low.Truncate(0, 20), "keys that others read do not shrink");
}

TEST_F(LayerBlockTableDeathTest, RingsThatHoldLessThanTheSegmentOrHaveWrapped) {
  LayerBlockTable table = MakeTable();
  ASSERT_TRUE(table.Extend(table.AddSegment({}), 20).ok());
  EXPECT_DEATH(table.MakeRing(0, {4, 15}), "holds what the segment holds");
  EXPECT_DEATH(table.MakeRing(0, {20, 0}), "holds what the segment holds");
  EXPECT_DEATH(table.MakeRing(0, {-1, 30}), "holds what the segment holds");
  table.MakeRing(0, {4, 16});
  EXPECT_DEATH(table.MakeRing(0, {4, 30}), "holds what the segment holds");
  EXPECT_DEATH(static_cast<void>(table.Extend(0, 1)), "past sinks \\+ recent");
  EXPECT_EQ(table.AppendSlot(0).value(), 4);
  EXPECT_DEATH(table.Truncate(0, 10), "has wrapped");
  const int groups = table.AddSegment({.format = kInt4});
  EXPECT_DEATH(table.MakeRing(groups, {4, 60}), "slots one by one");
}

}  // namespace
}  // namespace ziggurat

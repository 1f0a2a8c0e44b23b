// Writes of a decode step: each item's token where its targets say, also over the least attended.

#include "attention/reference/stored_segment.h"
#include "tests/attention/test_cache.h"

namespace ziggurat {
namespace {

using reference::Side;
using reference::StoredSegment;

const float* Floats(const Tensor& tensor) { return static_cast<const float*>(tensor.data()); }

/// Every format whose slots can be written one at a time.
std::vector<CacheFormat> SlotFormats(int head_dim) {
  std::vector<CacheFormat> formats;
  for (const CacheFormat& format : EncodedFormats(head_dim)) {
    if (IsGrouped(format.encoding)) continue;
    formats.push_back(format);
    formats.push_back(Scored(format));
  }
  return formats;
}

class StepWrites : public testing::TestWithParam<int> {
 protected:
  int head_dim() const { return GetParam(); }
};

TEST_P(StepWrites, PutEachHeadWhereItsTargetSaysAndNothingElse) {
  constexpr int kHeads = 3, kItems = 9;
  const AttentionShape shape = Shape(2 * kHeads, kHeads, head_dim());
  const Tensor k = RandomTensor(ElementType::kF32, kItems * kHeads * head_dim(), 1);
  const Tensor v = RandomTensor(ElementType::kF32, kItems * kHeads * head_dim(), 2);
  for (const CacheFormat& format : SlotFormats(head_dim())) {
    // Head groups: heads 0 and 1 in one segment, head 2 in another, and one that is not written.
    std::vector<SegmentSpec> specs;
    for (int i = 0; i < kItems; ++i) {
      specs.push_back({format, 20 + i, 0, 2});
      specs.push_back({CacheFormat::kBf16, 5});
      specs.push_back({format, 33 + i, 2, 1});
    }
    TestCache cache(shape, specs);
    const std::vector<std::byte> before = cache.pool.bytes();
    std::vector<std::vector<TokenTarget>> targets;
    std::vector<DecodeItem> items;
    for (int i = 0; i < kItems; ++i) targets.push_back({{0, 19 - i}, {2, 32 + i}});
    for (int i = 0; i < kItems; ++i) {
      DecodeItem item;
      item.segments = absl::MakeConstSpan(cache.segments).subspan(size_t{3} * i, 3);
      item.targets = targets[i];
      item.position = 1000 + i;
      items.push_back(item);
    }
    // The same tokens, written one by one through WriteTokens.
    const auto reference = MakeReferenceBackend();
    for (int i = 0; i < kItems; ++i) {
      for (const TokenTarget& target : targets[i]) {
        const SegmentView& s = items[i].segments[target.segment];
        reference->WriteTokens(shape, {ElementType::kF32, k.data(), v.data()},
                               TokenChoice::From(i, 1), cache.pool.view(), s, target.slot);
        for (int head = s.first_kv_head; head < s.first_kv_head + s.num_kv_heads; ++head) {
          if (!format.scored) continue;
          const StoredSegment stored(cache.pool.view(), s, head_dim());
          stored.SetScore(head, target.slot, 0);
          stored.SetPosition(head, target.slot, 1000 + i);
        }
      }
    }
    const std::vector<std::byte> expected = cache.pool.bytes();
    for (auto& backend : AllBackends()) {
      cache.pool.Restore(before);
      backend->WriteStep(shape, items, Floats(k), Floats(v), cache.pool.view());
      EXPECT_TRUE(cache.pool.bytes() == expected) << Name(format) << " " << backend->name();
    }
  }
}

/// A full scored segment whose heads have their own scores and positions.
struct HeavyCache {
  HeavyCache(const AttentionShape& shape, const CacheFormat& format, int slots)
      : cache(shape, {{Scored(format), slots}}),
        stored(cache.pool.view(), cache.segments[0], shape.head_dim) {}
  TestCache cache;
  StoredSegment stored;
};

/// The token at position 140 overwrites `slot` of a cache of one head, whose last `recent` tokens
/// stay.
void ExpectOverwritten(const AttentionShape& shape, HeavyCache& heavy, int recent, int slot) {
  const Tensor k = RandomTensor(ElementType::kF32, shape.head_dim, 1);
  const TokenTarget target{0, TokenTarget::kLowestScore};
  DecodeItem item;
  item.segments = heavy.cache.segments;
  item.targets = {&target, 1};
  item.position = 140;
  item.score_recent = recent;
  const std::vector<std::byte> before = heavy.cache.pool.bytes();
  for (auto& backend : AllBackends()) {
    heavy.cache.pool.Restore(before);
    backend->WriteStep(shape, {&item, 1}, Floats(k), Floats(k), heavy.cache.pool.view());
    EXPECT_EQ(heavy.stored.Position(0, slot), item.position) << backend->name();
  }
}

TEST_P(StepWrites, OverwriteTheLeastAttendedTokenOutsideTheRecentOnes) {
  constexpr int kHeads = 2, kSlots = 300, kPosition = 1000, kRecent = 400;
  const AttentionShape shape = Shape(kHeads, kHeads, head_dim());
  const Tensor k = RandomTensor(ElementType::kF32, kHeads * head_dim(), 1);
  const Tensor v = RandomTensor(ElementType::kF32, kHeads * head_dim(), 2);
  for (const CacheFormat& format : {CacheFormat::kBf16, CacheFormat{Encoding::kInt8}}) {
    HeavyCache heavy(shape, format, kSlots);
    const StoredSegment& s = heavy.stored;
    std::mt19937 random(3);
    for (int head = 0; head < kHeads; ++head) {
      for (int slot = 0; slot < kSlots; ++slot) {
        s.SetScore(head, slot, static_cast<float>(1 + random() % 100));
        s.SetPosition(head, slot, kPosition - kRecent - 1 - slot);
      }
    }
    // Head 0: slots 50 and 70 are the least attended, and equal; slot 20 less, but too recent by
    // one. Head 1: the last slot, at the very limit.
    s.SetScore(0, 0, NAN);
    s.SetScore(0, 50, 0.5f);
    s.SetScore(0, 70, 0.5f);
    s.SetScore(0, 20, 0.25f);
    s.SetPosition(0, 20, kPosition - kRecent + 1);
    s.SetScore(1, kSlots - 1, 0);
    s.SetPosition(1, kSlots - 1, kPosition - kRecent);
    const int expected[] = {50, kSlots - 1};

    const TokenTarget target{0, TokenTarget::kLowestScore};
    DecodeItem item;
    item.segments = heavy.cache.segments;
    item.targets = {&target, 1};
    item.position = kPosition;
    item.score_recent = kRecent;
    const std::vector<std::byte> before = heavy.cache.pool.bytes();
    for (auto& backend : AllBackends()) {
      heavy.cache.pool.Restore(before);
      backend->WriteStep(shape, {&item, 1}, Floats(k), Floats(v), heavy.cache.pool.view());
      for (int head = 0; head < kHeads; ++head) {
        for (int slot = 0; slot < kSlots; ++slot) {
          const bool written = s.Position(head, slot) == kPosition;
          ASSERT_EQ(written, slot == expected[head])
              << backend->name() << " head " << head << " slot " << slot;
          if (!written) continue;
          EXPECT_EQ(s.Score(head, slot), 0);
          for (int c = 0; c < head_dim(); ++c) {
            const double x = k.at(head * head_dim() + c), y = v.at(head * head_dim() + c);
            EXPECT_NEAR(s.Decoded(Side::kKeys, head, slot, c), x, 0.04);
            EXPECT_NEAR(s.Decoded(Side::kValues, head, slot, c), y, 0.04);
          }
        }
      }
    }
  }
}

// Slots behind the last one of a segment hold what another one left there.
TEST_P(StepWrites, OverwriteNoSlotBehindTheLastOne) {
  constexpr int kSlots = 37;
  const AttentionShape shape = Shape(1, 1, head_dim());
  HeavyCache heavy(shape, CacheFormat::kF32, 60);
  for (int slot = 0; slot < 60; ++slot) {
    heavy.stored.SetScore(0, slot, slot == 20 ? 2.0f : slot < kSlots ? 3.0f : 1.0f);
    heavy.stored.SetPosition(0, slot, slot);
  }
  heavy.cache.segments[0].num_slots = kSlots;
  ExpectOverwritten(shape, heavy, 50, 20);
}

// A score that is no number counts as infinity: the first of the tokens that may go.
TEST_P(StepWrites, OverwriteTheFirstTokenThatMayGoWhereNoScoreIsANumber) {
  constexpr int kSlots = 40, kFirstThatMayGo = 11;
  const AttentionShape shape = Shape(1, 1, head_dim());
  HeavyCache heavy(shape, CacheFormat::kF32, kSlots);
  for (int slot = 0; slot < kSlots; ++slot) {
    heavy.stored.SetScore(0, slot, slot % 2 == 0 ? NAN : -NAN);
    heavy.stored.SetPosition(0, slot, slot < kFirstThatMayGo ? 95 + slot : 90 - slot);
  }
  ExpectOverwritten(shape, heavy, 50, kFirstThatMayGo);
}

TEST_P(StepWrites, OverwriteTheOldestTokenWhereAllAreRecent) {
  constexpr int kSlots = 40;
  const AttentionShape shape = Shape(1, 1, head_dim());
  HeavyCache heavy(shape, CacheFormat::kF32, kSlots);
  for (int slot = 0; slot < kSlots; ++slot) {
    heavy.stored.SetPosition(0, slot, 100 + (slot + 13) % kSlots);
  }
  ExpectOverwritten(shape, heavy, 1000, kSlots - 13);
}

TEST_P(StepWrites, GiveTokensOfThePromptTheirScoresAndPositions) {
  constexpr int kHeads = 3, kTokens = 90, kCount = 35, kFirstSlot = 7;
  const AttentionShape shape = Shape(kHeads, kHeads, head_dim());
  const Tensor sums = RandomTensor(ElementType::kF32, kHeads * kTokens, 1);
  TestCache cache(shape, {{Scored(CacheFormat::kBf16), 50, 1, 2}});
  const StoredSegment s(cache.pool.view(), cache.segments[0], head_dim());
  const std::vector<std::byte> before = cache.pool.bytes();
  std::vector<int32_t> rows(2 * kCount);
  std::mt19937 random(2);
  for (int32_t& row : rows) row = static_cast<int32_t>(random() % kTokens);
  for (bool gathers : {false, true}) {
    for (auto& backend : AllBackends()) {
      cache.pool.Restore(before);
      backend->WriteScores(shape, Floats(sums), kTokens,
                           gathers ? TokenChoice::Listed(rows.data(), kCount, kCount)
                                   : TokenChoice::From(11, kCount),
                           cache.pool.view(), cache.segments[0], kFirstSlot);
      for (int head = 0; head < 2; ++head) {
        for (int i = 0; i < kCount; ++i) {
          const int row = gathers ? rows[head * kCount + i] : 11 + i;
          ASSERT_EQ(s.Score(1 + head, kFirstSlot + i), sums.at((1 + head) * kTokens + row));
          ASSERT_EQ(s.Position(1 + head, kFirstSlot + i), row);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HeadSizes, StepWrites, testing::ValuesIn(HeadSizes()),
                         [](const auto& instance) { return std::to_string(instance.param); });

}  // namespace
}  // namespace ziggurat

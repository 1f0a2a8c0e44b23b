// Copies from segment to segment: what arrives, what stays as it was, and that the backends are
// twins bit for bit.

#include "attention/reference/stored_segment.h"
#include "tests/attention/test_cache.h"

namespace ziggurat {
namespace {

using reference::kSides;
using reference::Side;
using reference::StoredSegment;

constexpr int kHeads = 3;

/// Slots of `from` for each head and token.
struct Slots {
  TokenChoice list() const { return TokenChoice::Listed(of_head.data(), count, count); }
  int at(int head, int i) const { return of_head[head * count + i]; }
  int count = 0;
  std::vector<int32_t> of_head;
};

/// Any slots in any order, some more than once.
Slots AnySlots(int heads, int count, int slots, uint32_t seed) {
  std::mt19937 random(seed);
  Slots result{count, std::vector<int32_t>(static_cast<size_t>(heads) * count)};
  for (int32_t& slot : result.of_head) slot = static_cast<int32_t>(random() % slots);
  return result;
}

/// Whole groups of `unit` slots, ascending, `keep` in a hundred of them.
Slots SomeUnits(int heads, int unit, int slots, int keep, uint32_t seed) {
  std::mt19937 random(seed);
  const int units = slots / unit;
  const int kept = std::max(units * keep / 100, 1);
  Slots result{kept * unit, {}};
  for (int head = 0; head < heads; ++head) {
    std::vector<int> order(units);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    std::sort(order.begin(), order.begin() + kept);
    for (int u = 0; u < kept; ++u) {
      for (int t = 0; t < unit; ++t) result.of_head.push_back(order[u] * unit + t);
    }
  }
  return result;
}

/// The same units of each head in another order.
Slots Shuffled(const Slots& slots, int unit) {
  Slots result{slots.count, {}};
  std::vector<int> order(slots.count / unit);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 random(9);
  for (size_t head = 0; head < slots.of_head.size() / slots.count; ++head) {
    std::shuffle(order.begin(), order.end(), random);
    for (int u : order) {
      const auto first = slots.of_head.begin() + head * slots.count + size_t{1} * u * unit;
      result.of_head.insert(result.of_head.end(), first, first + unit);
    }
  }
  return result;
}

/// A copy is the same in every level of the CPU backend.
std::vector<std::unique_ptr<AttentionBackend>> CopyingBackends() {
  std::vector<std::unique_ptr<AttentionBackend>> backends;
  backends.push_back(MakeReferenceBackend());
  const std::vector<CpuLevel> levels = SupportedCpuLevels();
  if (levels.empty()) return backends;
  for (int threads : {1, 3}) backends.push_back(*MakeCpuBackend(levels.back(), threads));
  return backends;
}

/// Compares the pool that every backend leaves with the reference's.
template <typename Copy>
void ExpectTwins(TestPool& pool, const std::string& what, Copy copy) {
  const std::vector<std::byte> before = pool.bytes();
  std::vector<std::byte> expected;
  for (auto& backend : CopyingBackends()) {
    pool.Restore(before);
    copy(*backend);
    if (expected.empty()) {
      expected = pool.bytes();
      EXPECT_FALSE(expected == before) << what << ": nothing was written";
    } else {
      EXPECT_TRUE(pool.bytes() == expected) << what << " " << backend->name();
    }
  }
  pool.Restore(expected);
}

/// Every bit of what `to` has of tokens 0 .. count - 1 is what `from` had, as far as both have it.
void ExpectArrived(const StoredSegment& from, const Slots& slots, const StoredSegment& to,
                   int first_slot, int head_dim, const std::string& what) {
  const SegmentView& s = to.view();
  for (int head = 0; head < s.num_kv_heads; ++head) {
    const int g = s.first_kv_head + head;
    for (int i = 0; i < slots.count; ++i) {
      const int then = slots.at(head, i), now = first_slot + i;
      bool arrived = true;
      for (Side side : kSides) {
        if (!to.owns(side)) continue;
        for (int c = 0; c < head_dim; ++c) {
          arrived = arrived && from.LoadBits(side, g, then, c) == to.LoadBits(side, g, now, c);
        }
      }
      for (int n = 0; from.is_merged() && n < 4; ++n) {
        arrived = arrived && from.AnyNorm(n, g, then) == to.AnyNorm(n, g, now);
      }
      if (from.is_scored() && to.is_scored()) {
        arrived = arrived && from.Score(g, then) == to.Score(g, now) &&
                  from.Position(g, then) == to.Position(g, now);
      }
      ASSERT_TRUE(arrived) << what << " head " << g << " token " << i << " of slot " << then;
    }
  }
}

std::vector<CacheFormat> AllFormats(int head_dim) {
  std::vector<CacheFormat> formats;
  for (const CacheFormat& format : EncodedFormats(head_dim)) {
    formats.push_back(format);
    formats.push_back(Merged(format));
    if (!IsGrouped(format.encoding)) formats.push_back(Scored(format));
  }
  return formats;
}

class CacheCopies : public testing::TestWithParam<int> {
 protected:
  int head_dim() const { return GetParam(); }
  AttentionShape shape() const { return Shape(2 * kHeads, kHeads, head_dim()); }
};

TEST_P(CacheCopies, OntoThemselvesReadEverythingBeforeTheyWrite) {
  for (const CacheFormat& format : AllFormats(head_dim())) {
    const int unit = format.UnitTokens(), held = std::max(256, 4 * unit);
    TestCache cache(shape(), {{format, held}});
    const SegmentView& s = cache.segments[0];
    const std::vector<std::byte> filled = cache.pool.bytes();
    // Compaction; compaction behind slots that stay; any order, in which slots overwrite each
    // other.
    const Slots some = SomeUnits(kHeads, unit, held, 60, 1);
    const Slots shuffled = Shuffled(SomeUnits(kHeads, unit, held, 70, 2), unit);
    for (const auto& [slots, first_slot] :
         {std::pair(&some, 0), std::pair(&some, unit), std::pair(&shuffled, unit)}) {
      if (first_slot + slots->count > held) continue;
      cache.pool.Restore(filled);
      std::vector<std::byte> copy_of_memory = filled;
      const PoolView then{copy_of_memory.data(), cache.pool.view().block_bytes};
      const std::string what = Name(format) + " from " + std::to_string(first_slot);
      ExpectTwins(cache.pool, what, [&](AttentionBackend& backend) {
        backend.CopyTokens(shape(), cache.pool.view(), s, slots->list(), s, first_slot);
      });
      ExpectArrived({then, s, head_dim()}, *slots, {cache.pool.view(), s, head_dim()}, first_slot,
                    head_dim(), what);
    }
  }
}

TEST_P(CacheCopies, OfARangeMoveItDownOrUp) {
  for (const CacheFormat& format : AllFormats(head_dim())) {
    const int unit = format.UnitTokens(), held = std::max(256, 4 * unit);
    const int count = RoundUp(held / 2 - unit, unit);
    TestCache cache(shape(), {{format, held}});
    const SegmentView& s = cache.segments[0];
    const std::vector<std::byte> filled = cache.pool.bytes();
    for (const auto& [first, first_slot] : {std::pair(unit, 0), std::pair(0, unit)}) {
      cache.pool.Restore(filled);
      std::vector<std::byte> copy_of_memory = filled;
      const PoolView then{copy_of_memory.data(), cache.pool.view().block_bytes};
      Slots slots{count, {}};
      for (int i = 0; i < kHeads * count; ++i) slots.of_head.push_back(first + i % count);
      ExpectTwins(cache.pool, Name(format), [&](AttentionBackend& backend) {
        backend.CopyTokens(shape(), cache.pool.view(), s, TokenChoice::From(first, count), s,
                           first_slot);
      });
      ExpectArrived({then, s, head_dim()}, slots, {cache.pool.view(), s, head_dim()}, first_slot,
                    head_dim(), Name(format));
    }
  }
}

TEST_P(CacheCopies, OfManyRangesAtOnceAreAsOneAfterTheOther) {
  // A group of open tokens becomes codes, and those behind it move to the front: for each encoding.
  for (const CacheFormat& format : EncodedFormats(head_dim())) {
    const int unit = format.UnitTokens();
    const int cached = RoundUp(4 * unit, 64);
    std::vector<SegmentSpec> segments;
    for (int i = 0; i < 5; ++i) {
      segments.push_back({CacheFormat::kBf16, 2 * unit + 3 + 10 * i});
      segments.push_back({format, cached});
    }
    TestCache cache(shape(), segments);
    std::vector<TokenCopy> copies;
    for (int i = 0; i < 5; ++i) {
      const SegmentView &open = cache.segments[2 * i], &coded = cache.segments[2 * i + 1];
      const int count = (1 + i % 2) * unit, left = open.num_slots - count;
      copies.push_back({&open, 0, count, &coded, cached - count});
      copies.push_back({&open, count, left, &open, 0});
    }
    const std::vector<std::byte> filled = cache.pool.bytes();
    const auto reference = MakeReferenceBackend();
    for (const TokenCopy& copy : copies) {
      reference->CopyTokens(shape(), cache.pool.view(), *copy.from,
                            TokenChoice::From(copy.first, copy.count), *copy.to, copy.first_slot);
    }
    const std::vector<std::byte> expected = cache.pool.bytes();
    cache.pool.Restore(filled);
    ExpectTwins(cache.pool, Name(format), [&](AttentionBackend& backend) {
      backend.CopyAll(shape(), cache.pool.view(), copies);
    });
    EXPECT_TRUE(cache.pool.bytes() == expected) << Name(format);
  }
}

TEST_P(CacheCopies, BetweenSegmentsOfOneFormatGoBitForBit) {
  constexpr int kSlots = 256;
  for (const CacheFormat& format : AllFormats(head_dim())) {
    const int unit = format.UnitTokens();
    for (const auto& [first_head, heads] : {std::pair(0, kHeads), std::pair(1, 2)}) {
      TestCache cache(shape(), {{format, kSlots}, {format, kSlots + unit, first_head, heads}});
      const SegmentView &from = cache.segments[0], &to = cache.segments[1];
      const Slots slots = SomeUnits(heads, unit, kSlots, 50, 4);
      const std::string what = Name(format) + " heads from " + std::to_string(first_head);
      ExpectTwins(cache.pool, what, [&](AttentionBackend& backend) {
        backend.CopyTokens(shape(), cache.pool.view(), from, slots.list(), to, unit);
      });
      ExpectArrived({cache.pool.view(), from, head_dim()}, slots,
                    {cache.pool.view(), to, head_dim()}, unit, head_dim(), what);
    }
  }
}

TEST_P(CacheCopies, BetweenEncodingsAreWhatReadingAndWritingGives) {
  constexpr int kSlots = 150;
  for (const CacheFormat& format : EncodedFormats(head_dim())) {
    for (const CacheFormat& other : EncodedFormats(head_dim())) {
      const bool is_odd = format.UnitTokens() % 32 > 1 || other.UnitTokens() % 32 > 1;
      if (head_dim() > 96 && is_odd) continue;  // time
      const int unit = other.UnitTokens(), count = RoundUp(70, unit);
      TestCache cache(shape(), {{format, kSlots}, {other, count + unit}});
      const SegmentView &from = cache.segments[0], &to = cache.segments[1];
      const std::string what = Name(format) + " to " + Name(other);
      // Slots that are no groups, so that grouped ones have to be encoded anew.
      const Slots slots = AnySlots(kHeads, count, kSlots, 5);
      const bool bit_for_bit = format == other && !IsGrouped(format.encoding);
      const std::vector<std::byte> filled = cache.pool.bytes();

      std::vector<float> k(static_cast<size_t>(kSlots) * kHeads * head_dim()), v(k.size());
      const auto reference = MakeReferenceBackend();
      reference->ReadTokens(shape(), cache.pool.view(), from, 0, kSlots, k.data(), v.data());
      reference->WriteTokens(shape(), {ElementType::kF32, k.data(), v.data()}, slots.list(),
                             cache.pool.view(), to, unit);
      const std::vector<std::byte> expected = cache.pool.bytes();
      cache.pool.Restore(filled);
      ExpectTwins(cache.pool, what, [&](AttentionBackend& backend) {
        backend.CopyTokens(shape(), cache.pool.view(), from, slots.list(), to, unit);
      });
      // Encoding what was decoded need not give the same scale again.
      EXPECT_TRUE(bit_for_bit || cache.pool.bytes() == expected) << what;
    }
  }
}

// Neighbours that begin within a group, or that fill groups of another size.
TEST_P(CacheCopies, OfNeighboursThatAreNoWholeGroupAreEncodedAnew) {
  for (const CacheFormat& format : EncodedFormats(head_dim())) {
    if (!IsGrouped(format.encoding) || format.group > 32) continue;  // time
    CacheFormat coarser = format;
    coarser.group *= 2;
    std::vector<std::pair<CacheFormat, int>> sources = {{format, format.group / 2}};
    if (head_dim() % coarser.group == 0) sources.push_back({coarser, 0});
    for (const auto& [source, first] : sources) {
      const int count = 2 * format.group, held = 4 * format.group;
      TestCache cache(shape(), {{source, held}, {format, held}});
      const SegmentView &from = cache.segments[0], &to = cache.segments[1];
      const std::string what = Name(source) + " to " + Name(format);
      const TokenChoice slots = TokenChoice::From(first, count);
      const std::vector<std::byte> filled = cache.pool.bytes();
      std::vector<float> k(static_cast<size_t>(held) * kHeads * head_dim()), v(k.size());
      const auto reference = MakeReferenceBackend();
      reference->ReadTokens(shape(), cache.pool.view(), from, 0, held, k.data(), v.data());
      reference->WriteTokens(shape(), {ElementType::kF32, k.data(), v.data()}, slots,
                             cache.pool.view(), to, format.group);
      const std::vector<std::byte> expected = cache.pool.bytes();
      cache.pool.Restore(filled);
      ExpectTwins(cache.pool, what, [&](AttentionBackend& backend) {
        backend.CopyTokens(shape(), cache.pool.view(), from, slots, to, format.group);
      });
      EXPECT_TRUE(cache.pool.bytes() == expected) << what;
    }
  }
}

TEST_P(CacheCopies, InGroupsThatAreNoWholeVectorsAgreeToo) {
  for (const CacheFormat& format : UnevenGroups(head_dim())) {
    const int unit = format.UnitTokens(), held = RoundUp(50, unit);
    for (const CacheFormat& stored : {format, Merged(format)}) {
      const CacheFormat plain = stored.merged ? Merged(CacheFormat::kF32) : CacheFormat::kF32;
      TestCache cache(shape(), {{stored, held}, {stored, held}, {plain, held}});
      const SegmentView &codes = cache.segments[0], &others = cache.segments[1];
      const SegmentView& numbers = cache.segments[2];
      const Slots groups = SomeUnits(kHeads, unit, held, 50, 4);
      const Slots any = AnySlots(kHeads, unit, held, 5);
      const auto expect_twins = [&](const char* what, const SegmentView& from, const Slots& slots,
                                    const SegmentView& to) {
        ExpectTwins(cache.pool, Name(stored) + what, [&](AttentionBackend& backend) {
          backend.CopyTokens(shape(), cache.pool.view(), from, slots.list(), to, 0);
        });
      };
      expect_twins(" as they stand", codes, groups, others);
      ExpectArrived({cache.pool.view(), codes, head_dim()}, groups,
                    {cache.pool.view(), others, head_dim()}, 0, head_dim(), Name(stored));
      expect_twins(" encoded anew", codes, any, others);
      expect_twins(" from numbers", numbers, groups, others);
      expect_twins(" to numbers", others, groups, numbers);
    }
  }
}

TEST_P(CacheCopies, OfMergedTokensTakeTheNormsOfBothLayersAlong) {
  constexpr int kSlots = 256;
  for (const CacheFormat& other : EncodedFormats(head_dim())) {
    const int unit = other.UnitTokens(), count = RoundUp(100, unit);
    TestCache cache(shape(), {{Merged(CacheFormat::kBf16), kSlots}, {Merged(other), count}});
    const SegmentView &from = cache.segments[0], &to = cache.segments[1];
    const Slots slots = AnySlots(kHeads, count, kSlots, 6);
    const std::vector<std::byte> filled = cache.pool.bytes();
    std::vector<std::byte> by_lower;
    // The same by either layer's views.
    for (const auto& [f, t] : {std::pair(from, to), std::pair(UpperView(from), UpperView(to))}) {
      cache.pool.Restore(filled);
      ExpectTwins(cache.pool, Name(other), [&](AttentionBackend& backend) {
        backend.CopyTokens(shape(), cache.pool.view(), f, slots.list(), t, 0);
      });
      if (by_lower.empty()) by_lower = cache.pool.bytes();
      EXPECT_TRUE(cache.pool.bytes() == by_lower) << Name(other);
    }
    const StoredSegment sent(cache.pool.view(), from, head_dim());
    const StoredSegment got(cache.pool.view(), to, head_dim());
    double worst = 0;
    for (int g = 0; g < kHeads; ++g) {
      for (int i = 0; i < count; ++i) {
        for (int n = 0; n < 4; ++n) {
          ASSERT_EQ(sent.AnyNorm(n, g, slots.at(g, i)), got.AnyNorm(n, g, i)) << Name(other);
        }
        for (int c = 0; c < head_dim(); ++c) {
          worst = std::max(worst, std::abs(sent.Direction(Side::kKeys, g, slots.at(g, i), c) -
                                           got.Direction(Side::kKeys, g, i, c)));
        }
      }
    }
    // Directions are copied, not what they stand for: half a step of codes between -1 and 1.
    EXPECT_LE(worst, other.encoding == Encoding::kInt2   ? 0.35
                     : other.encoding == Encoding::kInt4 ? 0.08
                                                         : 0.04)
        << Name(other);
  }
}

TEST_P(CacheCopies, OfMergedTokensToOthersAreWhatTheyStandForInTheirLayer) {
  constexpr int kHeld = 60;
  for (Encoding encoding : {Encoding::kF32, Encoding::kBf16, Encoding::kInt8}) {
    const CacheFormat format = {encoding};
    TestCache cache(shape(),
                    {{Merged(format), kHeld}, {format, kHeld}, {CacheFormat::kF32, kHeld}});
    const SegmentView &lower = cache.segments[0], upper = UpperView(lower);
    for (const SegmentView* from : {&lower, &upper}) {
      const StoredSegment merged(cache.pool.view(), *from, head_dim());
      for (const SegmentView* to : {&cache.segments[1], &cache.segments[2]}) {
        const StoredSegment plain(cache.pool.view(), *to, head_dim());
        // Half a step of numbers up to 8.
        const double tolerance = to == &cache.segments[2] ? 2e-6 : 0.04;
        for (auto& backend : CopyingBackends()) {
          backend->CopyTokens(shape(), cache.pool.view(), *from, TokenChoice::From(0, kHeld), *to,
                              0);
          for (int slot = 0; slot < kHeld; ++slot) {
            const int head = slot % kHeads, c = slot % head_dim();
            for (Side side : kSides) {
              ASSERT_NEAR(plain.Decoded(side, head, slot, c), merged.Decoded(side, head, slot, c),
                          tolerance)
                  << Name(format) << " " << backend->name();
            }
          }
        }
      }
    }
  }
}

TEST_P(CacheCopies, IntoValuesAloneLeaveTheBorrowedKeysAsTheyAre) {
  constexpr int kSlots = 200;
  for (const CacheFormat& format : EncodedFormats(head_dim())) {
    const int unit = format.UnitTokens(), count = unit == 1 ? 1 : unit;  // a step's copy
    for (const CacheFormat& source : {CacheFormat::kBf16, CacheFormat::kF32, format}) {
      TestCache cache(shape(), {{source, kSlots}, {ValuesOnly(format), kSlots}});
      const SegmentView &from = cache.segments[0], &to = cache.segments[1];
      const SegmentView& lender = cache.lenders[0];
      const StoredSegment keys(cache.pool.view(), lender, head_dim());
      std::vector<double> keys_before, keys_after;
      const auto read_keys = [&](std::vector<double>* numbers) {
        for (int slot = 0; slot < kSlots; ++slot) {
          numbers->push_back(keys.Direction(Side::kKeys, slot % kHeads, slot, slot % head_dim()));
        }
      };
      read_keys(&keys_before);
      // Of codes a whole group, which goes as it stands.
      const Slots slots = source == format ? SomeUnits(kHeads, count, kSlots, 0, 7)
                                           : AnySlots(kHeads, count, kSlots, 7);
      ASSERT_EQ(slots.count, count);
      ExpectTwins(cache.pool, Name(format), [&](AttentionBackend& backend) {
        backend.CopyTokens(shape(), cache.pool.view(), from, slots.list(), to, unit);
      });
      read_keys(&keys_after);
      EXPECT_EQ(keys_before, keys_after) << Name(format);
      if (format == source) {
        ExpectArrived({cache.pool.view(), from, head_dim()}, slots,
                      {cache.pool.view(), to, head_dim()}, unit, head_dim(), Name(format));
      }
    }
  }
}

TEST_P(CacheCopies, CarryScoresOnlyWhereBothHaveThem) {
  constexpr int kSlots = 100;
  const CacheFormat plain = CacheFormat::kBf16, scored = Scored(plain);
  TestCache cache(shape(), {{scored, kSlots}, {plain, kSlots}, {scored, kSlots}});
  const Slots slots = AnySlots(kHeads, 40, kSlots, 8);
  ExpectTwins(cache.pool, "scored to plain", [&](AttentionBackend& backend) {
    backend.CopyTokens(shape(), cache.pool.view(), cache.segments[0], slots.list(),
                       cache.segments[1], 10);
  });
  const StoredSegment to(cache.pool.view(), cache.segments[2], head_dim());
  const float score = to.Score(1, 20);
  const int32_t position = to.Position(1, 20);
  ExpectTwins(cache.pool, "plain to scored", [&](AttentionBackend& backend) {
    backend.CopyTokens(shape(), cache.pool.view(), cache.segments[1], slots.list(),
                       cache.segments[2], 10);
  });
  EXPECT_EQ(to.Score(1, 20), score);
  EXPECT_EQ(to.Position(1, 20), position);
}

INSTANTIATE_TEST_SUITE_P(HeadSizes, CacheCopies, testing::ValuesIn(HeadSizes()),
                         [](const auto& instance) { return std::to_string(instance.param); });

}  // namespace
}  // namespace ziggurat

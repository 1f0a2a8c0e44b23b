// What slots receive from the queries of a decode step: H2O's scores, and the mass on some slots.

#include "tests/attention/test_cache.h"

namespace ziggurat {
namespace {

ElementType QueryElement(Encoding encoding) {
  return encoding == Encoding::kBf16 ? ElementType::kBf16 : ElementType::kF32;
}

std::vector<float> Queries(Encoding encoding, const AttentionShape& shape, size_t items,
                           uint32_t seed) {
  return RandomTensor(QueryElement(encoding), items * shape.num_q_heads * shape.head_dim, seed)
      .floats();
}

/// The log-sum-exp that decode attention gives.
std::vector<float> LseOf(const AttentionShape& shape, const std::vector<DecodeItem>& items,
                         const std::vector<float>& q, PoolView pool) {
  std::vector<float> out(q.size()), lse(items.size() * shape.num_q_heads);
  (*MakeCpuBackend(SupportedCpuLevels().front(), 1))
      ->DecodeAttention(shape, items, q.data(), pool, out.data(), lse.data());
  return lse;
}

std::vector<float> ScoresOf(PoolView pool, const SegmentView& s) {
  std::vector<float> scores;
  for (int head = s.first_kv_head; head < s.first_kv_head + s.num_kv_heads; ++head) {
    for (int slot = 0; slot < s.num_slots; ++slot) {
      scores.push_back(Get(ElementType::kF32, EntryAddress(pool, s, s.scores, head, slot)));
    }
  }
  return scores;
}

/// A scored segment between two that are not, and a second sequence.
struct Scenario {
  Scenario(const AttentionShape& shape, const CacheFormat& format, int slots)
      : first(shape, {{format, 20}, {Scored(format), slots}, {CacheFormat::kF32, 9}}),
        items{{first.segments}} {}
  SegmentView& scored() { return first.segments[1]; }
  /// The scores after `steps` steps with other queries.
  std::vector<float> Run(AttentionBackend& backend, const AttentionShape& shape, int steps) {
    for (int step = 0; step < steps; ++step) {
      const std::vector<float> q = Queries(scored().encoding, shape, 1, 70 + step);
      const std::vector<float> lse = LseOf(shape, items, q, first.pool.view());
      backend.AccumulateScores(shape, items, q.data(), lse.data(), first.pool.view());
    }
    return ScoresOf(first.pool.view(), scored());
  }
  TestCache first;
  std::vector<DecodeItem> items;
};

std::vector<CacheFormat> ScoredFormats(int head_dim) {
  std::vector<CacheFormat> formats = EncodedFormats(head_dim);
  std::erase_if(formats, [](const CacheFormat& f) { return IsGrouped(f.encoding); });
  return formats;
}

class ScoreTwins : public ::testing::TestWithParam<int> {};

TEST_P(ScoreTwins, AgreeWithTheReference) {
  const int head_dim = GetParam();
  for (const CacheFormat& format : ScoredFormats(head_dim)) {
    LargestDeviation seen("scores " + Name(format) + " D=" + std::to_string(head_dim));
    for (int group : {1, 2, 4, 7, 8}) {
      for (int slots : group == 4 ? std::vector<int>{1, 127, 128, 300} : std::vector<int>{129}) {
        const AttentionShape shape = Shape(2 * group, 2, head_dim);
        const std::vector<float> expected =
            Scenario(shape, format, slots).Run(*MakeReferenceBackend(), shape, 2);
        for (CpuLevel level : SupportedCpuLevels()) {
          auto backend = *MakeCpuBackend(level, 1);
          const std::vector<float> actual = Scenario(shape, format, slots).Run(*backend, shape, 2);
          seen.See(Deviation(actual, expected));
          EXPECT_LE(Deviation(actual, expected), Tolerance(QueryElement(format.encoding)))
              << backend->name() << " " << Name(format) << " D " << head_dim << " group " << group
              << " slots " << slots;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HeadSizes, ScoreTwins, ::testing::Values(8, 16, 32, 64, 80, 96, 128, 256),
                         ::testing::PrintToStringParamName());

// Every KV head gives out a mean of 1 in a step; scores and nothing else of the pool change.
TEST(AccumulateScores, AddOneInAllAndTouchNothingElse) {
  const AttentionShape shape = Shape(6, 3, 32);
  for (const CacheFormat& format : ScoredFormats(32)) {
    for (CpuLevel level : SupportedCpuLevels()) {
      TestCache cache(shape, {{Scored(format), 500}});
      const SegmentView& s = cache.segments[0];
      const std::vector<std::byte> before = cache.pool.bytes();
      const std::vector<float> old_scores = ScoresOf(cache.pool.view(), s);
      const std::vector<DecodeItem> items = {{cache.segments}};
      const std::vector<float> q = Queries(format.encoding, shape, 1, 3);
      const std::vector<float> lse = LseOf(shape, items, q, cache.pool.view());
      (*MakeCpuBackend(level, 2))
          ->AccumulateScores(shape, items, q.data(), lse.data(), cache.pool.view());
      const std::vector<float> scores = ScoresOf(cache.pool.view(), s);
      for (int head = 0; head < 3; ++head) {
        double received = 0;
        for (int slot = 0; slot < 500; ++slot) {
          received += scores[head * 500 + slot] - old_scores[head * 500 + slot];
        }
        EXPECT_NEAR(received, 1, format.encoding == Encoding::kBf16 ? 1e-2 : 1e-4) << Name(format);
      }
      for (int head = 0; head < 3; ++head) {
        for (int slot = 0; slot < 500; ++slot) {
          Put(ElementType::kF32, EntryAddress(cache.pool.view(), s, s.scores, head, slot),
              old_scores[head * 500 + slot]);
        }
      }
      EXPECT_TRUE(before == cache.pool.bytes()) << Name(format);
    }
  }
}

TEST(AccumulateScores, GivesTheSameBitsAloneAndInACrowd) {
  const AttentionShape shape = Shape(8, 2, 64);
  for (const CacheFormat& format : ScoredFormats(64)) {
    for (CpuLevel level : SupportedCpuLevels()) {
      std::vector<std::vector<float>> runs;
      for (bool in_crowd : {false, true}) {
        TestCache a(shape, {{Scored(format), 900}, {CacheFormat::kBf16, 30}, {Scored(format), 77}});
        std::vector<SegmentView> others(a.segments.begin() + 2, a.segments.end());
        std::vector<DecodeItem> items = {{absl::MakeSpan(a.segments).subspan(0, 2)}};
        const std::vector<float> q = Queries(format.encoding, shape, 2, 3);
        const std::vector<float> lse = LseOf(shape, {items[0], {others}}, q, a.pool.view());
        if (in_crowd) items.push_back({others});
        (*MakeCpuBackend(level, in_crowd ? 3 : 1))
            ->AccumulateScores(shape, items, q.data(), lse.data(), a.pool.view());
        runs.push_back(ScoresOf(a.pool.view(), a.segments[0]));
      }
      EXPECT_EQ(runs[0], runs[1]) << Name(format);
    }
  }
}

// Two sequences, heads in segments of their own, and a token that came since the view was taken.
TEST(AccumulateScores, AgreeOnSequencesOfHeadGroupsWithNewTokens) {
  const AttentionShape shape = Shape(20, 10, 32);
  for (const CacheFormat& format : ScoredFormats(32)) {
    const CacheFormat scored = Scored(format);
    std::vector<float> expected;
    for (auto& backend : AllBackends()) {
      TestCache cache(shape, {{scored, 50, 0, 7}, {scored, 40, 7, 3}, {scored, 33}});
      std::vector<SegmentView> old = cache.segments;
      old[1].num_slots -= 1;
      const TokenTarget target = {1, 39};
      const std::vector<DecodeItem> items = {{absl::MakeSpan(old).subspan(0, 2), {&target, 1}},
                                             {absl::MakeSpan(old).subspan(2, 1)}};
      const std::vector<float> q = Queries(format.encoding, shape, 2, 3);
      const std::vector<float> lse = LseOf(shape, items, q, cache.pool.view());
      backend->AccumulateScores(shape, items, q.data(), lse.data(), cache.pool.view());
      std::vector<float> scores;
      for (const SegmentView& s : cache.segments) {
        for (const float score : ScoresOf(cache.pool.view(), s)) scores.push_back(score);
      }
      if (expected.empty()) expected = scores;
      // Scores begin between 0 and 3: of what is added three digits less are left.
      EXPECT_LE(Deviation(scores, expected), Tolerance(QueryElement(format.encoding)) / 10)
          << backend->name() << " " << Name(format);
    }
  }
}

class SlotMassTwins : public ::testing::TestWithParam<int> {};

TEST_P(SlotMassTwins, AgreeWithTheReference) {
  const int head_dim = GetParam();
  for (CacheFormat format : EncodedFormats(head_dim)) {
    LargestDeviation seen("slot mass " + Name(format) + " D=" + std::to_string(head_dim));
    for (bool merged : {false, true}) {
      format.merged = merged;
      const AttentionShape shape = Shape(6, 2, head_dim);
      TestCache cache(shape, {{format, 333}, {CacheFormat::kF32, 50}});
      const std::vector<float> q = Queries(format.encoding, shape, 1, 8);
      const std::vector<float> lse = LseOf(shape, {{cache.segments}}, q, cache.pool.view());
      for (auto [begin, end] :
           {std::pair{0, 333}, {0, 4}, {128, 256}, {5, 6}, {100, 333}, {7, 7}}) {
        const auto mass = [&, b = begin, e = end](AttentionBackend& backend) {
          return backend.SlotMass(shape, cache.segments[0], b, e, q.data(), lse.data(),
                                  cache.pool.view());
        };
        const double expected = mass(*MakeReferenceBackend());
        EXPECT_LE(expected, 1.0001);
        for (CpuLevel level : SupportedCpuLevels()) {
          const double actual = mass(**MakeCpuBackend(level, 1));
          seen.See(std::abs(actual - expected));
          EXPECT_NEAR(actual, expected, Tolerance(QueryElement(format.encoding)))
              << Name(format) << " D " << head_dim << " [" << begin << ", " << end << ")";
          EXPECT_EQ(actual, mass(**MakeCpuBackend(level, 3)));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HeadSizes, SlotMassTwins, ::testing::Values(16, 64, 80, 128, 256),
                         ::testing::PrintToStringParamName());

// More heads than are taken at a time, each by its own log-sum-exp.
TEST(SlotMass, OfManyHeadsIsTheirMean) {
  const AttentionShape shape = Shape(36, 18, 32);
  TestCache cache(shape, {{CacheFormat::kF32, 70}, {CacheFormat::kF32, 50}});
  const std::vector<float> q = Queries(Encoding::kF32, shape, 1, 8);
  const std::vector<float> lse = LseOf(shape, {{cache.segments}}, q, cache.pool.view());
  const auto mass = [&](AttentionBackend& backend) {
    return backend.SlotMass(shape, cache.segments[0], 3, 60, q.data(), lse.data(),
                            cache.pool.view());
  };
  const double expected = mass(*MakeReferenceBackend());
  for (auto& backend : AllBackends()) {
    EXPECT_NEAR(mass(*backend), expected, 1e-5) << backend->name();
  }
}

TEST(SlotMass, OfAllSlotsIsOne) {
  const AttentionShape shape = Shape(6, 2, 64);
  for (const CacheFormat& format : EncodedFormats(64)) {
    TestCache cache(shape, {{format, 200}, {CacheFormat::kF32, 50}});
    const std::vector<float> q = Queries(format.encoding, shape, 1, 8);
    const std::vector<float> lse = LseOf(shape, {{cache.segments}}, q, cache.pool.view());
    for (CpuLevel level : SupportedCpuLevels()) {
      auto backend = *MakeCpuBackend(level, 2);
      double mass = 0;
      for (const SegmentView& s : cache.segments) {
        for (int begin = 0; begin < s.num_slots; begin += 67) {
          mass += backend->SlotMass(shape, s, begin, std::min(begin + 67, s.num_slots), q.data(),
                                    lse.data(), cache.pool.view());
        }
      }
      EXPECT_NEAR(mass, 1, format.encoding == Encoding::kBf16 ? 1e-2 : 1e-5) << Name(format);
    }
  }
}

}  // namespace
}  // namespace ziggurat

// Decode attention: every level against the reference, the reference against a plain softmax.

#include "tests/attention/test_cache.h"

namespace ziggurat {
namespace {

struct Decoded {
  std::vector<float> out, lse;
};

Decoded RunDecode(AttentionBackend& backend, const AttentionShape& shape,
                  const std::vector<DecodeItem>& items, const std::vector<float>& q,
                  PoolView pool) {
  Decoded result{std::vector<float>(q.size(), NAN),
                 std::vector<float>(items.size() * shape.num_q_heads, NAN)};
  backend.DecodeAttention(shape, items, q.data(), pool, result.out.data(), result.lse.data());
  return result;
}

/// Queries as a bf16 model has them: already rounded where the cache is bf16.
std::vector<float> Queries(ElementType element, const AttentionShape& shape, size_t items,
                           uint32_t seed) {
  return RandomTensor(element, items * shape.num_q_heads * shape.head_dim, seed).floats();
}

/// Compares every level, with 1, 2 and 3 threads, with the reference.
void ExpectTwins(ElementType element, const AttentionShape& shape,
                 const std::vector<DecodeItem>& items, PoolView pool, LargestDeviation* seen) {
  const std::vector<float> q = Queries(element, shape, items.size(), 99);
  const Decoded expected = RunDecode(*MakeReferenceBackend(), shape, items, q, pool);
  for (CpuLevel level : Levels()) {
    for (int threads : {1, 2, 3}) {
      auto backend = *MakeCpuBackend(level, threads);
      const Decoded actual = RunDecode(*backend, shape, items, q, pool);
      const double out = Deviation(actual.out, expected.out);
      const double lse = Deviation(actual.lse, expected.lse);
      seen->See(std::max(out, lse));
      EXPECT_LE(out, Tolerance(element)) << backend->name() << " threads " << threads << " heads "
                                         << shape.num_q_heads << "/" << shape.num_kv_heads;
      EXPECT_LE(lse, Tolerance(element)) << backend->name() << " threads " << threads;
    }
  }
}

/// One segment of all heads for each length.
struct Batch {
  Batch(ElementType element, const AttentionShape& shape, const std::vector<int>& lengths,
        size_t block_bytes = 0)
      : pool(block_bytes != 0
                 ? block_bytes
                 : CacheGeometry::DefaultBlockBytes(shape.num_kv_heads, shape.head_dim),
             BlocksFor(lengths)) {
    for (size_t i = 0; i < lengths.size(); ++i) {
      segments.push_back(
          {TakeSegment(pool, element, 0, shape.num_kv_heads, shape.head_dim, lengths[i])});
      FillSegment(pool.view(), segments.back()[0], shape.head_dim, static_cast<uint32_t>(i));
    }
    for (const auto& list : segments) items.push_back({list});
  }
  static size_t BlocksFor(const std::vector<int>& lengths) {
    size_t blocks = 0;
    for (int length : lengths) blocks += (length + 7) / 8;
    return blocks;
  }
  TestPool pool;
  std::vector<std::vector<SegmentView>> segments;
  std::vector<DecodeItem> items;
};

class DecodeTwins : public testing::TestWithParam<std::tuple<ElementType, int>> {
 protected:
  ElementType element() const { return std::get<0>(GetParam()); }
  int head_dim() const { return std::get<1>(GetParam()); }
  std::string Family(const char* what) const {
    return std::string("decode ") + what + " " + Name(element()) +
           " D=" + std::to_string(head_dim());
  }
};

TEST_P(DecodeTwins, AgreeAroundBlockBordersForEveryGroupSize) {
  LargestDeviation seen(Family("short"));
  // A batch of unequal lengths; a sequence without any token is part of it.
  const std::vector<int> lengths = {1,  7,  8,   9,   15,  0,   16,  17,
                                    31, 33, 127, 128, 129, 255, 256, 257};
  for (int group : {1, 2, 4, 8, 3, 7, 16}) {
    const AttentionShape shape = Shape(2 * group, 2, head_dim());
    Batch batch(element(), shape, lengths);
    ExpectTwins(element(), shape, batch.items, batch.pool.view(), &seen);
  }
}

TEST_P(DecodeTwins, AgreeOnLongSequencesThatAreSplitAndMerged) {
  LargestDeviation seen(Family("long"));
  std::vector<int> lengths = {1000, 1023, 1024, 1025, 4095, 4096, 4097};
  if (kSlowBuild) lengths = {1025, 2049};
  for (int group : {1, 4, 8}) {
    const AttentionShape shape = Shape(group, 1, head_dim());
    Batch batch(element(), shape, lengths);
    ExpectTwins(element(), shape, batch.items, batch.pool.view(), &seen);
  }
}

TEST_P(DecodeTwins, AgreeOnSeveralSegmentsMerged) {
  LargestDeviation seen(Family("segments"));
  const AttentionShape shape = Shape(8, 2, head_dim());
  TestPool pool(CacheGeometry::DefaultBlockBytes(2, head_dim()), 1200);
  std::vector<SegmentView> segments;
  for (int slots : {4, 0, 250, 1030, 1, 129}) {
    segments.push_back(TakeSegment(pool, element(), 0, 2, head_dim(), slots));
    FillSegment(pool.view(), segments.back(), head_dim(), slots);
  }
  ExpectTwins(element(), shape, {{segments}, {absl::MakeSpan(segments).subspan(1, 2)}}, pool.view(),
              &seen);
}

TEST_P(DecodeTwins, AgreeOnHeadGroupsWithDifferentCounts) {
  LargestDeviation seen(Family("head groups"));
  const int kv_heads = 3;
  const AttentionShape shape = Shape(2 * kv_heads, kv_heads, head_dim());
  TestPool pool(CacheGeometry::DefaultBlockBytes(kv_heads, head_dim()), 400);
  std::vector<SegmentView> segments;
  for (int head = 0; head < kv_heads; ++head) {
    segments.push_back(TakeSegment(pool, element(), head, 1, head_dim(), 37 + 400 * head));
    // 16 tokens of all heads in bf16 are 16 * kv_heads of one head; f32: half as many.
    EXPECT_EQ(segments.back().keys.slots_per_block,
              kv_heads * (element() == ElementType::kBf16 ? 16u : 8u));
  }
  segments.push_back(TakeSegment(pool, element(), 0, kv_heads, head_dim(), 21));
  segments.push_back(TakeSegment(pool, element(), 1, 2, head_dim(), 50));
  for (size_t i = 0; i < segments.size(); ++i) FillSegment(pool.view(), segments[i], head_dim(), i);
  ExpectTwins(element(), shape, {{segments}}, pool.view(), &seen);
}

TEST_P(DecodeTwins, AgreeWhenAttendingWithAnotherLayersKeys) {
  LargestDeviation seen(Family("other keys"));
  const AttentionShape shape = Shape(8, 2, head_dim());
  TestPool pool(CacheGeometry::DefaultBlockBytes(2, head_dim()), 400);
  const SegmentView lower = TakeSegment(pool, element(), 0, 2, head_dim(), 777);
  FillSegment(pool.view(), lower, head_dim(), 1);
  const SegmentView upper = TakeValuesSegment(pool, lower, head_dim());
  EXPECT_EQ(upper.values.slots_per_block, 2 * upper.keys.slots_per_block);
  FillSegment(pool.view(), upper, head_dim(), 2, /*keys=*/false);
  SegmentView recent = TakeSegment(pool, element(), 0, 2, head_dim(), 100);
  FillSegment(pool.view(), recent, head_dim(), 3);
  const std::vector<SegmentView> segments = {upper, recent};
  ExpectTwins(element(), shape, {{segments}, {{&lower, 1}}}, pool.view(), &seen);
}

TEST_P(DecodeTwins, AgreeForOddSlotsPerBlock) {
  LargestDeviation seen(Family("odd blocks"));
  const AttentionShape shape = Shape(5, 1, head_dim());
  for (int slots : {8, 24, 40, 5, 13}) {
    const size_t block_bytes = 2 * ElementBytes(element()) * head_dim() * slots;
    TestPool pool(block_bytes, 200);
    const SegmentView segment = TakeSegment(pool, element(), 0, 1, head_dim(), 333);
    FillSegment(pool.view(), segment, head_dim(), slots);
    ExpectTwins(element(), shape, {{{&segment, 1}}}, pool.view(), &seen);
  }
}

INSTANTIATE_TEST_SUITE_P(HeadSizes, DecodeTwins,
                         testing::Combine(testing::Values(ElementType::kF32, ElementType::kBf16),
                                          testing::Values(8, 16, 24, 32, 40, 64, 80, 96, 128, 256)),
                         [](const auto& instance) {
                           return Name(std::get<0>(instance.param)) + "_" +
                                  std::to_string(std::get<1>(instance.param));
                         });

// The reference itself, and then every level, against a softmax written out over the kept pairs.
TEST(DecodeAttention, EqualsAPlainSoftmaxOverTheKeptPairs) {
  constexpr int kPrompt = 300, kHeads = 2, kGroup = 3, kDim = 16;
  const AttentionShape shape = Shape(kHeads * kGroup, kHeads, kDim);
  const std::vector<float> k = RandomTensor(ElementType::kF32, kPrompt * kHeads * kDim, 1).floats();
  const std::vector<float> v = RandomTensor(ElementType::kF32, kPrompt * kHeads * kDim, 2).floats();
  const std::vector<float> q = Queries(ElementType::kF32, shape, 1, 3);
  // Each head keeps other tokens, in no order.
  constexpr int kKept = 101;
  std::vector<std::vector<int>> kept(kHeads, std::vector<int>(kPrompt));
  TestPool pool(CacheGeometry::DefaultBlockBytes(kHeads, kDim), 40);
  const SegmentView segment = TakeSegment(pool, ElementType::kF32, 0, kHeads, kDim, kKept);
  for (int g = 0; g < kHeads; ++g) {
    std::iota(kept[g].begin(), kept[g].end(), 0);
    std::shuffle(kept[g].begin(), kept[g].end(), std::mt19937(g));
    for (int slot = 0; slot < kKept; ++slot) {
      for (int c = 0; c < kDim; ++c) {
        const size_t from = (static_cast<size_t>(kept[g][slot]) * kHeads + g) * kDim + c;
        Put(segment.element, KeyAddress(pool.view(), segment, g, slot, c), k[from]);
        Put(segment.element, ValueAddress(pool.view(), segment, g, slot, c, kDim), v[from]);
      }
    }
  }
  std::vector<float> expected(q.size()), expected_lse(shape.num_q_heads);
  for (int h = 0; h < shape.num_q_heads; ++h) {
    const int g = h / kGroup;
    std::vector<bool> is_kept(kPrompt);
    for (int slot = 0; slot < kKept; ++slot) is_kept[kept[g][slot]] = true;
    double sum = 0;
    std::vector<double> mean(kDim);
    for (int j = 0; j < kPrompt; ++j) {
      if (!is_kept[j]) continue;
      double dot = 0;
      for (int c = 0; c < kDim; ++c)
        dot += double{q[h * kDim + c]} * k[(j * kHeads + g) * kDim + c];
      const double weight = std::exp(dot / std::sqrt(double{kDim}));
      sum += weight;
      for (int c = 0; c < kDim; ++c) mean[c] += weight * v[(j * kHeads + g) * kDim + c];
    }
    for (int c = 0; c < kDim; ++c) expected[h * kDim + c] = static_cast<float>(mean[c] / sum);
    expected_lse[h] = static_cast<float>(std::log(sum));
  }
  std::vector<std::unique_ptr<AttentionBackend>> backends;
  backends.push_back(MakeReferenceBackend());
  for (CpuLevel level : Levels()) backends.push_back(*MakeCpuBackend(level, 2));
  for (auto& backend : backends) {
    const Decoded actual = RunDecode(*backend, shape, {{{&segment, 1}}}, q, pool.view());
    EXPECT_LE(Deviation(actual.out, expected), 2e-6) << backend->name();
    EXPECT_LE(Deviation(actual.lse, expected_lse), 2e-6) << backend->name();
  }
}

TEST(DecodeAttention, GivesTheSameBitsAloneInACrowdAndWithAnyThreads) {
  for (ElementType element : {ElementType::kF32, ElementType::kBf16}) {
    const AttentionShape shape = Shape(8, 2, 64);
    Batch batch(element, shape, {2500, 3, 1100, 640});
    const std::vector<float> q = Queries(element, shape, 4, 5);
    const size_t row = q.size() / 4;
    for (CpuLevel level : Levels()) {
      const Decoded crowd =
          RunDecode(**MakeCpuBackend(level, 3), shape, batch.items, q, batch.pool.view());
      for (size_t i = 0; i < 4; ++i) {
        const std::vector<float> own(q.begin() + i * row, q.begin() + (i + 1) * row);
        const Decoded alone =
            RunDecode(**MakeCpuBackend(level, 1), shape, {batch.items[i]}, own, batch.pool.view());
        EXPECT_TRUE(std::equal(alone.out.begin(), alone.out.end(), crowd.out.begin() + i * row))
            << "item " << i;
      }
    }
  }
}

// Scores in the hundreds: the weights of all but the best keys underflow, nothing overflows.
TEST(DecodeAttention, SurvivesLargeScores) {
  for (ElementType element : {ElementType::kF32, ElementType::kBf16}) {
    AttentionShape shape = Shape(4, 1, 64);
    shape.scale = 20;
    Batch batch(element, shape, {1500});
    const std::vector<float> q = Queries(element, shape, 1, 5);
    const Decoded expected =
        RunDecode(*MakeReferenceBackend(), shape, batch.items, q, batch.pool.view());
    for (CpuLevel level : Levels()) {
      const Decoded actual =
          RunDecode(**MakeCpuBackend(level, 2), shape, batch.items, q, batch.pool.view());
      // The scores themselves, about 600, carry a rounding error of 2^-24 of their size and more.
      EXPECT_LE(Deviation(actual.out, expected.out), element == ElementType::kF32 ? 5e-4 : 1e-2);
      EXPECT_LE(Deviation(actual.lse, expected.lse), 1e-5);
    }
  }
}

}  // namespace
}  // namespace ziggurat

// PoD: distant tokens attended with another layer's query and keys, while decoding and in prefill.

#include "tests/attention/distant_layers.h"

namespace ziggurat {
namespace {

// ---- Decode ------------------------------------------------------------------------------------

class DistantDecodeTwins : public testing::TestWithParam<int> {};

TEST_P(DistantDecodeTwins, AgreeWhateverIsSkipped) {
  const int head_dim = GetParam();
  for (const CacheFormat& format : EncodedFormats(head_dim)) {
    if (IsGrouped(format.encoding) && format.group != 16) continue;
    LargestDeviation seen("distant decode " + Name(format) + " D=" + std::to_string(head_dim));
    DistantCounts all;
    for (int group : {1, 4, 7}) {
      const AttentionShape shape = Shape(TwoLayers::kHeads * group, TwoLayers::kHeads, head_dim);
      for (auto [near, distant] : {std::pair{40, 200}, {60, 40}, {1, 1}, {30, 0}}) {
        TwoLayers layers(shape, format, near, distant);
        for (double skip : {2.0, 0.5, 0.0}) {
          const auto run = [&](AttentionBackend& backend) {
            return RunLayers(backend, shape, {&layers}, layers.pool.view(), format.encoding,
                             skip)[0];
          };
          const DistantDecoded expected = run(*MakeReferenceBackend());
          all.attended += expected.counts.attended;
          all.skipped += expected.counts.skipped;
          // Those of the two heads that lend.
          EXPECT_EQ(Stored(expected.distant_lse).size(), 2u * group);
          for (CpuLevel level : SupportedCpuLevels()) {
            const DistantDecoded actual = run(**MakeCpuBackend(level, 1));
            const double deviation =
                std::max({Deviation(actual.out, expected.out), Deviation(actual.lse, expected.lse),
                          Deviation(Stored(actual.distant_lse), Stored(expected.distant_lse))});
            seen.See(deviation);
            EXPECT_LE(deviation, Tolerance(format.encoding))
                << Name(format) << " D " << head_dim << " group " << group << " near " << near
                << " distant " << distant << " skip " << skip;
            EXPECT_EQ(Stored(actual.low_q), Stored(expected.low_q));
            EXPECT_EQ(actual.counts.attended, expected.counts.attended);
            EXPECT_EQ(actual.counts.skipped, expected.counts.skipped);
          }
        }
      }
    }
    EXPECT_GT(all.attended, 0u) << Name(format);
    EXPECT_GT(all.skipped, 0u) << Name(format);
  }
}

INSTANTIATE_TEST_SUITE_P(HeadSizes, DistantDecodeTwins, testing::Values(16, 32, 64, 80, 128));

TEST(DistantDecode, OfALayerWithItsOwnQueriesAndKeysIsOrdinary) {
  const AttentionShape shape = Shape(8, 2, 64);
  for (const CacheFormat& format : EncodedFormats(64)) {
    TestCache cache(shape, {{format, 200}, {CacheFormat::kF32, 50}});
    const std::vector<float> q = RandomTensor(ElementType::kBf16, 8 * 64, 1).floats();
    std::vector<SegmentView> as_distant = cache.segments;
    for (CpuLevel level : SupportedCpuLevels()) {
      auto backend = *MakeCpuBackend(level, 2);
      std::vector<float> low_q(q.size(), NAN), distant_lse(8, NAN), own(q.size()),
          distant(q.size());
      DecodeItem item = {cache.segments};
      backend->DecodeAttention(shape, {&item, 1}, q.data(), cache.pool.view(), own.data(), nullptr);
      item = {as_distant, {}, 0, 0, low_q.data(), distant_lse.data(), 2.0, nullptr};
      for (SegmentUse use : {SegmentUse::kDistantKeys, SegmentUse::kBorrowedKeys}) {
        as_distant[0].use = use;
        backend->DecodeAttention(shape, {&item, 1}, q.data(), cache.pool.view(), distant.data(),
                                 nullptr);
        EXPECT_LE(Deviation(distant, own), 1e-6) << Name(format);
      }
      EXPECT_EQ(low_q, q);
    }
  }
}

// Of three heads in one segment some may skip: they are not attended to, the others are.
TEST(DistantDecode, SkipsHeadByHeadInASegmentOfAllHeads) {
  const AttentionShape shape = Shape(8, 4, 32);
  TestPool pool(CacheGeometry::DefaultBlockBytes(4, 32), 200);
  const SegmentView near = TakeSegment(pool, CacheFormat::kF32, 0, 4, 32, 30);
  const SegmentView lent = TakeSegment(pool, CacheFormat::kF32, 0, 4, 32, 90);
  const SegmentView distant = TakeValuesSegment(pool, lent, 32);
  FillSegment(pool.view(), near, 32, 1);
  FillSegment(pool.view(), lent, 32, 2);
  FillSegment(pool.view(), distant, 32, 3, /*keys=*/false);
  const std::vector<SegmentView> segments = {near, distant};
  const std::vector<float> q = RandomTensor(ElementType::kF32, 8 * 32, 4).floats();
  std::vector<float> low_q = RandomTensor(ElementType::kF32, 8 * 32, 5).floats();
  // Log-sum-exps as if the distant tokens of heads 1 and 2 mattered not at all; of head 0 one of
  // two query heads needs them.
  std::vector<float> distant_lse = {-50, 5, -50, -50, -50, -50, 5, 5};
  std::vector<float> expected;
  for (auto& backend : BackendsWith(2)) {
    DistantCounts counts;
    const DecodeItem item = {segments, {}, 0, 0, low_q.data(), distant_lse.data(), 0.9, &counts};
    std::vector<float> out(q.size()), near_only(q.size());
    backend->DecodeAttention(shape, {&item, 1}, q.data(), pool.view(), out.data(), nullptr);
    const DecodeItem without = {absl::MakeSpan(segments).subspan(0, 1)};
    backend->DecodeAttention(shape, {&without, 1}, q.data(), pool.view(), near_only.data(),
                             nullptr);
    EXPECT_EQ(counts.attended, 2u) << backend->name();
    EXPECT_EQ(counts.skipped, 2u) << backend->name();
    for (int h = 0; h < 8; ++h) {
      const bool is_near =
          std::equal(out.begin() + h * 32, out.begin() + (h + 1) * 32, near_only.begin() + h * 32);
      EXPECT_EQ(is_near, h / 2 == 1 || h / 2 == 2) << backend->name() << " query head " << h;
    }
    if (expected.empty()) expected = out;
    EXPECT_LE(Deviation(out, expected), 1e-5) << backend->name();
  }
}

// Distant tokens of the very log-sum-exp that the near one has: that of a score of 0.
TEST(DistantDecode, SkipsWhereTheNearShareIsJustEnough) {
  const AttentionShape shape = Shape(2, 1, 32);
  TestCache cache(shape, {{CacheFormat::kF32, 1}, {ValuesOnly(CacheFormat::kF32), 30}});
  std::vector<float> q(2 * 32), low_q = q, lse(2), out(q.size());
  for (auto& backend : AllBackends()) {
    const DecodeItem near = {absl::MakeSpan(cache.segments).subspan(0, 1)};
    backend->DecodeAttention(shape, {&near, 1}, q.data(), cache.pool.view(), out.data(),
                             lse.data());
    for (const double skip : {0.5, 0.5000001}) {
      DistantCounts counts;
      const DecodeItem item = {cache.segments, {}, 0, 0, low_q.data(), lse.data(), skip, &counts};
      backend->DecodeAttention(shape, {&item, 1}, q.data(), cache.pool.view(), out.data(), nullptr);
      EXPECT_EQ(counts.skipped, skip == 0.5 ? 1u : 0u) << backend->name();
    }
  }
}

#if !defined(ZIGGURAT_CUDA_TWIN)  // a GPU's warps share what a whole step attends to
TEST(DistantDecode, GivesTheSameBitsAloneAndInACrowd) {
  const AttentionShape shape = Shape(6, TwoLayers::kHeads, 64);
  for (const CacheFormat& format : EncodedFormats(64)) {
    std::deque<TwoLayers> layers;
    for (auto [near, distant] : {std::pair{40, 1300}, {60, 40}, {300, 700}}) {
      layers.emplace_back(shape, format, near, distant);
    }
    for (CpuLevel level : SupportedCpuLevels()) {
      for (TwoLayers& own : layers) {
        // The others have their own pools: only those of one pool share a step.
        const DistantDecoded alone = RunLayers(**MakeCpuBackend(level, 1), shape, {&own},
                                               own.pool.view(), format.encoding, 0.5)[0];
        const std::vector<DistantDecoded> crowd =
            RunLayers(**MakeCpuBackend(level, 3), shape, {&own, &own, &own}, own.pool.view(),
                      format.encoding, 0.5);
        for (const DistantDecoded& each : crowd) {
          EXPECT_EQ(each.out, alone.out) << Name(format);
          EXPECT_EQ(each.lse, alone.lse) << Name(format);
          EXPECT_EQ(each.counts.skipped, alone.counts.skipped) << Name(format);
        }
      }
    }
  }
}
#endif

// ---- Prefill -----------------------------------------------------------------------------------

struct Prompt {
  Prompt(ElementType element, const AttentionShape& shape, int tokens, uint32_t seed) : n(tokens) {
    const size_t q_floats = static_cast<size_t>(n) * shape.num_q_heads * shape.head_dim;
    const size_t kv_floats = static_cast<size_t>(n) * shape.num_kv_heads * shape.head_dim;
    q = RandomTensor(element, q_floats, seed);
    k = RandomTensor(element, kv_floats, seed + 1);
    v = RandomTensor(element, kv_floats, seed + 2);
    low_q = RandomTensor(element, q_floats, seed + 3);
    low_k = RandomTensor(element, kv_floats, seed + 4);
  }
  int n;
  Tensor q, k, v, low_q, low_k;
};

struct Attended {
  std::vector<float> out, lse;
  DistantCounts counts;
};

/// Part by part, the last one first, where `part_rows` is not 0.
Attended RunPrefill(AttentionBackend& backend, const AttentionShape& shape, const Prompt& p,
                    DistantPrefill distant, const std::vector<uint8_t>& borrows, bool in_place,
                    int part_rows = 0) {
  distant.borrows = borrows.data();
  distant.low_q = p.low_q.data();
  distant.low_k = p.low_k.data();
  Tensor out = p.q;
  Attended result;
  result.lse.assign(static_cast<size_t>(p.n) * shape.num_q_heads, NAN);
  const int step = part_rows > 0 ? part_rows : p.n;
  for (int first = (p.n - 1) / step * step; first >= 0; first -= step) {
    if (part_rows > 0) {
      distant.first_row = first;
      distant.end_row = first + step;
    }
    backend.PrefillDistantAttention(shape, p.n,
                                    {p.q.element, in_place ? out.data() : p.q.data(), p.k.data(),
                                     p.v.data(), out.data(), result.lse.data()},
                                    distant, &result.counts);
  }
  result.out = out.floats();
  return result;
}

class DistantPrefillTwins : public testing::TestWithParam<std::tuple<ElementType, int>> {};

TEST_P(DistantPrefillTwins, AgreeForAllShapesOfTheMask) {
  const auto [element, head_dim] = GetParam();
  LargestDeviation seen("distant prefill " + Name(element) + " D=" + std::to_string(head_dim));
  DistantCounts all;
  struct Mask {
    int n, sinks, recent;
    double skip;
  };
  for (int group : {1, 2, 4, 7, 8}) {
    const AttentionShape shape = Shape(2 * group, 2, head_dim);
    for (const Mask& mask : {Mask{1, 1, 1, 2}, Mask{150, 4, 16, 2}, Mask{150, 0, 1, 0.5},
                             Mask{150, 4, 16, 0.5}, Mask{140, 16, 64, 0.0}, Mask{140, 150, 2, 2},
                             Mask{140, 133, 3, 0.4}, Mask{130, 0, 200, 0.5}}) {
      if (kSlowBuild && group > 2) continue;
      if (head_dim > 64 && group != 7 && mask.skip != 0.5) continue;  // the reference is slow
      const Prompt prompt(element, shape, mask.n, static_cast<uint32_t>(group));
      const DistantPrefill distant = {mask.sinks, mask.recent, mask.skip};
      const std::vector<uint8_t> borrows = {1, static_cast<uint8_t>(group % 2)};
      const Attended expected =
          RunPrefill(*MakeReferenceBackend(), shape, prompt, distant, borrows, false);
      all.attended += expected.counts.attended;
      all.skipped += expected.counts.skipped;
      for (CpuLevel level : SupportedCpuLevels()) {
        const Attended actual =
            RunPrefill(**MakeCpuBackend(level, 1), shape, prompt, distant, borrows, true);
        const double deviation =
            std::max(Deviation(actual.out, expected.out), Deviation(actual.lse, expected.lse));
        seen.See(deviation);
        EXPECT_LE(deviation, Tolerance(element))
            << "group " << group << " n " << mask.n << " sinks " << mask.sinks << " recent "
            << mask.recent << " skip " << mask.skip;
        EXPECT_EQ(actual.counts.attended, expected.counts.attended);
        EXPECT_EQ(actual.counts.skipped, expected.counts.skipped);
      }
    }
  }
  EXPECT_GT(all.attended, 0u);
  EXPECT_GT(all.skipped, 0u);
}

INSTANTIATE_TEST_SUITE_P(HeadSizes, DistantPrefillTwins,
                         testing::Combine(testing::Values(ElementType::kF32, ElementType::kBf16),
                                          testing::Values(8, 16, 32, 64, 80, 96, 128, 256)),
                         [](const auto& instance) {
                           return Name(std::get<0>(instance.param)) + "_" +
                                  std::to_string(std::get<1>(instance.param));
                         });

TEST(DistantPrefill, AgreesOverManyChunks) {
  for (ElementType element : {ElementType::kF32, ElementType::kBf16}) {
    const AttentionShape shape = Shape(4, 1, 16);
    for (auto [sinks, recent] : {std::pair{16, 300}, {0, 129}, {130, 1}}) {
      const Prompt prompt(element, shape, kSlowBuild ? 400 : 1100, 3);
      const DistantPrefill distant = {sinks, recent, 0.5};
      const Attended expected =
          RunPrefill(*MakeReferenceBackend(), shape, prompt, distant, {1}, false);
      for (CpuLevel level : SupportedCpuLevels()) {
        const Attended actual =
            RunPrefill(**MakeCpuBackend(level, 3), shape, prompt, distant, {1}, true);
        EXPECT_LE(Deviation(actual.out, expected.out), Tolerance(element));
        EXPECT_LE(Deviation(actual.lse, expected.lse), Tolerance(element));
        EXPECT_EQ(actual.counts.skipped, expected.counts.skipped);
      }
    }
  }
}

// Scores of 0: as many distant tokens as near ones have half of the attention.
TEST(DistantPrefill, SkipsWhereTheNearShareIsJustEnough) {
  const AttentionShape shape = Shape(2, 1, 32);
  Prompt prompt(ElementType::kF32, shape, 30, 3);
  for (Tensor* q : {&prompt.q, &prompt.low_q}) {
    for (size_t i = 0; i < q->size(); ++i) q->set(i, 0);
  }
  for (auto& backend : AllBackends()) {
    const Attended actual = RunPrefill(*backend, shape, prompt, {0, 10, 0.5}, {1}, true);
    EXPECT_EQ(actual.counts.skipped, 10u) << backend->name();
    EXPECT_EQ(actual.counts.attended, 10u) << backend->name();
  }
}

TEST(DistantPrefill, GivesTheSameBitsPartByPart) {
  const AttentionShape shape = Shape(6, 2, 32);
  const Prompt prompt(ElementType::kBf16, shape, 500, 2);
  const DistantPrefill distant = {8, 40, 0.5};
  for (auto& backend : BackendsWith(2)) {
    if (backend->attention_part_rows(shape) == 0) continue;  // a device
    const Attended whole = RunPrefill(*backend, shape, prompt, distant, {1, 0}, true);
    const Attended parts = RunPrefill(*backend, shape, prompt, distant, {1, 0}, true,
                                      std::max(80, backend->attention_part_rows(shape)));
    EXPECT_EQ(parts.out, whole.out) << backend->name();
    EXPECT_EQ(parts.lse, whole.lse) << backend->name();
    EXPECT_EQ(parts.counts.attended, whole.counts.attended) << backend->name();
    EXPECT_EQ(parts.counts.skipped, whole.counts.skipped) << backend->name();
  }
}

TEST(DistantPrefill, OfALayerWithItsOwnQueriesAndKeysIsOrdinary) {
  for (ElementType element : {ElementType::kF32, ElementType::kBf16}) {
    const AttentionShape shape = Shape(6, 2, 64);
    Prompt prompt(element, shape, 500, 1);
    prompt.low_q = prompt.q;
    prompt.low_k = prompt.k;
    for (CpuLevel level : SupportedCpuLevels()) {
      auto backend = *MakeCpuBackend(level, 2);
      std::vector<float> lse(500 * 6);
      Tensor out = prompt.q;
      const int offsets[] = {0, 500};
      backend->PrefillAttention(
          shape, {offsets},
          {element, prompt.q.data(), prompt.k.data(), prompt.v.data(), out.data(), lse.data()});
      const Attended actual = RunPrefill(*backend, shape, prompt, {4, 100, 2.0}, {1, 1}, true);
      EXPECT_LE(Deviation(actual.out, out.floats()), element == ElementType::kF32 ? 2e-6 : 1e-2);
      EXPECT_LE(Deviation(actual.lse, lse), 2e-6);
      EXPECT_EQ(actual.counts.attended, 2u * (500 - 104));
    }
  }
}

}  // namespace
}  // namespace ziggurat

// The reference against itself: what it says in two ways, over the workspace and over blocks, must
// be the same.

#include "tests/attention/test_cache.h"

namespace ziggurat {
namespace {

/// Puts rows [first, last) of k and v into slots from `slot` on.
void Put(AttentionBackend& backend, const AttentionShape& shape, const Tensor* k, const Tensor& v,
         int first, int last, PoolView pool, const SegmentView& to, int slot) {
  backend.WriteTokens(shape, {ElementType::kF32, k == nullptr ? nullptr : k->data(), v.data()},
                      TokenChoice::From(first, last - first), pool, to, slot);
}

TEST(Reference, AttendsToDistantTokensInAPromptAsInADecodeStep) {
  constexpr int kTokens = 60, kSinks = 3, kRecent = 20, kDim = 32, kHeads = 2;
  const AttentionShape shape = Shape(2 * kHeads, kHeads, kDim);
  const size_t q_row = 2 * kHeads * kDim;
  const Tensor q = RandomTensor(ElementType::kF32, kTokens * q_row, 1, 2);
  const Tensor k = RandomTensor(ElementType::kF32, kTokens * kHeads * kDim, 2);
  const Tensor v = RandomTensor(ElementType::kF32, kTokens * kHeads * kDim, 3);
  const Tensor low_q = RandomTensor(ElementType::kF32, kTokens * q_row, 4, 2);
  const Tensor low_k = RandomTensor(ElementType::kF32, kTokens * kHeads * kDim, 5);
  const auto backend = MakeReferenceBackend();
  const uint8_t borrows[] = {1, 0};

  // The last token, over blocks. Tokens kSinks .. kNear - 1 are distant from it.
  constexpr int kNear = kTokens - kRecent;
  TestPool pool(CacheGeometry::DefaultBlockBytes(kHeads, kDim), 200);
  SegmentView lent = TakeSegment(pool, CacheFormat::kF32, 0, 1, kDim, kNear - kSinks);
  Put(*backend, shape, &low_k, v, kSinks, kNear, pool.view(), lent, 0);
  const SegmentView distant = TakeValuesSegment(pool, lent, kDim);
  Put(*backend, shape, nullptr, v, kSinks, kNear, pool.view(), distant, 0);
  const SegmentView near = TakeSegment(pool, CacheFormat::kF32, 0, 1, kDim, kSinks + kRecent);
  Put(*backend, shape, &k, v, 0, kSinks, pool.view(), near, 0);
  Put(*backend, shape, &k, v, kNear, kTokens, pool.view(), near, kSinks);
  const SegmentView other_head = TakeSegment(pool, CacheFormat::kF32, 1, 1, kDim, kTokens);
  Put(*backend, shape, &k, v, 0, kTokens, pool.view(), other_head, 0);
  lent.use = SegmentUse::kDistantKeys;
  const std::vector<SegmentView> lower = {lent}, upper = {near, distant, other_head};

  std::vector<float> step_low_q(q_row, NAN), distant_lse(2 * kHeads, NAN), ignored(q_row);
  DecodeItem item;
  item.low_q = step_low_q.data();
  item.distant_lse = distant_lse.data();
  item.segments = lower;
  const std::vector<float> all_low_q = low_q.floats(), all_q = q.floats();
  backend->DecodeAttention(shape, {&item, 1}, all_low_q.data() + (kTokens - 1) * q_row, pool.view(),
                           ignored.data(), nullptr);
  item.segments = upper;

  for (double skip : {2.0, 0.5, 0.2, 0.0}) {
    DistantCounts step, prompt, prompt_without_last;
    item.skip = skip;
    item.counts = &step;
    std::vector<float> out(q_row), lse(2 * kHeads);
    backend->DecodeAttention(shape, {&item, 1}, all_q.data() + (kTokens - 1) * q_row, pool.view(),
                             out.data(), lse.data());

    const DistantPrefill options{kSinks, kRecent, skip, borrows, low_q.data(), low_k.data()};
    std::vector<float> prompt_out(kTokens * q_row), prompt_lse(kTokens * 2 * kHeads);
    const auto prefill = [&](int n, DistantCounts* counts) {
      backend->PrefillDistantAttention(
          shape, n,
          {ElementType::kF32, q.data(), k.data(), v.data(), prompt_out.data(), prompt_lse.data()},
          options, counts);
    };
    prefill(kTokens - 1, &prompt_without_last);
    prefill(kTokens, &prompt);
    EXPECT_LE(Deviation({prompt_out.end() - q_row, prompt_out.end()}, out), 1e-6) << skip;
    EXPECT_LE(Deviation({prompt_lse.end() - 2 * kHeads, prompt_lse.end()}, lse), 1e-6) << skip;
    EXPECT_EQ(prompt.attended - prompt_without_last.attended, step.attended) << skip;
    EXPECT_EQ(prompt.skipped - prompt_without_last.skipped, step.skipped) << skip;
    EXPECT_EQ(step.attended + step.skipped, 1u) << "one KV head has distant tokens";
    EXPECT_EQ(step.attended, skip >= 2 ? 1u : skip == 0 ? 0u : step.attended);
    // Tokens before position kSinks + kRecent have none.
    EXPECT_EQ(prompt.attended + prompt.skipped, uint64_t{kTokens - kSinks - kRecent});
  }
}

TEST(Reference, AccumulatesInStepsWhatColumnSumsGiveOfAPrompt) {
  constexpr int kTokens = 40, kDim = 16, kHeads = 2;
  const AttentionShape shape = Shape(3 * kHeads, kHeads, kDim);
  const size_t q_row = 3 * kHeads * kDim;
  const Tensor q = RandomTensor(ElementType::kF32, kTokens * q_row, 1, 2);
  const Tensor k = RandomTensor(ElementType::kF32, kTokens * kHeads * kDim, 2);
  const auto backend = MakeReferenceBackend();
  const int offsets[] = {0, kTokens};
  std::vector<float> out(kTokens * q_row), lse(kTokens * 3 * kHeads), sums(kHeads * kTokens);
  backend->PrefillAttention(
      shape, {offsets}, {ElementType::kF32, q.data(), k.data(), k.data(), out.data(), lse.data()});
  backend->ColumnSums(shape, {ElementType::kF32, q.data(), lse.data(), k.data(), kTokens, kTokens},
                      0, kTokens, ScoreRows::kKvHeads, sums.data(), kTokens);

  TestPool pool(CacheGeometry::DefaultBlockBytes(kHeads, kDim), 50);
  SegmentView s = TakeSegment(pool, Scored(CacheFormat::kF32), 0, kHeads, kDim, kTokens);
  const std::vector<float> all_q = q.floats(), all_k = k.floats();
  double mass = 0;
  for (int i = 0; i < kTokens; ++i) {
    const TokenTarget target{0, i};
    s.num_slots = i + 1;
    DecodeItem item;
    item.segments = {&s, 1};
    item.targets = {&target, 1};
    item.position = i;
    const float* step_q = all_q.data() + i * q_row;
    const float* step_k = all_k.data() + size_t{1} * i * kHeads * kDim;
    std::vector<float> step_out(q_row), step_lse(3 * kHeads);
    backend->WriteStep(shape, {&item, 1}, step_k, step_k, pool.view());
    backend->DecodeAttention(shape, {&item, 1}, step_q, pool.view(), step_out.data(),
                             step_lse.data());
    backend->AccumulateScores(shape, {&item, 1}, step_q, step_lse.data(), pool.view());
    EXPECT_LE(Deviation(step_out, {out.begin() + i * q_row, out.begin() + (i + 1) * q_row}), 1e-6);
    mass = backend->SlotMass(shape, s, 0, i + 1, step_q, step_lse.data(), pool.view());
    EXPECT_NEAR(mass, 1, 1e-6);
    EXPECT_NEAR(backend->SlotMass(shape, s, 0, 1, step_q, step_lse.data(), pool.view()) +
                    backend->SlotMass(shape, s, 1, i + 1, step_q, step_lse.data(), pool.view()),
                1, 1e-6);
  }
  std::vector<float> accumulated;
  for (int head = 0; head < kHeads; ++head) {
    for (int slot = 0; slot < kTokens; ++slot) {
      accumulated.push_back(
          Get(ElementType::kF32, EntryAddress(pool.view(), s, s.scores, head, slot)));
    }
  }
  EXPECT_LE(Deviation(accumulated, sums), 1e-5);
}

TEST(Reference, SumsCosines) {
  const float a[] = {1, 0, 0, 0, 3, 4}, b[] = {2, 0, 0, 0, 4, 3};
  const auto backend = MakeReferenceBackend();
  // 1 for the parallel row, 1 where both are zero, 24 / 25.
  EXPECT_NEAR(backend->CosineSum(a, b, 3, 2), 2.96, 1e-9);
  const float zero[] = {0, 0, 0, 0, -3, -4};
  EXPECT_NEAR(backend->CosineSum(a, zero, 3, 2), 0 + 1 - 1, 1e-9);
}

}  // namespace
}  // namespace ziggurat

// Prefill attention: every level against the reference, the reference against a masked softmax.

#include "tests/attention/test_cache.h"

namespace ziggurat {
namespace {

struct Workspace {
  Workspace(ElementType element, const AttentionShape& shape, std::vector<int> row_offsets,
            uint32_t seed)
      : offsets(std::move(row_offsets)) {
    const size_t n = offsets.back(), dim = shape.head_dim;
    q = RandomTensor(element, n * shape.num_q_heads * dim, seed);
    k = RandomTensor(element, n * shape.num_kv_heads * dim, seed + 1);
    v = RandomTensor(element, n * shape.num_kv_heads * dim, seed + 2);
  }
  std::vector<int> offsets;
  Tensor q, k, v;
};

struct Attended {
  std::vector<float> out, lse;
};

Attended RunPrefill(AttentionBackend& backend, const AttentionShape& shape, const Workspace& w,
                    bool in_place) {
  Tensor out = w.q;  // in place: the queries are there
  Attended result;
  result.lse.assign(static_cast<size_t>(w.offsets.back()) * shape.num_q_heads, NAN);
  backend.PrefillAttention(shape, {w.offsets},
                           {w.q.element, in_place ? out.data() : w.q.data(), w.k.data(), w.v.data(),
                            out.data(), result.lse.data()});
  result.out = out.floats();
  return result;
}

class PrefillTwins : public testing::TestWithParam<std::tuple<ElementType, int>> {};

TEST_P(PrefillTwins, AgreeOnPackedPromptsInPlace) {
  const auto [element, head_dim] = GetParam();
  LargestDeviation seen("prefill " + Name(element) + " D=" + std::to_string(head_dim));
  // Lengths 1, 17, 0, 64, 65, 130, 33 and 200.
  const std::vector<int> offsets = {0, 1, 18, 18, 82, 147, 277, 310, 510};
  for (int group : {1, 2, 4, 8, 3, 7}) {
    const AttentionShape shape = Shape(2 * group, 2, head_dim);
    std::vector<int> own = offsets;
    if (group > 2 || kSlowBuild) own.resize(6);  // the reference is slow
    const Workspace w(element, shape, own, group);
    const Attended expected = RunPrefill(*MakeReferenceBackend(), shape, w, true);
    for (CpuLevel level : SupportedCpuLevels()) {
      for (int threads : ThreadCounts()) {
        auto backend = *MakeCpuBackend(level, threads);
        const Attended actual = RunPrefill(*backend, shape, w, /*in_place=*/threads != 2);
        const double out = Deviation(actual.out, expected.out);
        const double lse = Deviation(actual.lse, expected.lse);
        seen.See(std::max(out, lse));
        EXPECT_LE(out, Tolerance(element)) << backend->name() << " group " << group;
        EXPECT_LE(lse, Tolerance(element)) << backend->name() << " group " << group;
      }
    }
  }
}

TEST_P(PrefillTwins, AgreeOnALongPrompt) {
  const auto [element, head_dim] = GetParam();
  LargestDeviation seen("prefill long " + Name(element) + " D=" + std::to_string(head_dim));
  const AttentionShape shape = Shape(2, 1, head_dim);
  const Workspace w(element, shape, {0, kSlowBuild ? 190 : 777}, 5);
  const Attended expected = RunPrefill(*MakeReferenceBackend(), shape, w, false);
  for (CpuLevel level : SupportedCpuLevels()) {
    auto backend = *MakeCpuBackend(level, 2);
    const Attended actual = RunPrefill(*backend, shape, w, true);
    seen.See(Deviation(actual.out, expected.out));
    EXPECT_LE(Deviation(actual.out, expected.out), Tolerance(element)) << backend->name();
    EXPECT_LE(Deviation(actual.lse, expected.lse), Tolerance(element)) << backend->name();
  }
}

/// Groups whose queries fill several sub-blocks, over prompts of several chunks of keys.
TEST(PrefillLengths, EveryGroupAgreesOverSeveralChunks) {
  for (ElementType element : {ElementType::kF32, ElementType::kBf16}) {
    LargestDeviation seen("prefill chunks " + Name(element));
    for (int group : {1, 2, 4, 8, 3, 7}) {
      const AttentionShape shape = Shape(group, 1, 32);
      const Workspace w(element, shape, {0, kSlowBuild ? 140 : 259, kSlowBuild ? 150 : 388}, group);
      const Attended expected = RunPrefill(*MakeReferenceBackend(), shape, w, false);
      for (CpuLevel level : SupportedCpuLevels()) {
        const Attended actual = RunPrefill(**MakeCpuBackend(level, 2), shape, w, true);
        seen.See(Deviation(actual.out, expected.out));
        EXPECT_LE(Deviation(actual.out, expected.out), Tolerance(element)) << "group " << group;
        EXPECT_LE(Deviation(actual.lse, expected.lse), Tolerance(element)) << "group " << group;
      }
    }
  }
}

/// The borders of blocks and chunks up to the longest length; one small head, since the reference
/// is slow.
TEST(PrefillLengths, LongPromptsAgree) {
  for (ElementType element : {ElementType::kF32, ElementType::kBf16}) {
    LargestDeviation seen("prefill lengths " + Name(element));
    const AttentionShape shape = Shape(1, 1, 8);
    for (int length : {127, 128, 129, 1023, 1024, 1025, 4095, 4096, 4097}) {
      if (kSlowBuild && length > 1025) continue;
      const Workspace w(element, shape, {0, length}, 3);
      const Attended expected = RunPrefill(*MakeReferenceBackend(), shape, w, false);
      for (CpuLevel level : SupportedCpuLevels()) {
        const Attended actual = RunPrefill(**MakeCpuBackend(level, 2), shape, w, true);
        seen.See(Deviation(actual.out, expected.out));
        EXPECT_LE(Deviation(actual.out, expected.out), Tolerance(element)) << length << " tokens";
        EXPECT_LE(Deviation(actual.lse, expected.lse), Tolerance(element)) << length << " tokens";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HeadSizes, PrefillTwins,
                         testing::Combine(testing::Values(ElementType::kF32, ElementType::kBf16),
                                          testing::Values(8, 16, 24, 32, 40, 64, 80, 96, 128, 256)),
                         [](const auto& instance) {
                           return Name(std::get<0>(instance.param)) + "_" +
                                  std::to_string(std::get<1>(instance.param));
                         });

TEST(PrefillAttention, EqualsAMaskedSoftmax) {
  constexpr int kTokens = 90, kDim = 16;
  const AttentionShape shape = Shape(6, 2, kDim);
  // Two prompts: neither sees the other.
  const Workspace w(ElementType::kF32, shape, {0, 31, kTokens}, 3);
  std::vector<float> expected(w.q.size()), expected_lse(kTokens * 6);
  for (int i = 0; i < kTokens; ++i) {
    for (int h = 0; h < 6; ++h) {
      double sum = 0;
      std::vector<double> mean(kDim);
      for (int j = 0; j < kTokens; ++j) {
        const bool is_masked = j > i || (i >= 31) != (j >= 31);
        double dot = 0;
        for (int c = 0; c < kDim; ++c) {
          dot += double{w.q.at((i * 6 + h) * kDim + c)} * w.k.at((j * 2 + h / 3) * kDim + c);
        }
        const double weight = is_masked ? 0 : std::exp(dot / 4);  // sqrt(16)
        sum += weight;
        for (int c = 0; c < kDim; ++c) mean[c] += weight * w.v.at((j * 2 + h / 3) * kDim + c);
      }
      for (int c = 0; c < kDim; ++c) {
        expected[(i * 6 + h) * kDim + c] = static_cast<float>(mean[c] / sum);
      }
      expected_lse[i * 6 + h] = static_cast<float>(std::log(sum));
    }
  }
  for (auto& backend : BackendsWith(2)) {
    const Attended actual = RunPrefill(*backend, shape, w, true);
    EXPECT_LE(Deviation(actual.out, expected), 2e-6) << backend->name();
    EXPECT_LE(Deviation(actual.lse, expected_lse), 2e-6) << backend->name();
  }
}

TEST(PrefillAttention, GivesTheSameBitsAloneAndPacked) {
  for (ElementType element : {ElementType::kF32, ElementType::kBf16}) {
    const AttentionShape shape = Shape(4, 2, 32);
    const Workspace packed(element, shape, {0, 45, 345, 400}, 8);
    const size_t row = 4 * 32;
    for (CpuLevel level : SupportedCpuLevels()) {
      const Attended crowd = RunPrefill(**MakeCpuBackend(level, 3), shape, packed, true);
      Workspace alone(element, shape, {0, 300}, 1);
      for (size_t i = 0; i < alone.q.size(); ++i) alone.q.set(i, packed.q.at(45 * row + i));
      for (size_t i = 0; i < alone.k.size(); ++i) {
        alone.k.set(i, packed.k.at(45 * row / 2 + i));
        alone.v.set(i, packed.v.at(45 * row / 2 + i));
      }
      const Attended own = RunPrefill(**MakeCpuBackend(level, 1), shape, alone, true);
      EXPECT_TRUE(std::equal(own.out.begin(), own.out.end(), crowd.out.begin() + 45 * row));
    }
  }
}

TEST(PrefillAttention, IsSafeFromWhatIsNoNumberInTheNextPrompt) {
  for (ElementType element : {ElementType::kF32, ElementType::kBf16}) {
    for (int tokens : {1, 31, 45, 129}) {
      const AttentionShape shape = Shape(4, 2, 40);
      const Workspace clean(element, shape, {0, tokens, tokens + 9}, 8);
      Workspace spoilt = clean;
      for (Tensor* x : {&spoilt.q, &spoilt.k, &spoilt.v}) {
        for (size_t i = x->size() / (tokens + 9) * tokens; i < x->size(); ++i) x->set(i, NAN);
      }
      for (CpuLevel level : SupportedCpuLevels()) {
        auto backend = *MakeCpuBackend(level, 1);
        std::vector<float> expected = RunPrefill(*backend, shape, clean, true).out;
        std::vector<float> actual = RunPrefill(*backend, shape, spoilt, true).out;
        expected.resize(size_t{1} * tokens * 4 * 40);
        actual.resize(expected.size());
        EXPECT_EQ(actual, expected) << backend->name() << " " << tokens << " tokens";
      }
    }
  }
}

TEST(PrefillAttention, GivesTheSameBitsPartByPart) {
  for (ElementType element : {ElementType::kF32, ElementType::kBf16}) {
    for (int group : {1, 3, 4, 8}) {
      const AttentionShape shape = Shape(2 * group, 2, 32);
      const Workspace w(element, shape, {0, 45, 45, 645, 646, 1000}, group);
      for (auto& backend : group == 3 ? BackendsWith(2) : CpuBackends(2)) {
        const Attended whole = RunPrefill(*backend, shape, w, true);
        const int rows = backend->attention_part_rows(shape);
        if (rows == 0) continue;  // a device
        // In place, from inside one prompt to inside another, the last part first.
        Tensor out = w.q;
        std::vector<float> lse(whole.lse.size(), NAN);
        const int cuts[] = {0, 45 + rows, 45 + std::min(2 * rows, 600), 646 + rows, 1000};
        for (int part = 3; part >= 0; --part) {
          backend->PrefillAttention(
              shape, {w.offsets, cuts[part], cuts[part + 1]},
              {element, out.data(), w.k.data(), w.v.data(), out.data(), lse.data()});
          EXPECT_TRUE(cuts[part] == 0 || std::isnan(lse[cuts[part] * shape.num_q_heads - 1]));
        }
        EXPECT_EQ(out.floats(), whole.out) << backend->name() << " group " << group;
        EXPECT_EQ(lse, whole.lse) << backend->name() << " group " << group;
      }
    }
  }
}

}  // namespace
}  // namespace ziggurat

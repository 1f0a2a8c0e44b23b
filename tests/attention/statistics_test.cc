// Window scores and the selection by them, column sums, cosines.

#include "tests/attention/test_cache.h"

namespace ziggurat {
namespace {

struct WindowCase {
  WindowCase(ElementType element, const AttentionShape& s, int tokens, int last, uint32_t seed)
      : shape(s), n(tokens), window(last) {
    const size_t q_row = static_cast<size_t>(s.num_q_heads) * s.head_dim;
    k = RandomTensor(element, static_cast<size_t>(n) * s.num_kv_heads * s.head_dim, seed);
    const Tensor v = k;
    q_window = RandomTensor(element, window * q_row, seed + 1);
    // The log-sum-exp of these rows as the prefill of the whole prompt gives it; only the last
    // `window` rows of q matter for that.
    Tensor q = RandomTensor(element, n * q_row, seed + 2);
    for (size_t i = 0; i < q_window.size(); ++i) q.set((n - window) * q_row + i, q_window.at(i));
    std::vector<float> all(static_cast<size_t>(n) * s.num_q_heads);
    const int offsets[] = {0, n};
    (*MakeCpuBackend(SupportedCpuLevels().front(), 2))
        ->PrefillAttention(s, {offsets},
                           {element, q.data(), k.data(), v.data(), q.data(), all.data()});
    lse.assign(all.end() - static_cast<ptrdiff_t>(window) * s.num_q_heads, all.end());
  }
  std::vector<float> Run(AttentionBackend& backend, int kernel, WindowPooling pooling) const {
    std::vector<float> scores(static_cast<size_t>(shape.num_kv_heads) * std::max(0, n - window),
                              NAN);
    backend.WindowScores(shape, {k.element, q_window.data(), lse.data(), k.data(), n, window},
                         kernel, pooling, scores.data());
    return scores;
  }
  AttentionShape shape;
  int n, window;
  Tensor k, q_window;
  std::vector<float> lse;
};

class WindowScoreTwins : public testing::TestWithParam<std::tuple<ElementType, int>> {};

// Prompt lengths n with n mod chunk in {0, 1, w-1, w, w+1}, for the kernels' own chunk and for the
// block, with the window counted from the end.
TEST_P(WindowScoreTwins, AgreeAtEveryPromptLengthModuloTheChunk) {
  const auto [element, head_dim] = GetParam();
  LargestDeviation seen("window scores " + Name(element) + " D=" + std::to_string(head_dim));
  for (int group : kSlowBuild ? std::vector<int>{1, 3} : std::vector<int>{1, 4, 3}) {
    for (int window : kSlowBuild ? std::vector<int>{8} : std::vector<int>{8, 32}) {
      std::vector<int> lengths = {window + 1};
      // The reference takes its time: the longer prompts with one query head per KV head only.
      for (int chunk : group == 1 ? std::vector<int>{64, 256} : std::vector<int>{64}) {
        for (int rest : {0, 1, window - 1, window, window + 1}) lengths.push_back(chunk + rest);
      }
      for (int n : lengths) {
        const WindowCase c(element, Shape(2 * group, 2, head_dim), n, window, n);
        const WindowPooling pooling = n % 2 == 0 ? WindowPooling::kAverage : WindowPooling::kMax;
        const auto expected = c.Run(*MakeReferenceBackend(), 5, pooling);
        for (CpuLevel level : SupportedCpuLevels()) {
          auto backend = *MakeCpuBackend(level, 2);
          const double deviation = Deviation(c.Run(*backend, 5, pooling), expected);
          seen.See(deviation);
          EXPECT_LE(deviation, Tolerance(element)) << backend->name() << " n " << n;
        }
      }
    }
  }
}

// Wide windows are scored in parts; every group over more than one of the kernels' chunks of keys.
TEST(WindowScores, AgreeOnWideWindowsOfEveryGroup) {
  for (ElementType element : {ElementType::kF32, ElementType::kBf16}) {
    for (int group : {1, 2, 4, 8, 3}) {
      for (int window : {63, 64, 65, 200}) {
        const WindowCase c(element, Shape(group, 1, 96), window + 300, window, group);
        const auto expected = c.Run(*MakeReferenceBackend(), 5, WindowPooling::kAverage);
        for (CpuLevel level : SupportedCpuLevels()) {
          const auto actual = c.Run(**MakeCpuBackend(level, 2), 5, WindowPooling::kAverage);
          EXPECT_LE(Deviation(actual, expected), Tolerance(element))
              << "group " << group << " window " << window;
        }
      }
    }
  }
}

TEST(WindowScores, AgreeOnALongPrompt) {
  for (ElementType element : {ElementType::kF32, ElementType::kBf16}) {
    const WindowCase c(element, Shape(4, 2, 32), kSlowBuild ? 600 : 2050, 16, 1);
    for (int kernel : {1, 5, 7}) {
      for (WindowPooling pooling : {WindowPooling::kAverage, WindowPooling::kMax}) {
        const auto expected = c.Run(*MakeReferenceBackend(), kernel, pooling);
        for (CpuLevel level : SupportedCpuLevels()) {
          const auto actual = c.Run(**MakeCpuBackend(level, 3), kernel, pooling);
          EXPECT_LE(Deviation(actual, expected), Tolerance(element)) << kernel;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HeadSizes, WindowScoreTwins,
                         testing::Combine(testing::Values(ElementType::kF32, ElementType::kBf16),
                                          testing::Values(8, 16, 32, 64, 80, 128, 256)),
                         [](const auto& instance) {
                           return Name(std::get<0>(instance.param)) + "_" +
                                  std::to_string(std::get<1>(instance.param));
                         });

// From the definition: the attention matrix of the window rows, averaged, pooled with zero padding.
TEST(WindowScores, AreTheMeanAttentionOfTheWindow) {
  constexpr int kTokens = 50, kWindow = 8, kDim = 16, kHeads = 2, kGroup = 2;
  const WindowCase c(ElementType::kF32, Shape(kHeads * kGroup, kHeads, kDim), kTokens, kWindow, 4);
  for (WindowPooling pooling : {WindowPooling::kAverage, WindowPooling::kMax}) {
    std::vector<float> expected;
    for (int g = 0; g < kHeads; ++g) {
      std::vector<double> mean(kTokens - kWindow);
      for (int i = 0; i < kWindow; ++i) {
        for (int h = g * kGroup; h < (g + 1) * kGroup; ++h) {
          std::vector<double> row;
          double sum = 0;
          for (int j = 0; j <= kTokens - kWindow + i; ++j) {  // causal
            double dot = 0;
            for (int d = 0; d < kDim; ++d) {
              dot += double{c.q_window.at((i * kHeads * kGroup + h) * kDim + d)} *
                     c.k.at((j * kHeads + g) * kDim + d);
            }
            row.push_back(std::exp(dot / 4));
            sum += row.back();
          }
          for (size_t j = 0; j < mean.size(); ++j) mean[j] += row[j] / sum / (kWindow * kGroup);
        }
      }
      for (int j = 0; j < kTokens - kWindow; ++j) {
        double sum = 0, highest = 0;
        for (int i = std::max(0, j - 1); i <= std::min(kTokens - kWindow - 1, j + 1); ++i) {
          sum += mean[i];
          highest = std::max(highest, mean[i]);
        }
        expected.push_back(
            static_cast<float>(pooling == WindowPooling::kAverage ? sum / 3 : highest));
      }
    }
    EXPECT_LE(Deviation(c.Run(*MakeReferenceBackend(), 3, pooling), expected), 5e-6);
    for (CpuLevel level : SupportedCpuLevels()) {
      EXPECT_LE(Deviation(c.Run(**MakeCpuBackend(level, 2), 3, pooling), expected), 5e-6);
    }
  }
}

TEST(WindowScores, OfAPromptWithinTheWindowAreEmpty) {
  const WindowCase c(ElementType::kF32, Shape(2, 1, 16), 8, 8, 1);
  for (CpuLevel level : SupportedCpuLevels()) {
    EXPECT_TRUE(c.Run(**MakeCpuBackend(level, 2), 5, WindowPooling::kAverage).empty());
  }
}

// ---- Column sums -------------------------------------------------------------------------------

struct ColumnCase {
  ColumnCase(ElementType element, const AttentionShape& s, int tokens, uint32_t seed)
      : shape(s), n(tokens) {
    q = RandomTensor(element, static_cast<size_t>(n) * s.num_q_heads * s.head_dim, seed);
    k = RandomTensor(element, static_cast<size_t>(n) * s.num_kv_heads * s.head_dim, seed + 1);
    lse.resize(static_cast<size_t>(n) * s.num_q_heads);
    const int offsets[] = {0, n};
    Tensor out = q;
    (*MakeCpuBackend(SupportedCpuLevels().front(), 2))
        ->PrefillAttention(s, {offsets},
                           {element, q.data(), k.data(), k.data(), out.data(), lse.data()});
  }
  std::vector<float> Run(AttentionBackend& backend, int rows, int begin, int end,
                         ScoreRows score_rows) const {
    const int heads = score_rows == ScoreRows::kKvHeads ? shape.num_kv_heads : shape.num_q_heads;
    std::vector<float> sums(static_cast<size_t>(heads) * (end - begin), NAN);
    Sum(backend, rows, begin, end, score_rows, sums.data(), end - begin);
    return sums;
  }
  void Sum(AttentionBackend& backend, int rows, int begin, int end, ScoreRows score_rows,
           float* sums, size_t stride) const {
    const size_t skipped = static_cast<size_t>(n - rows) * shape.num_q_heads;
    const std::byte* q_rows = q.bytes.data() + skipped * shape.head_dim * ElementBytes(q.element);
    backend.ColumnSums(shape, {q.element, q_rows, lse.data() + skipped, k.data(), n, rows}, begin,
                       end, score_rows, sums, stride);
  }
  AttentionShape shape;
  int n;
  Tensor q, k;
  std::vector<float> lse;
};

class ColumnSumTwins : public testing::TestWithParam<std::tuple<ElementType, int>> {};

// Prompt lengths n with n mod chunk in {0, 1, w-1, w, w+1}, of the last w queries and of all.
TEST_P(ColumnSumTwins, AgreeAtEveryPromptLengthModuloTheChunk) {
  const auto [element, head_dim] = GetParam();
  LargestDeviation seen("column sums " + Name(element) + " D=" + std::to_string(head_dim));
  constexpr int kWindow = 16;
  for (int group : kSlowBuild ? std::vector<int>{1, 7} : std::vector<int>{1, 2, 4, 7, 8}) {
    for (int rest : {0, 1, kWindow - 1, kWindow, kWindow + 1}) {
      const int n = (group > 1 || head_dim > 64 ? 64 : 128) + rest;
      const ColumnCase c(element, Shape(2 * group, 2, head_dim), n, n);
      for (ScoreRows score_rows : {ScoreRows::kKvHeads, ScoreRows::kQueryHeads}) {
        for (auto [rows, begin, end] : {std::tuple{n, 0, n},
                                        {kWindow, 0, n},
                                        {kWindow, 0, 4},
                                        {kWindow, n - 20, n},
                                        {1, 0, n},
                                        {n, 30, 31},
                                        {kWindow, 9, 9}}) {
          const auto expected = c.Run(*MakeReferenceBackend(), rows, begin, end, score_rows);
          for (CpuLevel level : SupportedCpuLevels()) {
            const auto actual = c.Run(**MakeCpuBackend(level, 1), rows, begin, end, score_rows);
            seen.See(Deviation(actual, expected));
            EXPECT_LE(Deviation(actual, expected), Tolerance(element))
                << "group " << group << " n " << n << " rows " << rows << " keys [" << begin << ", "
                << end << ")";
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HeadSizes, ColumnSumTwins,
                         testing::Combine(testing::Values(ElementType::kF32, ElementType::kBf16),
                                          testing::Values(8, 16, 32, 64, 80, 96, 128, 256)),
                         [](const auto& instance) {
                           return Name(std::get<0>(instance.param)) + "_" +
                                  std::to_string(std::get<1>(instance.param));
                         });

TEST(ColumnSums, AgreeOverManyChunksAndQueryTiles) {
  for (ElementType element : {ElementType::kF32, ElementType::kBf16}) {
    const ColumnCase c(element, Shape(4, 2, 16), kSlowBuild ? 300 : 1300, 1);
    for (ScoreRows score_rows : {ScoreRows::kKvHeads, ScoreRows::kQueryHeads}) {
      for (auto [rows, begin] : {std::pair{c.n, 0}, {65, 0}, {c.n - 1, 257}}) {
        const auto expected = c.Run(*MakeReferenceBackend(), rows, begin, c.n, score_rows);
        for (CpuLevel level : SupportedCpuLevels()) {
          const auto one = c.Run(**MakeCpuBackend(level, 1), rows, begin, c.n, score_rows);
          EXPECT_LE(Deviation(one, expected), Tolerance(element)) << rows << " rows";
          EXPECT_EQ(one, c.Run(**MakeCpuBackend(level, 3), rows, begin, c.n, score_rows));
        }
      }
    }
  }
}

// More keys than a block has, of heads that fill its registers; queries in several parts.
TEST(ColumnSums, AgreeOnWideHeadsAndMoreKeysThanABlockHas) {
  for (int head_dim : kSlowBuild ? std::vector<int>{128} : std::vector<int>{64, 128, 200, 256}) {
    const ColumnCase c(ElementType::kBf16, Shape(8, 2, head_dim), kSlowBuild ? 300 : 555, head_dim);
    for (ScoreRows score_rows : {ScoreRows::kKvHeads, ScoreRows::kQueryHeads}) {
      for (auto [rows, begin, end] : {std::tuple{c.n, 0, c.n}, {70, 17, c.n - 3}, {32, 0, 259}}) {
        const auto expected = c.Run(*MakeReferenceBackend(), rows, begin, end, score_rows);
        for (CpuLevel level : SupportedCpuLevels()) {
          const auto actual = c.Run(**MakeCpuBackend(level, 2), rows, begin, end, score_rows);
          EXPECT_LE(Deviation(actual, expected), Tolerance(ElementType::kBf16))
              << "D " << head_dim << " rows " << rows;
        }
      }
    }
  }
}

TEST(ColumnSums, InPartsHaveTheSameBits) {
  for (ElementType element : {ElementType::kF32, ElementType::kBf16}) {
    for (int head_dim : {64, 80}) {
      const ColumnCase c(element, Shape(6, 2, head_dim), kSlowBuild ? 300 : 1177, 1);
      for (ScoreRows score_rows : {ScoreRows::kKvHeads, ScoreRows::kQueryHeads}) {
        for (CpuLevel level : SupportedCpuLevels()) {
          const auto backend = *MakeCpuBackend(level, 2);
          const std::vector<float> all = c.Run(*backend, c.n, 0, c.n, score_rows);
          // Rows of the sums lie apart, and what is between them stays.
          const size_t stride = c.n + 3, heads = all.size() / c.n;
          std::vector<float> expected(heads * stride, -1);
          for (size_t head = 0; head < heads; ++head) {
            std::copy_n(all.begin() + head * c.n, c.n, expected.begin() + head * stride);
          }
          for (const int parts : {1, 2, 5}) {
            const int part = backend->column_part_keys();
            const int keys = part == 0 ? c.n : parts * part;  // 0: a device
            std::vector<float> sums(expected.size(), -1);
            for (int begin = 0; begin < c.n; begin += keys) {
              c.Sum(*backend, c.n, begin, std::min(begin + keys, c.n), score_rows,
                    sums.data() + begin, stride);
            }
            EXPECT_EQ(sums, expected) << backend->name() << ", parts of " << keys << " keys";
          }
        }
      }
    }
  }
}

// The attention of every query sums to 1 over the keys it sees, which are its own and those before.
TEST(ColumnSums, OfAllKeysSumToTheNumberOfQueries) {
  const ColumnCase c(ElementType::kF32, Shape(6, 3, 32), 700, 1);
  for (auto& backend : BackendsWith(2)) {
    for (int rows : {1, 100, 700}) {
      const std::vector<float> sums = c.Run(*backend, rows, 0, 700, ScoreRows::kKvHeads);
      for (int g = 0; g < 3; ++g) {
        const double sum =
            std::accumulate(sums.begin() + g * 700, sums.begin() + (g + 1) * 700, 0.0);
        EXPECT_NEAR(sum, rows, 1e-4 * rows) << backend->name();
      }
      // The last key is seen by the last query alone.
      EXPECT_LT(sums[699], 1) << backend->name();
    }
  }
}

// ---- Cosines -----------------------------------------------------------------------------------

TEST(CosineSum, AgreesWithTheReferenceForAnyThreads) {
  for (int width : {1, 7, 16, 100, 1024, 4099}) {
    for (int rows : {1, 5, 300}) {
      std::vector<float> a = RandomTensor(ElementType::kF32, rows * width, 1).floats();
      std::vector<float> b = RandomTensor(ElementType::kF32, rows * width, 2).floats();
      for (size_t i = 0; i < b.size(); ++i) b[i] += a[i];
      if (rows > 4) {  // one zero row in either, and one in both
        std::fill_n(a.begin() + width, width, 0.0f);
        std::fill_n(b.begin() + 2 * width, width, 0.0f);
        std::fill_n(a.begin() + 3 * width, width, 0.0f);
        std::fill_n(b.begin() + 3 * width, width, 0.0f);
      }
      const double expected = MakeReferenceBackend()->CosineSum(a.data(), b.data(), rows, width);
      for (CpuLevel level : SupportedCpuLevels()) {
        const double one = (*MakeCpuBackend(level, 1))->CosineSum(a.data(), b.data(), rows, width);
        EXPECT_NEAR(one, expected, 1e-6 * rows) << width;
        EXPECT_EQ(one, (*MakeCpuBackend(level, 3))->CosineSum(a.data(), b.data(), rows, width));
      }
    }
  }
  const float zero[4] = {}, one[4] = {1, 0, 0, 0}, opposite[4] = {-2, 0, 0, 0};
  for (CpuLevel level : SupportedCpuLevels()) {
    auto backend = *MakeCpuBackend(level, 1);
    EXPECT_EQ(backend->CosineSum(zero, zero, 1, 4), 1);
    EXPECT_EQ(backend->CosineSum(zero, one, 1, 4), 0);
    EXPECT_EQ(backend->CosineSum(one, zero, 1, 4), 0);
    EXPECT_EQ(backend->CosineSum(one, one, 1, 4), 1);
    EXPECT_EQ(backend->CosineSum(one, opposite, 1, 4), -1);
    for (const float scale : {1e-40f, 1e-30f, 1e-18f, 1e18f, 1e30f}) {  // squares of no f32
      const float a[4] = {scale, 0, 0, scale}, b[4] = {scale, 0, 0, 0};
      EXPECT_NEAR(backend->CosineSum(a, b, 1, 4), std::sqrt(0.5), 1e-6) << scale;
    }
  }
}

// ---- Selection ---------------------------------------------------------------------------------

std::vector<int32_t> Select(AttentionBackend& backend, const std::vector<float>& scores, int heads,
                            int best) {
  std::vector<int32_t> indices(static_cast<size_t>(heads) * best, -1);
  const int candidates = static_cast<int>(scores.size()) / heads;
  backend.SelectBest(scores.data(), candidates, heads, candidates, best, indices.data());
  return indices;
}

TEST(SelectBest, TakesTheLowerIndexOfEqualScores) {
  const std::vector<float> scores = {0.5f, 0.25f, 0.5f, 0.0f, 0.5f, -0.0f, 0.75f};
  for (auto& backend : BackendsWith(2)) {
    EXPECT_EQ(Select(*backend, scores, 1, 3), (std::vector<int32_t>{0, 2, 6}));
    EXPECT_EQ(Select(*backend, scores, 1, 1), (std::vector<int32_t>{6}));
    EXPECT_EQ(Select(*backend, scores, 1, 6), (std::vector<int32_t>{0, 1, 2, 3, 4, 6}));
    EXPECT_EQ(Select(*backend, scores, 1, 7), (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6}));
    EXPECT_EQ(Select(*backend, scores, 7, 1), (std::vector<int32_t>(7, 0)));
    EXPECT_TRUE(Select(*backend, scores, 1, 0).empty());
  }
}

TEST(SelectBest, TakesZerosOfEitherSignForEqual) {
  for (auto& backend : BackendsWith(2)) {
    EXPECT_EQ(Select(*backend, {-1, -0.0f, 0.0f}, 1, 1), (std::vector<int32_t>{1}));
    EXPECT_EQ(Select(*backend, {-1, 0.0f, -0.0f}, 1, 1), (std::vector<int32_t>{1}));
  }
}

TEST(SelectBest, TakesWhatIsNoNumberLast) {
  const std::vector<float> scores = {-1, NAN, -INFINITY, 2, -NAN, INFINITY};
  for (auto& backend : BackendsWith(2)) {
    EXPECT_EQ(Select(*backend, scores, 1, 3), (std::vector<int32_t>{0, 3, 5})) << backend->name();
    EXPECT_EQ(Select(*backend, scores, 1, 4), (std::vector<int32_t>{0, 1, 3, 5}));
    EXPECT_EQ(Select(*backend, scores, 1, 5), (std::vector<int32_t>{0, 1, 2, 3, 5}));
  }
}

TEST(SelectBest, PassesOverScoresBehindTheCandidatesOfAHead) {
  const std::vector<float> scores = {1, 3, 2, 9, 9, 3, 1, 2, 9, 9, 2, 1, 3};  // the last row is cut
  for (auto& backend : BackendsWith(2)) {
    std::vector<int32_t> indices(6, -1);
    backend->SelectBest(scores.data(), 5, 3, 3, 2, indices.data());
    EXPECT_EQ(indices, (std::vector<int32_t>{1, 2, 0, 2, 0, 2}));
  }
}

TEST(SelectBest, AgreesOnRandomScoresWithManyTies) {
  std::mt19937 random(2);
  for (int levels : {2, 10, 1000, 1 << 30}) {
    for (int candidates : {1, 100, 5000}) {
      constexpr int kHeads = 4;
      std::vector<float> scores(kHeads * candidates);
      for (float& score : scores) {
        score = static_cast<float>(random() % levels) / static_cast<float>(levels) - 0.25f;
      }
      for (int best : {1, candidates / 3, candidates - 1, candidates}) {
        const auto expected = Select(*MakeReferenceBackend(), scores, kHeads, best);
        for (CpuLevel level : SupportedCpuLevels()) {
          EXPECT_EQ(Select(**MakeCpuBackend(level, 2), scores, kHeads, best), expected);
        }
      }
    }
  }
}

}  // namespace
}  // namespace ziggurat

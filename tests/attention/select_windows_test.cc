// WindowKV's choice of windows, in every backend.

#include "tests/attention/test_cache.h"

namespace ziggurat {
namespace {

std::vector<int32_t> Select(AttentionBackend& backend, const std::vector<float>& scores, int heads,
                            int review, int best, int budget) {
  std::vector<int32_t> indices(budget + 1, -7);
  const int candidates = static_cast<int>(scores.size()) / heads;
  const int count =
      backend.SelectWindows(scores.data(), heads, candidates, review, best, budget, indices.data());
  EXPECT_LE(count, budget);
  EXPECT_EQ(indices[budget], -7) << "written past the budget";
  indices.resize(count);
  return indices;
}

void ExpectSelected(const std::vector<float>& scores, int heads, int review, int best, int budget,
                    const std::vector<int32_t>& expected) {
  for (auto& backend : AllBackends()) {
    EXPECT_EQ(Select(*backend, scores, heads, review, best, budget), expected) << backend->name();
  }
}

TEST(SelectWindows, TakesWholeWindowsInFallingOrderOfScore) {
  const std::vector<float> scores = {1, 1, 1, 5, 5, 5, 2, 2, 2, 9, 9, 9};
  ExpectSelected(scores, 1, 3, 3, 6, {3, 4, 5, 9, 10, 11});
  ExpectSelected(scores, 1, 3, 3, 8, {3, 4, 5, 9, 10, 11});  // no third one fits
  ExpectSelected(scores, 1, 3, 3, 12, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  ExpectSelected(scores, 1, 3, 3, 2, {});
  ExpectSelected(scores, 1, 3, 3, 0, {});
}

TEST(SelectWindows, ScoresAWindowByItsBestTokensAndThenByTheMeanOverHeads) {
  // One high token makes window 0 the best of one head if one token counts, not if all do.
  const std::vector<float> scores = {9, 0, 0, 4, 4, 4};
  ExpectSelected(scores, 1, 3, 1, 3, {0, 1, 2});
  ExpectSelected(scores, 1, 3, 2, 3, {0, 1, 2});  // 4.5 against 4
  ExpectSelected(scores, 1, 3, 3, 3, {3, 4, 5});  // 3 against 4
  // A second head outvotes the first.
  const std::vector<float> two = {9, 0, 0, 4, 4, 4, 0, 0, 0, 9, 0, 0};
  ExpectSelected(two, 2, 3, 1, 3, {3, 4, 5});  // 4.5 against 6.5
}

TEST(SelectWindows, GivesTiesToTheEarlierWindow) {
  const std::vector<float> scores(12, 0.25f);
  ExpectSelected(scores, 1, 4, 2, 8, {0, 1, 2, 3, 4, 5, 6, 7});
  ExpectSelected(scores, 3, 2, 2, 2, {0, 1});
  // Equal means of other numbers: thirds of 2, 3 and 1, and of 1, 2 and 3, whatever their order.
  ExpectSelected({2, 1, 3, 2, 1, 3}, 3, 1, 1, 1, {0});
  ExpectSelected({5, 0, 1, 2, 2, 2, 1, 5, 0, 2, 2, 2}, 2, 3, 3, 3, {0, 1, 2});
  ExpectSelected({7, 0, 0, 6, 6, 6, 0, 3, 0, 4, 4, 4, 8, 6, 6, 0, 0, 0}, 3, 3, 3, 3, {0, 1, 2});
}

TEST(SelectWindows, CountsALastShorterWindowByItsOwnLength) {
  // Windows {1, 1, 1}, {2, 2, 2} and {5}: the last one's mean is 5 by one token.
  const std::vector<float> scores = {1, 1, 1, 2, 2, 2, 5};
  ExpectSelected(scores, 1, 3, 2, 4, {3, 4, 5, 6});
  ExpectSelected({1, 1, 1, 2, 2, 2, 3}, 1, 3, 3, 3, {6});  // though three tokens were to count
  // It fits where a whole one no longer does.
  ExpectSelected({1, 1, 1, 2, 2, 2, 0.5f}, 1, 3, 3, 4, {3, 4, 5, 6});
  ExpectSelected({1, 1, 1, 2, 2, 2, 0.5f}, 1, 3, 3, 1, {6});
  ExpectSelected({3, 4}, 1, 8, 4, 2, {0, 1});  // fewer candidates than a window
  ExpectSelected({3, 4}, 1, 8, 4, 1, {});
}

TEST(SelectWindows, RanksWhatIsNoNumberLast) {
  ExpectSelected({NAN, 5, 1, 1}, 1, 2, 1, 2, {0, 1});
  ExpectSelected({NAN, NAN, 1, 1, 0, 0}, 1, 2, 2, 4, {2, 3, 4, 5});
  ExpectSelected({INFINITY, NAN, 1, 1, INFINITY, -INFINITY, 0, 0}, 1, 2, 2, 4, {2, 3, 6, 7});
}

TEST(SelectWindows, IsTheSameInEveryBackend) {
  for (int review : {1, 3, 8, 16, 32, 700}) {
    for (int candidates : {1, 7, 64, 1000, 4097}) {
      for (int heads : {1, 3, 8}) {
        std::vector<float> scores =
            RandomTensor(ElementType::kBf16, static_cast<size_t>(heads) * candidates, review)
                .floats();  // bf16: equal scores are frequent
        for (int budget : {1, candidates / 3, candidates}) {
          const auto expected = Select(*MakeReferenceBackend(), scores, heads, review,
                                       std::max(review / 2, 1), budget);
          const int last = candidates % review;
          if (budget < candidates) {
            // More than budget - review are kept: windows are kept whole.
            EXPECT_GT(static_cast<int>(expected.size()), budget - review) << last;
          } else {
            EXPECT_EQ(static_cast<int>(expected.size()), candidates);
          }
          ExpectSelected(scores, heads, review, std::max(review / 2, 1), budget, expected);
        }
      }
    }
  }
}

}  // namespace
}  // namespace ziggurat

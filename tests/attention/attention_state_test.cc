#include "attention/attention_state.h"

#include <vector>

#include "gtest/gtest.h"

namespace ziggurat {
namespace {

/// Attention over keys with these scores and one-channel values.
AttentionState<double> Attend(const std::vector<double>& scores, const std::vector<double>& values,
                              double* output) {
  double sum = 0;
  *output = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    sum += std::exp(scores[i]);
    *output += std::exp(scores[i]) * values[i];
  }
  if (!scores.empty()) *output /= sum;
  return {output, std::log(sum)};
}

TEST(AttentionState, MergeEqualsAttentionOverBothSets) {
  double a, b, both;
  AttentionState<double> state = Attend({1.5, -2, 0.25}, {3, -1, 2}, &a);
  Merge(Attend({4, 0}, {-7, 5}, &b), 1, &state);
  const AttentionState<double> expected = Attend({1.5, -2, 0.25, 4, 0}, {3, -1, 2, -7, 5}, &both);
  EXPECT_NEAR(*state.output, both, 1e-14);
  EXPECT_NEAR(state.lse, expected.lse, 1e-14);
}

TEST(AttentionState, AnEmptySetChangesNothing) {
  double a, b;
  AttentionState<double> state = Attend({1, 2}, {3, 4}, &a);
  const double output = a, lse = state.lse;
  double garbage = NAN;
  Merge(AttentionState<double>{&garbage}, 1, &state);
  EXPECT_EQ(a, output);
  EXPECT_EQ(state.lse, lse);

  AttentionState<double> empty{&garbage};
  Merge(Attend({1, 2}, {3, 4}, &b), 1, &empty);
  EXPECT_EQ(*empty.output, b);
  EXPECT_EQ(empty.lse, lse);
}

TEST(AttentionState, MergeOfFarApartSetsDoesNotOverflow) {
  float a = 1, b = 2;
  AttentionState<float> state{&a, 500};
  Merge(AttentionState<float>{&b, -500}, 1, &state);
  EXPECT_EQ(a, 1);
  EXPECT_EQ(state.lse, 500);
  Merge(AttentionState<float>{&b, 1500}, 1, &state);
  EXPECT_EQ(a, 2);
  EXPECT_EQ(state.lse, 1500);
}

}  // namespace
}  // namespace ziggurat

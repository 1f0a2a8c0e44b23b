// Judging, statistics, and what the client understands of a policy's text.
#include <algorithm>
#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cli/eval/judge.h"
#include "server/cli/eval/policy_text.h"
#include "server/cli/eval/statistics.h"
#include "server/cli/figures.h"

namespace ziggurat::eval {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TEST(EvalJudge, ExactIsToTheLetterButForSpaceAtTheEnds) {
  EXPECT_TRUE(Judge(" 78474", " 78474", "").exact);
  EXPECT_TRUE(Judge("78474\n", " 78474", "").exact);
  EXPECT_FALSE(Judge(" 784741", " 78474", "").exact);
  EXPECT_FALSE(Judge(" 7847", " 78474", "").exact);
  EXPECT_FALSE(Judge("", " 78474", "").exact);
  EXPECT_FALSE(Judge(" Green", " green", "").exact);
}

TEST(EvalJudge, LaterDigitsLeaveOutTheOneOfTheFirstToken) {
  const Judgement judgement = Judge(" 78999", " 78474", "");
  EXPECT_EQ(judgement.later_digits, 4);
  EXPECT_EQ(judgement.later_digits_right, 1);  // the 8
  EXPECT_EQ(Judge(" 78474", " 78474", "").later_digits_right, 4);
  EXPECT_EQ(Judge(" 7", " 78474", "").later_digits_right, 0);
  EXPECT_EQ(Judge(" green", " green", "").later_digits, 0);
}

TEST(EvalJudge, ItemsOfAListCountOneByOne) {
  const std::string answer = " Tom Dunn 242, Greg Burke 610, Tim Hunt 561";
  const Judgement all = Judge(answer, answer, "");
  EXPECT_TRUE(all.exact);
  EXPECT_EQ(all.items, 3);
  EXPECT_EQ(all.items_right, 3);
  EXPECT_EQ(all.later_digits, 9) << "a name comes first, so no digit is the first token's";
  EXPECT_EQ(all.later_digits_right, 9);

  const Judgement two = Judge(" Tom Dunn 242, Greg Burke 999, Tim Hunt 561", answer, "");
  EXPECT_FALSE(two.exact);
  EXPECT_EQ(two.items_right, 2);
  EXPECT_EQ(two.later_digits_right, 6);

  const Judgement moved = Judge(" Tim Hunt 561", answer, "");
  EXPECT_EQ(moved.items_right, 1) << "an item is right wherever it stands";
  EXPECT_EQ(moved.later_digits_right, 0) << "digits are compared in their place";
}

TEST(EvalJudge, WhatWasHeldBackMustComeFirst) {
  EXPECT_TRUE(Judge(": green", " green", ":").exact);
  EXPECT_TRUE(Judge(" Label: dax", " dax", " Label:").exact);
  const Judgement lost = Judge(" green", " green", ":");
  EXPECT_FALSE(lost.exact);
  EXPECT_EQ(lost.items, 1);
  EXPECT_EQ(lost.items_right, 0);
  // With something before it, even the first digit comes out of the compressed cache.
  EXPECT_EQ(Judge(": 78474", " 78474", ":").later_digits, 5);
  EXPECT_EQ(Judge(": 78474", " 78474", ":").later_digits_right, 5);
}

TEST(EvalJudge, FailuresAreWrongThroughout) {
  const Judgement failure = JudgeFailure(" Tom 242, Tim 561", "");
  EXPECT_FALSE(failure.exact);
  EXPECT_EQ(failure.items, 2);
  EXPECT_EQ(failure.items_right, 0);
  EXPECT_EQ(failure.later_digits, 6);
  EXPECT_EQ(failure.later_digits_right, 0);
}

TEST(EvalStatistics, WilsonIntervalsAreThoseOfTheLiterature) {
  // Newcombe 1998, table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29.
  const struct {
    int64_t successes, trials;
    double low, high;
  } kKnown[] = {{81, 263, 0.2553, 0.3662},
                {15, 148, 0.0624, 0.1605},
                {0, 20, 0.0, 0.1611},
                {1, 29, 0.0061, 0.1718}};
  for (const auto& known : kKnown) {
    const Interval interval = WilsonInterval(known.successes, known.trials);
    EXPECT_NEAR(interval.low, known.low, 5e-5);
    EXPECT_NEAR(interval.high, known.high, 5e-5);
  }
  EXPECT_EQ(WilsonInterval(7, 7).high, 1);
  EXPECT_EQ(WilsonInterval(0, 7).low, 0);
  EXPECT_EQ(WilsonInterval(0, 0).low, 0);
  EXPECT_EQ(WilsonInterval(0, 0).high, 1);
}

TEST(EvalStatistics, McNemarIsTheExactBinomialTest) {
  EXPECT_EQ(McNemarExactP(0, 0), 1);
  EXPECT_NEAR(McNemarExactP(5, 0), 2.0 / 32, 1e-12);
  EXPECT_NEAR(McNemarExactP(0, 5), 2.0 / 32, 1e-12);
  EXPECT_NEAR(McNemarExactP(8, 2), 2.0 * (1 + 10 + 45) / 1024, 1e-12);
  EXPECT_EQ(McNemarExactP(3, 3), 1) << "two equal tails are more than everything";
  EXPECT_EQ(McNemarExactP(1, 0), 1);
  EXPECT_GT(McNemarExactP(3000, 2900), 0.1);
  EXPECT_LT(McNemarExactP(3000, 2000), 1e-10);
  EXPECT_GT(McNemarExactP(1500, 0), -1e-300);  // 2^-1500 is no double, and must not be NaN
}

TEST(EvalStatistics, MedianOfOddAndEven) {
  EXPECT_EQ(Median({3, 1, 2}), 2);
  EXPECT_EQ(Median({4, 1, 2, 3}), 2.5);
  EXPECT_TRUE(std::isnan(Median({})));
}

TEST(EvalFigures, BytesHaveThreeDigits) {
  EXPECT_EQ(FormatBytes(12), "12 B");
  EXPECT_EQ(FormatBytes(999), "999 B");
  EXPECT_EQ(FormatBytes(1000), "0.98 KiB");
  EXPECT_EQ(FormatBytes(288 * 1024), "288 KiB");
  EXPECT_EQ(FormatBytes(1072 * 1024), "1.05 MiB");
  EXPECT_EQ(FormatBytes(12.34 * 1024 * 1024), "12.3 MiB");
  EXPECT_EQ(FormatBytes(kNaN), "–");
  EXPECT_EQ(FormatDigits(0.25), "0.25");
  EXPECT_EQ(FormatDigits(9.995), "10.0");
  EXPECT_EQ(FormatDigits(1250), "1250");
  EXPECT_EQ(FormatDigits(kNaN), "–");
  EXPECT_EQ(FormatPercent(0.16666), "16.7 %");
  EXPECT_EQ(FormatShare(1, 3), "0.333");
  EXPECT_EQ(FormatShare(0, 0), "–");
}

TEST(EvalPolicyText, FamilyAndVariant) {
  EXPECT_EQ(PolicyFamily("full"), "full");
  EXPECT_EQ(PolicyFamily("simlayerkv(threshold=0.9,sinks=4)+snapkv(budget=64,window=8)"),
            "simlayerkv+snapkv");
  EXPECT_EQ(PolicyVariant("snapkv(budget=64,window=8,pool=avg)"), "snapkv(window=8,pool=avg)");
  EXPECT_EQ(PolicyVariant("snapkv(budget=64)"), "snapkv");
  EXPECT_EQ(PolicyVariant("snapkv(budget=1e+3,window=1e+1)+b(recent=5)"),
            "snapkv(window=1e+1)+b(recent=5)")
      << "of b nothing is known";
}

TEST(EvalPolicyText, RowsAreInAnOrderThatPeopleExpect) {
  std::vector<std::string> policies = {
      "streaming(sinks=4,recent=60)", "snapkv(budget=256,window=32)", "full",
      "snapkv(budget=64,window=8)",   "snapkv(budget=64,window=32)",  "pyramidkv(budget=1024)",
      "snapkv(budget=1024,window=32)"};
  std::sort(policies.begin(), policies.end(), PolicyBefore);
  EXPECT_THAT(policies, ::testing::ElementsAre(
                            "full", "pyramidkv(budget=1024)", "snapkv(budget=64,window=32)",
                            "snapkv(budget=256,window=32)", "snapkv(budget=1024,window=32)",
                            "snapkv(budget=64,window=8)", "streaming(sinks=4,recent=60)"));
}

TEST(EvalPolicyText, SlugsAreFileNames) {
  EXPECT_EQ(PolicySlug("pyramidkv(budget=64,kernel=9)"), "pyramidkv-budget-64-kernel-9");
  EXPECT_NE(PolicySlug("a(t=0.9)"), PolicySlug("a(t=9)"));
  EXPECT_EQ(PolicySlug("../../x"), "__-__-x");
  EXPECT_EQ(PolicySlug("((("), "policy");
  EXPECT_LE(PolicySlug(std::string(1000, 'x')).size(), 100u);
}

TEST(EvalPolicyText, SurvivesWhatIsNoPolicy) {
  for (const char* text : {"", "(", ")", "a(", "a)", "+", "a(=", "a(b", ",", "a(b=)c"}) {
    PolicyFamily(text);
    PolicyVariant(text);
    PolicySlug(text);
    EXPECT_FALSE(PolicyBefore(text, text)) << text;
  }
}

}  // namespace
}  // namespace ziggurat::eval

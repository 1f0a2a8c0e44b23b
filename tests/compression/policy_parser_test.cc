// The text form of policies: what parses to what, and which errors point where.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <iterator>
#include <random>
#include <string>
#include <string_view>

#include "compression/policy.h"
#include "compression/policy_syntax.h"
#include "compression/registry.h"
#include "tests/compression/policy_generator.h"

namespace ziggurat {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Canonical(std::string_view text) {
  const auto policy = ParsePolicy(text);
  return policy.ok() ? (*policy)->ToString() : std::string(policy.status().message());
}

/// The message of a text that must be refused.
std::string Refusal(std::string_view text) {
  const auto policy = ParsePolicy(text);
  if (policy.ok()) return "parsed as " + (*policy)->ToString();
  EXPECT_EQ(policy.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(policy.status().message());
}

testing::Matcher<std::string> PointsAt(size_t column) {
  return HasSubstr("column " + std::to_string(column) + ":");
}

TEST(PolicyParser, FillsInDefaults) {
  EXPECT_EQ(Canonical("full"), "full");
  EXPECT_EQ(Canonical("full()"), "full");
  EXPECT_EQ(Canonical("streaming"), "streaming(sinks=4,recent=1020)");
  EXPECT_EQ(Canonical("streaming()"), "streaming(sinks=4,recent=1020)");
  EXPECT_EQ(Canonical("snapkv(budget=512)"), "snapkv(budget=512,window=32,kernel=5,pool=avg)");
  EXPECT_EQ(Canonical("pyramidkv(budget=512)"),
            "pyramidkv(budget=512,window=8,beta=20,kernel=5,pool=avg,shape=linear)");
}

TEST(PolicyParser, TakesParametersInAnyOrderAndSpaceAnywhere) {
  EXPECT_EQ(Canonical(" \tsnapkv ( pool = max ,\n kernel=7,window=16, budget = 64 )\r\n"),
            "snapkv(budget=64,window=16,kernel=7,pool=max)");
}

TEST(PolicyParser, TakesRealNumbersWhereAParameterIsReal) {
  EXPECT_EQ(Canonical("pyramidkv(budget=64,beta=1)"),
            "pyramidkv(budget=64,window=8,beta=1,kernel=5,pool=avg,shape=linear)");
  EXPECT_EQ(Canonical("pyramidkv(budget=64,beta=1.25e+1)"),
            "pyramidkv(budget=64,window=8,beta=12.5,kernel=5,pool=avg,shape=linear)");
}

TEST(PolicyParser, TakesAWordWhereAParameterHasOne) {
  EXPECT_EQ(Canonical("minicache"),
            "minicache(start=half,t=0.6,retain=0.05,tail=128,retain_by=count)");
  EXPECT_EQ(Canonical("minicache(start=half)"), Canonical("minicache"));
  EXPECT_THAT(Canonical("minicache(start=3)"), HasSubstr("start=3,"));
  EXPECT_EQ(Canonical("windowkv(budget=64,review=auto)"),
            "windowkv(budget=64,task=auto,review=auto,observe=auto,group=auto,lambda=14,p=auto)");
}

TEST(PolicyParser, WritesOutOnlyWhatMeansSomething) {
  EXPECT_EQ(Canonical("pyramidkv(budget=64,shape=geometric)"),
            "pyramidkv(budget=64,window=8,kernel=5,pool=avg,shape=geometric,ratio=0.9)");
  EXPECT_EQ(Canonical("pyramidkv(budget=64,shape=exponential,rate=2.5)"),
            "pyramidkv(budget=64,window=8,kernel=5,pool=avg,shape=exponential,rate=2.5)");
  EXPECT_EQ(Canonical("pyramidkv(budget=64,shape=gini)"),
            "pyramidkv(budget=64,window=8,kernel=5,pool=avg,shape=gini)");
}

TEST(PolicyParser, ADefaultMayStandWhereItMeansNothing) {
  EXPECT_EQ(Canonical("simlayerkv(threshold=0.9,sinks=4,recent=1020,last=32,decide=decode)"),
            "simlayerkv(threshold=0.9,sinks=4,recent=1020,decide=decode)");
  EXPECT_EQ(Canonical("pyramidkv(budget=64,shape=gini,beta=20,ratio=0.9,rate=3)"),
            Canonical("pyramidkv(budget=64,shape=gini)"));
}

TEST(PolicyParser, KnowsThePolicyByItsName) {
  const auto policy = ParsePolicy("pyramidkv(budget=64)");
  ASSERT_TRUE(policy.ok()) << policy.status();
  EXPECT_EQ((*policy)->name(), "pyramidkv");
}

TEST(PolicyParser, RefusesEmptyTextAtItsEnd) {
  EXPECT_THAT(Refusal(""), PointsAt(1));
  EXPECT_THAT(Refusal("   "), PointsAt(4));
  EXPECT_THAT(Refusal(""), HasSubstr("expected the name of a policy"));
}

TEST(PolicyParser, ListsThePoliciesForAnUnknownNameAndSuggestsANearOne) {
  const std::string message = Refusal("snapvk(budget=64)");
  EXPECT_THAT(message, PointsAt(1));
  EXPECT_THAT(message, HasSubstr("'snapvk' (did you mean 'snapkv'?)"));
  for (const PolicyDescriptor* policy : AllPolicies()) {
    EXPECT_THAT(message, HasSubstr(std::string(policy->name)));
  }
  EXPECT_THAT(Refusal("PyramidKV(budget=64)"), HasSubstr("did you mean 'pyramidkv'?"));
  EXPECT_THAT(Refusal("zzzzzz"), Not(HasSubstr("did you mean")));
}

TEST(PolicyParser, ListsTheParametersForAnUnknownOne) {
  const std::string message = Refusal("snapkv(bugdet=64)");
  EXPECT_THAT(message, PointsAt(8));
  EXPECT_THAT(message, HasSubstr("'bugdet' of snapkv (did you mean 'budget'?)"));
  EXPECT_THAT(message, HasSubstr("window (an integer from 1 to 1024, default 32)"));
  EXPECT_THAT(message, HasSubstr("kernel (an odd integer from 1 to 127, default 5)"));
  EXPECT_THAT(message, HasSubstr("pool (avg or max, default avg)"));
  EXPECT_THAT(Refusal("full(budget=3)"), HasSubstr("full takes no parameters"));
}

TEST(PolicyParser, PutsACaretUnderTheColumn) {
  EXPECT_THAT(Refusal("snapkv(budget=64,window=0)"), HasSubstr("\n  snapkv(budget=64,window=0)"
                                                               "\n                          ^"));
}

struct BadValue {
  std::string_view text;
  size_t column;
  std::string_view says;
};

class BadValues : public testing::TestWithParam<BadValue> {};

TEST_P(BadValues, AreRefusedWithParameterValueAndRange) {
  const std::string message = Refusal(GetParam().text);
  EXPECT_THAT(message, PointsAt(GetParam().column));
  EXPECT_THAT(message, HasSubstr(std::string(GetParam().says)));
}

INSTANTIATE_TEST_SUITE_P(
    PolicyParser, BadValues,
    testing::Values(
        BadValue{"snapkv(budget=-5)", 15, "budget='-5' is not allowed"},
        BadValue{"snapkv(budget=1.5)", 15, "an integer from 2 to 16777216"},
        BadValue{"snapkv(budget=0x40)", 15, "budget='0x40'"},
        BadValue{"snapkv(budget=6k)", 15, "budget='6k'"},
        BadValue{"snapkv(budget=16777217)", 15, "from 2 to 16777216"},
        BadValue{"snapkv(budget=99999999999999999999999)", 15, "from 2 to 16777216"},
        BadValue{"snapkv(budget=-99999999999999999999999)", 15, "from 2 to 16777216"},
        BadValue{"snapkv(budget=nan)", 15, "budget='nan'"},
        BadValue{"snapkv(budget=+64)", 15, "budget='+64'"},
        BadValue{"snapkv(budget=64,kernel=4)", 25, "an odd integer from 1 to 127"},
        BadValue{"snapkv(budget=64,kernel=129)", 25, "an odd integer from 1 to 127"},
        BadValue{"snapkv(budget=64,pool=mean)", 23, "avg or max"},
        BadValue{"snapkv(budget=64,pool=AVG)", 23, "avg or max"},
        BadValue{"snapkv(budget=2000,window=1025)", 27, "from 1 to 1024"},
        BadValue{"snapkv(budget=64,window=64)", 15, "must be greater than window=64"},
        BadValue{"snapkv(window=16,budget=16)", 25, "must be greater than window=16"},
        BadValue{"snapkv(budget=32)", 15, "must be greater than window=32"},
        BadValue{"pyramidkv(budget=64,beta=0.99)", 26, "a number from 1 to 1000000"},
        BadValue{"pyramidkv(budget=64,beta=-1)", 26, "a number from 1"},
        BadValue{"pyramidkv(budget=64,beta=nan)", 26, "beta='nan'"},
        BadValue{"pyramidkv(budget=64,beta=-nan)", 26, "beta='-nan'"},
        BadValue{"pyramidkv(budget=64,beta=inf)", 26, "beta='inf'"},
        BadValue{"pyramidkv(budget=64,beta=1e999)", 26, "beta='1e999'"},
        BadValue{"pyramidkv(budget=64,beta=2x)", 26, "beta='2x'"},
        BadValue{"pyramidkv(budget=8)", 18, "must be greater than window=8"},
        BadValue{"pyramidkv(budget=64,shape=round)", 27, "linear or geometric or exponential"},
        BadValue{"pyramidkv(budget=64,ratio=0.5)", 21,
                 "pyramidkv: ratio means something only with shape=geometric"},
        BadValue{"pyramidkv(rate=4,shape=geometric,budget=64)", 11,
                 "rate means something only with shape=exponential"},
        BadValue{"pyramidkv(shape=gini,beta=21,budget=64)", 22,
                 "beta means something only with shape=linear"},
        BadValue{"pyramidkv(budget=64,shape=geometric,ratio=1.01)", 43, "a number from 0.01 to 1"},
        BadValue{"simlayerkv(threshold=1.1)", 22, "a number from 0 to 1"},
        BadValue{"simlayerkv(recent=0)", 19, "an integer from 1"},
        BadValue{"simlayerkv(decide=later)", 19, "prefill or decode"},
        BadValue{"simlayerkv(last=5,decide=decode)", 12,
                 "last means something only with decide=prefill"},
        BadValue{"minicache(start=Half)", 17, "half or an integer from 0 to 4096"},
        BadValue{"minicache(t=half)", 13, "t='half' is not allowed"},
        BadValue{"windowkv(budget=16,observe=16)", 17, "must be greater than observe=16"},
        BadValue{"windowkv(budget=16,review=0)", 27, "auto or an integer from 1"},
        BadValue{"squeeze(budget=16)", 16, "p=0.3 of budget=16 must be at least 5 tokens"},
        BadValue{"h2o(heavy=0)", 11, "an integer from 1"}, BadValue{"kivi(bits=3)", 11, "4 or 2"},
        BadValue{"kivi(group=0)", 12, "an integer from 2 to 256"},
        BadValue{"int8(bits=8)", 6, "int8 takes no parameters"},
        BadValue{"streaming(sinks=-1)", 17, "from 0 to 16777216"},
        BadValue{"streaming(recent=0)", 18, "from 1 to 16777216"},
        BadValue{"snapkv", 1, "needs a value of budget"},
        BadValue{"snapkv()", 1, "needs a value of budget"},
        BadValue{"pyramidkv(window=8)", 1, "needs a value of budget"},
        BadValue{"snapkv(budget=64,budget=64)", 18, "'budget' is given twice; first in column 8"}));

INSTANTIATE_TEST_SUITE_P(
    PolicySyntax, BadValues,
    testing::Values(BadValue{"snapkv(budget=64", 17,
                             "the end of the text, expected ',' or the ')' that closes"},
                    BadValue{"snapkv(", 8, "expected the name of a parameter of 'snapkv'"},
                    BadValue{"snapkv(budget", 14, "expected '=' after 'budget'"},
                    BadValue{"snapkv(budget=", 15, "expected a value of 'budget'"},
                    BadValue{"snapkv(budget=,window=3)", 15, "found ',', expected a value"},
                    BadValue{"snapkv(budget=64,)", 18,
                             "found ')', expected the name of a parameter"},
                    BadValue{"snapkv(budget 64)", 15, "expected '=' after 'budget'"},
                    BadValue{"snapkv(budget=6 4)", 17, "found '4', expected ','"},
                    BadValue{"snapkv(budget==64)", 15, "found '=', expected a value"},
                    BadValue{"snapkv(64)", 8, "found '6', expected the name of a parameter"},
                    BadValue{"snapkv(budget=64))", 18, "found ')', expected '+' or the end"},
                    BadValue{"snapkv(budget=64) full", 19, "found 'f', expected '+' or the end"},
                    BadValue{"full() x", 8, "found 'x', expected '+' or the end"},
                    BadValue{"full full", 6, "found 'f', expected '(', '+' or the end"},
                    BadValue{"full;", 5, "found ';'"},
                    BadValue{"full+", 6, "the end of the text, expected the name of a policy"},
                    BadValue{"+full", 1, "found '+', expected the name of a policy"},
                    BadValue{"(full)", 1, "found '('"}, BadValue{"1full", 1, "found '1'"},
                    BadValue{std::string_view("fu\0ll", 5), 3, "found byte 0x00"},
                    BadValue{"full\xc3\xa9", 5, "found byte 0xc3"}));

TEST(PolicyParser, RefusesCompositionsOfPoliciesThatDecideTheSameThing) {
  const std::string message = Refusal("snapkv(budget=64) + pyramidkv(budget=64)");
  EXPECT_THAT(message, PointsAt(21));
  EXPECT_THAT(message, HasSubstr("both decide which tokens every layer keeps"));
  EXPECT_THAT(Refusal("full+streaming"),
              HasSubstr("the same as streaming, since full adds nothing"));
  EXPECT_THAT(Refusal("streaming+full"),
              HasSubstr("the same as streaming, since full adds nothing"));
  EXPECT_THAT(Refusal("full+full"), HasSubstr("names the same policy twice"));
}

TEST(PolicyParser, ChecksEveryTermBeforeItComposes) {
  EXPECT_THAT(Refusal("full+snapkv(budget=1)"), PointsAt(20));
  EXPECT_THAT(Refusal("full+nosuch"), HasSubstr("unknown policy 'nosuch'"));
}

TEST(PolicyParser, RefusesVeryLongTextUnreadAndShowsOnlyAPart) {
  const std::string longest = "full" + std::string(kMaxPolicyTextBytes - 4, ' ');
  EXPECT_EQ(Canonical(longest), "full");
  const std::string message = Refusal(longest + " ");
  EXPECT_THAT(message, HasSubstr("1025 bytes, at most 1024"));
  EXPECT_LT(Refusal(std::string(1 << 20, 'x')).size(), 400u);
  EXPECT_LT(Refusal(std::string(1000, 'x')).size(), 400u);
  EXPECT_LT(Refusal(std::string(1000, 'x') + "(").size(), 400u);
  EXPECT_LT(Refusal("full(" + std::string(1000, 'x') + "=").size(), 400u);
}

TEST(PolicyParser, ShowsNoUnprintableByte) {
  for (char c : Refusal("full\x1b[31m\x07\xff")) {
    EXPECT_TRUE(c == '\n' || (c >= ' ' && c <= '~')) << static_cast<int>(c);
  }
}

// ---- Properties --------------------------------------------------------------------------------

RC_GTEST_PROP(PolicyParserProperty, CanonicalTextParsesBackToItself, ()) {
  const PolicyResources resources = DrawResources(4, 2);
  const size_t index = *rc::gen::inRange<size_t>(0, AllPolicies().size());
  const auto first = ParsePolicy(DrawPolicyText(*AllPolicies()[index]), resources);
  RC_PRE(first.ok());  // a budget below its window
  const auto second = ParsePolicy((*first)->ToString(), resources);
  RC_ASSERT(second.ok());
  RC_ASSERT((*second)->ToString() == (*first)->ToString());
}

/// Parses and, where that works, holds the policy to its round trip.
void ParseAndCheck(const std::string& text) {
  const auto policy = ParsePolicy(text);
  if (!policy.ok()) {
    RC_ASSERT(policy.status().code() == absl::StatusCode::kInvalidArgument);
    return;
  }
  const auto again = ParsePolicy((*policy)->ToString());
  RC_ASSERT(again.ok());
}

RC_GTEST_PROP(PolicyParserProperty, RandomBytesNeverCrash, (const std::string& text)) {
  ParseAndCheck(text);
}

TEST(PolicyParserFuzz, RandomTokensNeverCrashAndWhatParsesRoundTrips) {
  const std::string tokens[] = {"full",
                                "snapkv",
                                "pyramidkv",
                                "streaming",
                                "simlayerkv",
                                "minicache",
                                "kivi",
                                "int8",
                                "h2o",
                                "(",
                                "(",
                                ")",
                                ")",
                                ",",
                                ",",
                                "=",
                                "=",
                                "+",
                                "budget",
                                "window",
                                "64",
                                "8",
                                "-1",
                                "nan",
                                "1e309",
                                "pool",
                                "max",
                                "beta",
                                " ",
                                "\n",
                                "kernel",
                                "sinks",
                                "recent",
                                "18446744073709551616",
                                std::string("\0", 1),
                                "\xff"};
  std::mt19937 random(1);
  int parsed = 0;
  for (int i = 0; i < 100000; ++i) {
    std::string text;
    for (unsigned left = random() % 12; left > 0; --left) {
      text += tokens[random() % std::size(tokens)];
    }
    const auto policy = ParsePolicy(text);
    if (!policy.ok()) {
      ASSERT_EQ(policy.status().code(), absl::StatusCode::kInvalidArgument) << text;
      continue;
    }
    ++parsed;
    ASSERT_EQ(Canonical((*policy)->ToString()), (*policy)->ToString()) << text;
  }
  EXPECT_GT(parsed, 100);
}

RC_GTEST_PROP(PolicyParserProperty, OneWrongByteNeverCrashes, ()) {
  std::string text = "pyramidkv(budget=512,window=32,beta=20,kernel=5,pool=max)";
  text[*rc::gen::inRange<size_t>(0, text.size())] = *rc::gen::arbitrary<char>();
  ParseAndCheck(text);
}

}  // namespace
}  // namespace ziggurat

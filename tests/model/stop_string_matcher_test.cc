#include "model/tokenizer/stop_string_matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace ziggurat {
namespace {

struct Outcome {
  std::string text;
  bool stopped = false;
};

Outcome Feed(const std::vector<std::string>& stops, const std::vector<std::string>& increments) {
  StopStringMatcher matcher(stops);
  Outcome outcome;
  for (const std::string& increment : increments) outcome.text += matcher.Push(increment);
  outcome.text += matcher.Finish();
  outcome.stopped = matcher.stopped();
  return outcome;
}

TEST(StopStringMatcherTest, TextWithoutStopStringsPassesAtOnce) {
  StopStringMatcher none({});
  EXPECT_EQ(none.Push("hello"), "hello");
  StopStringMatcher matcher({"END"});
  EXPECT_EQ(matcher.Push("hello"), "hello");
  EXPECT_EQ(matcher.Finish(), "");
  EXPECT_FALSE(matcher.stopped());
  EXPECT_EQ(matcher.matched(), std::nullopt);
}

TEST(StopStringMatcherTest, AStopStringSplitOverTokensIsCaughtAndNotLeaked) {
  StopStringMatcher matcher({"</answer>"});
  EXPECT_EQ(matcher.Push("42</"), "42");
  EXPECT_EQ(matcher.Push("ans"), "");
  EXPECT_EQ(matcher.Push("wer> and more"), "");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.matched(), "</answer>");
  EXPECT_EQ(matcher.Push("ignored"), "");
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopStringMatcherTest, WhatOnlyLookedLikeTheBeginningIsGivenLater) {
  StopStringMatcher matcher({"</answer>"});
  EXPECT_EQ(matcher.Push("a</an"), "a");
  EXPECT_EQ(matcher.Push("d"), "</and");
  EXPECT_EQ(matcher.Push("<"), "");
  EXPECT_EQ(matcher.Finish(), "<");
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopStringMatcherTest, OverlappingBeginningsAreNotMissed) {
  EXPECT_EQ(Feed({"aab"}, {"a", "a", "a", "b", "c"}).text, "a");
  EXPECT_EQ(Feed({"abac"}, {"aba", "bac"}).text, "ab");
}

TEST(StopStringMatcherTest, TheOneThatIsCompleteFirstWins) {
  EXPECT_EQ(Feed({"stop", "END"}, {"a END b stop"}).text, "a ");
  // "abcde" begins before "bcd", but ends after it.
  EXPECT_EQ(Feed({"bcd", "abcde"}, {"xabcde"}).text, "xa");
  StopStringMatcher waits_for_nothing({"bcd", "abcde"});
  EXPECT_EQ(waits_for_nothing.Push("xabcd"), "xa");
  EXPECT_TRUE(waits_for_nothing.stopped());
  EXPECT_EQ(Feed({"cd", "bcd"}, {"xabcd"}).text, "xa") << "the longer of two that end together";
  StopStringMatcher matcher({"\n\n\n", "\n"});
  matcher.Push("a\n");
  EXPECT_EQ(matcher.matched(), "\n");
}

TEST(StopStringMatcherTest, EmptyStopStringsAreIgnored) {
  const Outcome outcome = Feed({"", "x"}, {"abc"});
  EXPECT_EQ(outcome.text, "abc");
  EXPECT_FALSE(outcome.stopped);
}

TEST(StopStringMatcherTest, TheOutcomeDoesNotDependOnHowTheTextIsCut) {
  std::mt19937 random(7);
  const auto random_text = [&](size_t length) {
    std::string text(length, 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % 3);
    return text;
  };
  int stops_met = 0;
  for (int round = 0; round < 2000; ++round) {
    const std::string text = random_text(random() % 30);
    std::vector<std::string> stops(1 + random() % 3);
    for (std::string& stop : stops) stop = random_text(1 + random() % 5);
    // The shortest beginning of the text that ends with a stop string, and the longest of these.
    size_t first = std::string::npos;
    for (size_t end = 1; end <= text.size() && first == std::string::npos; ++end) {
      for (const std::string& stop : stops) {
        if (text.substr(0, end).ends_with(stop)) first = std::min(first, end - stop.size());
      }
    }
    std::vector<std::string> increments;
    for (size_t done = 0; done < text.size();) {
      increments.push_back(text.substr(done, 1 + random() % 4));
      done += increments.back().size();
    }
    const Outcome outcome = Feed(stops, increments);
    EXPECT_EQ(outcome.text, text.substr(0, first));
    EXPECT_EQ(outcome.stopped, first != std::string::npos);
    stops_met += outcome.stopped;
  }
  EXPECT_GT(stops_met, 500);
  EXPECT_LT(stops_met, 1900);
}

}  // namespace
}  // namespace ziggurat

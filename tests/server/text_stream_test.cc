#include "server/text_stream.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/server/stub_daemon.h"

namespace ziggurat {
namespace {

std::vector<int32_t> Ids(const std::string& text) {
  return *BundledTokenizer()->Encode(text, {.add_special_tokens = false});
}

TEST(TextStreamTest, GivesTheWholeTextWhereNothingStopsIt) {
  TextStream stream(BundledTokenizer().get(), {.stop_strings = {"zebra"}});
  std::string text;
  for (const int32_t id : Ids(" zebr and ze and ä€ z")) text += stream.Append(id);
  text += stream.Flush();
  EXPECT_EQ(text, " zebr and ze and ä€ z");
  EXPECT_FALSE(stream.is_stopped());
}

TEST(TextStreamTest, EndsBeforeTheStopStringAndForgetsWhatFollows) {
  TextStream stream(BundledTokenizer().get(), {.stop_strings = {"two"}});
  std::string text;
  for (const int32_t id : Ids(" one two three")) text += stream.Append(id);
  text += stream.Flush();
  EXPECT_EQ(text, " one ");
  ASSERT_TRUE(stream.is_stopped());
  EXPECT_EQ(stream.matched(), "two");
}

TEST(TextStreamTest, LeavesOutSpecialTokensUnlessAsked) {
  const int32_t kEos = 1;
  TextStream without(BundledTokenizer().get(), {});
  EXPECT_EQ(without.Append(kEos) + without.Flush(), "");
  TextStream with(BundledTokenizer().get(), {.stop_strings = {}, .include_special_tokens = true});
  EXPECT_EQ(with.Append(kEos) + with.Flush(), "<|eos|>");
}

TEST(TextStreamTest, EndsTheCharacterThatThePromptHasBegun) {
  const std::vector<int32_t> ids = Ids("ab🚀c");
  int within = 0;
  for (size_t cut = 1; cut < ids.size(); ++cut) {
    const size_t last = std::min<size_t>(cut, 3);
    TextStream stream(BundledTokenizer().get(),
                      {.prompt_end = {ids.begin() + cut - last, ids.begin() + cut}});
    std::string text;
    for (size_t i = cut; i < ids.size(); ++i) text += stream.Append(ids[i]);
    text += stream.Flush();
    const std::string before = *BundledTokenizer()->Decode({ids.data(), cut});
    within += before.ends_with("\uFFFD") ? 1 : 0;
    EXPECT_EQ(text, before == "a" ? "b🚀c" : before == "ab🚀" ? "c" : "🚀c") << before;
  }
  EXPECT_GE(within, 1);
}

TEST(TextStreamTest, GivesNoTextForAnIdThatIsNoToken) {
  TextStream stream(BundledTokenizer().get(), {});
  EXPECT_EQ(stream.Append(1'000'000) + stream.Append(Ids("a")[0]) + stream.Flush(), "a");
}

}  // namespace
}  // namespace ziggurat

#include "server/printable.h"

#include <gtest/gtest.h>

#include <string>

namespace ziggurat {
namespace {

TEST(Printable, LeavesTextsAsTheyAre) {
  for (const char* text : {"", "a 'b' \"c\" \\d", "naïve 漢字 👨‍👩‍👧 \u00a0"}) {
    EXPECT_EQ(Printable(text), text);
  }
}

TEST(Printable, EscapesWhatTerminalsObey) {
  EXPECT_EQ(Printable("a\nb\r\tc\x1b[31m\x7f"), "a\\nb\\r\\tc\\x1b[31m\\x7f");
  EXPECT_EQ(Printable(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(Printable("\u009b31m\u2028\u202etxt"), "\\u009b31m\\u2028\\u202etxt");
}

TEST(Printable, EscapesBytesThatAreNoCharacter) {
  EXPECT_EQ(Printable("a\xff\xc3(\xe6\xbc"), "a\\xff\\xc3(\\xe6\\xbc");
}

TEST(PrintableLines, KeepsLineFeedsOnly) {
  EXPECT_EQ(PrintableLines("a\nb\r\x1b"), "a\nb\\r\\x1b");
}

TEST(PrintableMessage, KeepsTheLinesThatShowAPolicy) {
  EXPECT_EQ(PrintableMessage("column 8: wrong\n  snapkv(x=9)\n         ^"),
            "column 8: wrong\n  snapkv(x=9)\n         ^");
  EXPECT_EQ(PrintableMessage("a\nb: wrong\n  full(\x1b)\n  ^"), "a\\nb: wrong\n  full(\\x1b)\n  ^");
  for (const char* text : {"", "a", "^", "\n^", "a\n^", "a\nb\n x^", "a\nb\n^ "}) {
    EXPECT_EQ(PrintableMessage(text), Printable(text));
  }
}

}  // namespace
}  // namespace ziggurat

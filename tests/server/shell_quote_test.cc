#include "server/cli/shell_quote.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>

#include "server/printable.h"
#include "tests/support/files.h"

namespace ziggurat {
namespace {

/// What bash makes of a word of its input.
std::string ReadByBash(const std::string& word) {
  const TemporaryFolder folder;
  const std::string path = (folder / "word.sh").string();
  WriteFile(path, "printf %s " + word);
  const std::unique_ptr<FILE, int (*)(FILE*)> bash(
      popen(("LC_ALL=C.UTF-8 bash '" + path + "'").c_str(), "r"), pclose);
  std::string out;
  for (int c = std::fgetc(bash.get()); c != EOF; c = std::fgetc(bash.get())) {
    out.push_back(static_cast<char>(c));
  }
  return out;
}

TEST(ShellQuoted, IsReadBackAsTheSameWordAndStaysOnItsLine) {
  for (const std::string word :
       {"", "plain-1.5:/a=b,@%+", "two words", "it's", "$HOME `id` \"x\" \\n !",
        "snapkv(budget=64)", "\n```\xff'", "a\\b\nc", "\x1b[31m\t\r", "\u202etxt", "naïve 漢字",
        "\x01"
        "abc"}) {
    const std::string quoted = ShellQuoted(word);
    EXPECT_EQ(ReadByBash(quoted), word) << quoted;
    EXPECT_EQ(Printable(quoted), quoted);
  }
}

}  // namespace
}  // namespace ziggurat

// The command line that reports show, so that what they say can be had again.
#include "server/cli/command_line.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace ziggurat {
namespace {

struct Flags {
  std::string server = "127.0.0.1:50051";
  std::vector<std::string> files;
  std::vector<std::string> policies;
  std::optional<double> rate;
  bool recall = false;
};

// The line that is shown after `words`.
std::string Shown(std::vector<std::string> words) {
  CLI::App app("", "ziggurat");
  app.set_version_flag("--version", "1");
  CLI::App* bench = app.add_subcommand("bench");
  CLI::App* serve = bench->add_subcommand("serve");
  Flags flags;
  serve->add_option("--server,--address", flags.server)->capture_default_str();
  serve->add_option("--file", flags.files)->expected(1, 9);
  serve->add_option("-c,--compression", flags.policies)->expected(1)->take_all();
  serve->add_option("--rate", flags.rate);
  serve->add_flag("--recall", flags.recall);
  words.insert(words.begin(), {"bench", "serve"});
  std::reverse(words.begin(), words.end());  // as CLI11 takes them
  app.parse(words);
  return CommandLineOf(*serve);
}

TEST(CommandLine, DefaultsThatHelpShowsAreSaid) {
  EXPECT_EQ(Shown({}), "ziggurat bench serve --server 127.0.0.1:50051");
}

TEST(CommandLine, WhatWasGivenIsSaidAsItWasGiven) {
  EXPECT_EQ(Shown({"--address", "unix:/a b", "--rate", "0.10", "--recall", "-c", "kivi"}),
            "ziggurat bench serve --server 'unix:/a b' --compression kivi --rate 0.10 --recall");
  EXPECT_EQ(Shown({"--recall=false"}), Shown({}));
}

TEST(CommandLine, ListsFollowTheirFlagAndRepeatedFlagsStandOnLinesOfTheirOwn) {
  EXPECT_EQ(Shown({"--file", "a", "b", "--compression", "full", "--compression", "snapkv(budget=1)",
                   "--rate", "2"}),
            "ziggurat bench serve --server 127.0.0.1:50051 --file a b \\\n"
            "  --compression full \\\n"
            "  --compression 'snapkv(budget=1)' \\\n"
            "  --rate 2");
  EXPECT_EQ(Shown({"--compression", "full", "--compression", "kivi"}),
            "ziggurat bench serve --server 127.0.0.1:50051 \\\n"
            "  --compression full \\\n"
            "  --compression kivi");
}

}  // namespace
}  // namespace ziggurat

// `ziggurat calibrate pod`, as it is typed, and a daemon that serves with what it wrote.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/e2e/testing.h"

namespace ziggurat::e2e {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

/// What `calibrate pod` did with these flags besides the bundled model.
CommandResult Calibrate(std::vector<std::string> flags) {
  flags.insert(flags.begin(), {"calibrate", "pod", "--model", NeedleLlama()});
  return RunZiggurat(flags, {}, absl::Seconds(300));
}

/// Plain text of about 11 tokens a sentence, in a file.
std::string Text(const TemporaryFolder& folder, int sentences = 200) {
  WriteFile(folder / "text.txt", PlainEnglish(5, sentences));
  return folder / "text.txt";
}

/// [layers][heads] of a groups file.
std::vector<std::vector<int>> Lowest(const fs::path& path) {
  return json::parse(ReadFile(path)).at("lowest").get<std::vector<std::vector<int>>>();
}

int Followers(const std::vector<std::vector<int>>& lowest) {
  int followers = 0;
  for (size_t layer = 0; layer < lowest.size(); ++layer) {
    for (const int of_head : lowest[layer]) followers += of_head != static_cast<int>(layer);
  }
  return followers;
}

/// A text for which the daemon's pod must attend to distant tokens.
Generation AskPod(Daemon& daemon, const std::string& policy) {
  v1::GenerateRequest request = TextRequest(PlainEnglish(9, 40), 24, AtEos::kGoOn);
  request.set_compression(policy);
  return Generate(daemon, request);
}

TEST(CalibratePod, WritesGroupsThatADaemonServesWith) {
  TemporaryFolder folder;
  const CommandResult result =
      Calibrate({"--text", Text(folder), "--samples", "3", "--length", "256", "--last", "16",
                 "--delta", "0.1", "--out", folder / "groups.json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json file = json::parse(ReadFile(folder / "groups.json"));
  EXPECT_EQ(file.at("model"), "needle-llama");
  EXPECT_EQ(file.at("delta"), 0.1);
  EXPECT_EQ(file.at("q"), 16);
  EXPECT_EQ(file.at("samples"), 3);
  const std::vector<std::vector<int>> lowest = Lowest(folder / "groups.json");
  ASSERT_EQ(lowest.size(), 8u);
  const int followers = Followers(lowest);
  ASSERT_GT(followers, 0) << ReadFile(folder / "groups.json");
  EXPECT_THAT(result.out, HasSubstr("KV head 1"));
  EXPECT_THAT(result.out, HasSubstr("Groups at --delta 0.1: "));
  EXPECT_THAT(result.out, HasSubstr(absl::StrFormat("save up to %.1f %% of the cache",
                                                    100.0 * followers / 32)));

  START_DAEMON(daemon, {.flags = {"--pod-groups",
                                  absl::StrCat("mine=", (folder / "groups.json").string())}});
  const Generation answer = AskPod(daemon, "pod(groups=mine,sinks=4,recent=32)");
  ASSERT_TRUE(answer.ok()) << answer.Describe();
  EXPECT_LT(answer.result->cache().blocks(), answer.result->cache().full_blocks());
  EXPECT_GT(answer.result->cache().distant_attentions(), 0u);
}

TEST(CalibratePod, WritesIntoALinkAndNeverBesideWhatOthersOwn) {
  TemporaryFolder folder;
  WriteFile(folder / "target.json", "old");
  WriteFile(folder / "link.json.partial", "mine");
  fs::create_symlink("target.json", folder / "link.json");
  const auto run = [&](const std::string& threads) {
    return Calibrate({"--text", Text(folder), "--samples", "1", "--length", "64", "--last", "4",
                      "--threads", threads, "--out", folder / "link.json"});
  };
  EXPECT_EQ(run("100000").exit_code, 2);
  EXPECT_EQ(ReadFile(folder / "target.json"), "old");
  ASSERT_EQ(run("1").exit_code, 0);
  EXPECT_TRUE(fs::is_symlink(folder / "link.json"));
  EXPECT_EQ(Lowest(folder / "target.json").size(), 8u);
  EXPECT_EQ(ReadFile(folder / "link.json.partial"), "mine");
}

TEST(CalibratePod, SameTextSameBytesWithAnyNumberOfThreads) {
  TemporaryFolder folder;
  std::set<std::string> files, pictures;
  for (const char* threads : {"1", "1", "2"}) {
    const CommandResult result =
        Calibrate({"--text", Text(folder), "--samples", "4", "--length", "200", "--delta", "0.25",
                   "--out", folder / "groups.json", "--threads", threads, "--dtype", "f32"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    files.insert(ReadFile(folder / "groups.json"));
    pictures.insert(result.out);
  }
  EXPECT_EQ(files.size(), 1u);
  EXPECT_EQ(pictures.size(), 1u);
}

TEST(CalibratePod, DeltaDecidesHowMuchIsGrouped) {
  TemporaryFolder folder;
  const auto lowest_at = [&](const char* delta, std::vector<std::string> more = {}) {
    std::vector<std::string> flags = {"--text", Text(folder), "--samples", "2",
                                      "--out",  folder / "g", "--length",  "128",
                                      "--last", "8",          "--delta",   delta};
    flags.insert(flags.end(), more.begin(), more.end());
    const CommandResult result = Calibrate(flags);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return Lowest(folder / "g");
  };
  EXPECT_EQ(Followers(lowest_at("1")), 0);
  EXPECT_EQ(Followers(lowest_at("0")), 14) << "all layers are one group";
  for (const std::vector<int>& heads : lowest_at("0.2", {"--per-layer"})) {
    EXPECT_EQ(heads[0], heads[1]);
  }
}

TEST(CalibratePod, ARandomModelOnPromptsInJsonLines) {
  TemporaryFolder folder;
  const CommandResult made =
      RunZiggurat({"make-model", "--out", folder / "model", "--layers", "3", "--hidden-size", "64",
                   "--heads", "6", "--kv-heads", "3", "--head-dim", "16", "--intermediate-size",
                   "96", "--vocab-size", "512", "--context", "256"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  std::string lines;
  for (const int sentences : {2, 8, 40}) {
    lines += json{{"prompt", PlainEnglish(1, sentences)}, {"answer", "x"}}.dump() + "\n";
  }
  WriteFile(folder / "prompts.jsonl", lines);
  const CommandResult result =
      RunZiggurat({"calibrate", "pod", "--model", folder / "model", "--text",
                   folder / "prompts.jsonl", "--out", folder / "groups.json", "--last", "100"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("prompts are too short"));
  EXPECT_THAT(result.err, HasSubstr("to 256 tokens")) << "cut to the context";
  const std::vector<std::vector<int>> lowest = Lowest(folder / "groups.json");
  ASSERT_EQ(lowest.size(), 3u);
  EXPECT_EQ(lowest[0].size(), 3u);
}

TEST(CalibratePod, SaysWhatIsWrong) {
  TemporaryFolder folder;
  const std::string text = Text(folder, 20), out = folder / "groups.json";
  WriteFile(folder / "empty.txt", "\n");
  const auto refusal = [&](std::vector<std::string> flags, int exit_code) {
    const CommandResult result = Calibrate(std::move(flags));
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_THAT(result.err, testing::StartsWith("ziggurat calibrate pod: "));
    EXPECT_FALSE(fs::exists(out));
    return result.err;
  };
  const auto with = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"--text", text, "--out", out});
    return refusal(std::move(flags), 2);
  };
  EXPECT_THAT(with({"--delta", "1.5"}), HasSubstr("--delta: '1.5' must be a number from 0 to 1"));
  EXPECT_THAT(with({"--delta", "nan"}), HasSubstr("--delta: 'nan' must be a number from 0 to 1"));
  EXPECT_THAT(with({"--samples", "0"}),
              HasSubstr("--samples: '0' must be an integer of at least 1"));
  EXPECT_THAT(with({"--last", "0"}), HasSubstr("--last: '0' must be an integer of at least 1"));
  EXPECT_THAT(with({"--last", "0100"}), HasSubstr("'0100' must be an integer of at least 1"));
  EXPECT_THAT(with({"--length", "64"}), HasSubstr("--length must be more than --last"));
  EXPECT_THAT(with({"--length", "5000"}), HasSubstr("the context of this model is 4096 tokens"));
  EXPECT_THAT(with({"--length", "1000"}), HasSubstr("fewer than one sample of 1000"));
  EXPECT_THAT(with({"--dtype", "int3", "--length", "100"}), HasSubstr("--dtype"));
  EXPECT_THAT(refusal({"--text", folder / "empty.txt", "--out", out}, 2),
              HasSubstr("empty.txt: no text in it"));
  EXPECT_THAT(refusal({"--text", folder / "absent.txt", "--out", out}, 1),
              HasSubstr("absent.txt: No such file"));
  EXPECT_THAT(refusal({"--text", text, "--out", folder / "no/such/folder.json"}, 1),
              HasSubstr("folder.json: No such file or directory"));
  EXPECT_THAT(refusal({"--text", text, "--out", folder.path()}, 2), HasSubstr("is a folder"));
}

TEST(CalibratePod, RefusesASampleThatTakesTooMuchMemory) {
  TemporaryFolder folder;
  const CommandResult made =
      RunZiggurat({"make-model", "--out", folder / "model", "--layers", "64", "--hidden-size", "64",
                   "--heads", "64", "--kv-heads", "1", "--head-dim", "8", "--intermediate-size",
                   "8", "--vocab-size", "512", "--context", "8192"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const CommandResult result =
      RunZiggurat({"calibrate", "pod", "--model", folder / "model", "--text", Text(folder, 20),
                   "--out", folder / "groups.json", "--length", "8192"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err,
              HasSubstr("in 64 layers and 64 query heads takes 8 GiB, more than 4 GiB"));
  EXPECT_THAT(result.err, HasSubstr("a smaller --last or --length takes less"));
}

TEST(CalibratePod, HelpTeaches) {
  const CommandResult help = RunZiggurat({"calibrate", "pod", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* word :
       {"--model", "--text", "--out", "--samples", "--length", "--last", "--delta", "--per-layer",
        "--dtype", "ziggurat calibrate pod --model", "--pod-groups", "\"prompt\""}) {
    EXPECT_THAT(help.out, HasSubstr(word));
  }
  EXPECT_EQ(RunZiggurat({"calibrate"}).exit_code, 2);
  EXPECT_EQ(RunZiggurat({"calibrate", "pod"}).exit_code, 2);
}

/// docs/pod_calibration.md shows how it was made.
TEST(CalibratePod, TheBundledModelComesWithGroups) {
  const fs::path path = NeedleLlama() / "pod-groups.json";
  EXPECT_GT(Followers(Lowest(path)), 0);
  START_DAEMON(daemon, {.flags = {"--pod-groups", absl::StrCat("needle=", path.string())}});
  const Generation answer = AskPod(daemon, "pod(groups=needle,sinks=4,recent=32)");
  ASSERT_TRUE(answer.ok()) << answer.Describe();
  EXPECT_GT(answer.result->cache().distant_attentions(), 0u);
}

}  // namespace
}  // namespace ziggurat::e2e

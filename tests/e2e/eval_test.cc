// `ziggurat eval` against the real daemon and the bundled model.
#include <signal.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/e2e/testing.h"

namespace ziggurat::e2e {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

constexpr char kCompressing[] = "pyramidkv(budget=64,kernel=9)";
constexpr char kForgetting[] = "streaming(sinks=4,recent=28)";
constexpr char kKeeping[] = "snapkv(budget=4000)";

/// Prompts of the bundled model's kind: one sentence holds the answer, `depth` of the way through.
std::string Tasks(const std::string& task, int count, int sentences) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    const double depth = i % 5 / 4.0;
    const int before = static_cast<int>(depth * sentences);
    const std::string key = absl::StrCat(10000 + 7919 * (i + 1) % 90000);
    const json line = {
        {"task", task},
        {"length", 16 * sentences},
        {"depth", depth},
        {"prompt", absl::StrCat(PlainEnglish(100 + i, before), " The passkey of Dora Todd is ", key,
                                ".", PlainEnglish(200 + i, sentences - before),
                                " What is the passkey of Dora Todd? Answer:")},
        {"answer", " " + key}};
    absl::StrAppend(&lines, line.dump(), "\n");
  }
  return lines;
}

/// The few-shot kind, whose answer is one token.
std::string Colours(int count) {
  const char* colours[] = {"red", "blue", "green"};
  std::string lines;
  for (int i = 0; i < count; ++i) {
    const std::string colour = colours[i % 3];
    std::string prompt;
    for (int k = 0; k < 6; ++k) absl::StrAppend(&prompt, " Tara named ", colour, ".");
    const json line = {{"task", "agg"},
                       {"length", 300},
                       {"depth", nullptr},
                       {"prompt", absl::StrCat(prompt, PlainEnglish(300 + i, 15),
                                               " Which colour was named most often? Answer:")},
                       {"answer", " " + colour}};
    absl::StrAppend(&lines, line.dump(), "\n");
  }
  return lines;
}

class Eval : public testing::Test {
 protected:
  void SetUp() override {
    WriteFile(folder_ / "single.jsonl", Tasks("single", 10, 30));
    WriteFile(folder_ / "agg.jsonl", Colours(3));
  }
  std::vector<std::string> Command(const Daemon& daemon, std::vector<std::string> more) const {
    std::vector<std::string> command = {"eval", "--server", daemon.grpc_address(),   "--out",
                                        out(),  "--tasks",  folder_ / "single.jsonl"};
    command.insert(command.end(), more.begin(), more.end());
    return command;
  }
  std::string out() const { return folder_ / "out"; }
  std::string OutFile(const std::string& name) const {
    return ReadFile(std::filesystem::path(out()) / name);
  }
  size_t FinishedRequests() const {
    const std::string text = OutFile("results.jsonl");
    return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  }
  json Report() const { return json::parse(OutFile("report.json")); }

  TemporaryFolder folder_;
};

TEST_F(Eval, ReportsWhatPoliciesLoseAndSave) {
  START_DAEMON(daemon, {.dtype = "bf16"});
  const CommandResult result = RunZiggurat(
      Command(daemon, {folder_ / "agg.jsonl", "--concurrency", "4", "--compression", kCompressing,
                       "--compression", kForgetting, "--compression", kKeeping}),
      {}, absl::Minutes(5));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("report.md"));
  EXPECT_THAT(result.err, HasSubstr("52/52 100 %"));
  EXPECT_EQ(FinishedRequests(), 52u);

  const json report = Report();
  EXPECT_EQ(report["run"]["model"]["name"], "needle-llama");
  EXPECT_EQ(report["run"]["model"]["dtype"], "bf16");
  std::map<std::string, json> rows;
  for (const json& row : report["tables"][0]["rows"]) {
    const std::string policy = row["policy"];
    rows[policy.substr(0, policy.find('('))] = row;
  }
  ASSERT_EQ(rows.size(), 4u);
  for (const auto& [policy, row] : rows) {
    EXPECT_EQ(row["prompts"], 10) << policy;
    EXPECT_EQ(row["failed"], 0) << policy;
    EXPECT_GT(row["first_token_seconds"].get<double>(), 0) << policy;
  }
  // The model answers these with the full cache; without the needle it cannot.
  EXPECT_GE(rows["full"]["exact"].get<int>(), 9);
  EXPECT_EQ(rows["full"]["share_of_full"], 1.0);
  EXPECT_GE(rows["pyramidkv"]["exact"].get<int>(), rows["full"]["exact"].get<int>() - 1);
  EXPECT_LT(rows["pyramidkv"]["share_of_full"].get<double>(), 0.5);
  EXPECT_LE(rows["streaming"]["exact"].get<int>(), 4);
  EXPECT_GE(rows["streaming"]["lost"].get<int>(), 5);
  EXPECT_LT(rows["streaming"]["mcnemar_p"].get<double>(), 0.1);
  EXPECT_FALSE(rows["pyramidkv"]["compresses_too_little"]);
  EXPECT_TRUE(rows["snapkv"]["compresses_too_little"]);
  EXPECT_EQ(rows["snapkv"]["exact"], rows["full"]["exact"]) << "it compressed nothing";
  // Of an answer of one token, the end of the prompt is held back.
  EXPECT_EQ(report["tables"][1]["task"], "agg");
  EXPECT_EQ(report["tables"][1]["held_back"], 3);
  EXPECT_EQ(report["tables"][1]["rows"][0]["exact"], 3);

  const std::string markdown = OutFile("report.md");
  EXPECT_THAT(markdown, HasSubstr("does not count: compresses too little"));
  EXPECT_THAT(markdown, HasSubstr("ziggurat eval --server " + daemon.grpc_address()));
  EXPECT_THAT(markdown, HasSubstr(" \\\n  --compression 'pyramidkv("));
  for (const char* picture : {"accuracy.svg", "accuracy_by_task.svg", "needle_overview.svg",
                              "needle_full.svg", "needle_pyramidkv-budget-64-kernel-9.svg"}) {
    EXPECT_THAT(markdown, HasSubstr(picture));
    EXPECT_THAT(OutFile(picture), testing::EndsWith("</svg>\n")) << picture;
  }
  EXPECT_EMPTY_CACHE(daemon);
}

TEST_F(Eval, GoesOnAfterABreak) {
  START_DAEMON(daemon, {.dtype = "bf16"});
  const std::vector<std::string> command = Command(daemon, {"--compression", kCompressing});
  // Many more prompts, so that Ctrl-C comes in the middle.
  WriteFile(folder_ / "single.jsonl", Tasks("single", 200, 60));
  std::vector<std::string> argv = {Binary()};
  argv.insert(argv.end(), command.begin(), command.end());
  auto process = ChildProcess::Start(argv);
  ASSERT_TRUE(process.ok()) << process.status();
  const std::filesystem::path results = std::filesystem::path(out()) / "results.jsonl";
  ASSERT_TRUE(PollUntil(absl::Seconds(60), [&] {
    return std::filesystem::exists(results) && FinishedRequests() >= 10;
  })) << (*process)->stderr_text();
  (*process)->Signal(SIGINT);
  const std::optional<int> code = (*process)->Wait(absl::Seconds(20));
  ASSERT_TRUE(code.has_value()) << "Ctrl-C is not obeyed";
  EXPECT_EQ(*code, 1);
  EXPECT_THAT((*process)->stderr_text(), HasSubstr("goes on from there"));
  EXPECT_THAT((*process)->stderr_text(), HasSubstr("--compression"));
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(out()) / "report.md"));
  EXPECT_EMPTY_CACHE(daemon);

  const size_t done = FinishedRequests();
  ASSERT_LT(done, 400u);
  std::ofstream(results, std::ios::app)
      << R"({"model":"needle-llama","dt)";  // as a crash leaves it
  std::vector<std::string> limited = command;
  limited.insert(limited.end(), {"--limit", "10"});
  const CommandResult rest = RunZiggurat(limited, {}, absl::Minutes(5));
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_THAT(rest.err, HasSubstr("torn"));
  EXPECT_THAT(rest.err, HasSubstr("are done and are not asked again"));
  EXPECT_EQ(Report()["tables"][0]["rows"][0]["prompts"], 10);
  const size_t finished = FinishedRequests();
  EXPECT_LT(finished, done + 20) << "nothing was taken from the first run";

  const CommandResult again = RunZiggurat(limited, {}, absl::Minutes(5));
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(FinishedRequests(), finished) << "everything was done, and is asked again";
}

TEST_F(Eval, ResultsOfAnotherFileOrDtypeAreLeftAside) {
  const std::vector<std::string> more = {"--limit", "2"};
  {
    START_DAEMON(daemon, {.dtype = "bf16"});
    ASSERT_EQ(RunZiggurat(Command(daemon, more)).exit_code, 0);
    WriteFile(folder_ / "single.jsonl", Tasks("single", 5, 10));
    const CommandResult other_file = RunZiggurat(Command(daemon, more));
    ASSERT_EQ(other_file.exit_code, 0) << other_file.err;
    EXPECT_THAT(other_file.err, HasSubstr("whose content was another: left aside"));
    EXPECT_THAT(other_file.err, HasSubstr("requests to make 2"));
  }
  START_DAEMON(daemon, {.dtype = "f32"});
  const CommandResult other_dtype = RunZiggurat(Command(daemon, more));
  ASSERT_EQ(other_dtype.exit_code, 0) << other_dtype.err;
  EXPECT_THAT(other_dtype.err, HasSubstr("another model, needle-llama (bf16): left aside"));
  EXPECT_EQ(FinishedRequests(), 6u);
  EXPECT_EQ(Report()["run"]["model"]["dtype"], "f32");
}

TEST_F(Eval, WrongInputIsSaidBeforeAnythingRuns) {
  START_DAEMON(daemon, {});
  WriteFile(folder_ / "garbled.jsonl", Tasks("single", 1, 3) + "{\"task\": \"single\"\n");
  WriteFile(folder_ / "file", "");
  const std::string single = folder_ / "single.jsonl";
  const std::string server = daemon.grpc_address();
  std::filesystem::create_directories(folder_ / "taken" / "report.md");
  const struct {
    std::vector<std::string> arguments;
    int exit_code;
    std::string message;
  } kWrong[] = {
      {{"--server", server, "--out", out(), "--tasks", folder_ / "none.jsonl"},
       1,
       "none.jsonl: No"},
      {{"--server", server, "--out", out(), "--tasks", folder_ / "garbled.jsonl"},
       2,
       "garbled.jsonl:2: not JSON"},
      {{"--server", server, "--out", folder_ / "file", "--tasks", single}, 1, "file"},
      {{"--server", server, "--out", folder_ / "taken", "--tasks", single},
       2,
       "report.md is a folder"},
      {{"--server", "127.0.0.1:1", "--out", out(), "--tasks", single}, 1, "Is a daemon serving"},
      {{"--server", server, "--out", out(), "--tasks", single, "--compression", "snapkv(bugdet=9)"},
       2,
       "  snapkv(bugdet=9)\n         ^"},
      {{"--server", server, "--out", out(), "--tasks", single, "--compression", ""},
       2,
       "--compression is empty"},
      {{"--server", server, "--out", out(), "--tasks", single, "--stop", ""}, 2, "--stop"},
      {{"--server", server, "--out", out(), "--tasks", single, "--limit", "0"},
       2,
       "'0' must be an integer of at least 1"},
      {{"--server", server, "--out", out(), "--tasks", single, "--concurrency", "0"},
       2,
       "'0' must be an integer from 1 to 1024"},
      {{"--server", server, "--out", out()}, 2, "--tasks"},
      {{"--server", server, "--tasks", single}, 2, "--out"},
  };
  for (const auto& wrong : kWrong) {
    std::vector<std::string> arguments = {"eval"};
    arguments.insert(arguments.end(), wrong.arguments.begin(), wrong.arguments.end());
    const CommandResult result = RunZiggurat(arguments);
    EXPECT_EQ(result.exit_code, wrong.exit_code) << result.err;
    EXPECT_THAT(result.err, HasSubstr(wrong.message));
    EXPECT_THAT(result.err, Not(HasSubstr("requests to make")));
    EXPECT_FALSE(std::filesystem::exists(out())) << wrong.message;
  }
}

TEST_F(Eval, APolicyThatIsNotAllowedIsAskedWrongly) {
  START_DAEMON(daemon, {.dtype = "bf16", .flags = {"--allow-compression", "full"}});
  const CommandResult result = RunZiggurat(Command(daemon, {"--compression", kCompressing}));
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_THAT(result.err, HasSubstr("PERMISSION_DENIED"));
}

TEST_F(Eval, APolicyForWhichThePoolIsTooSmallIsAFailure) {
  // A block for each layer: full has enough of them, minicache needs more.
  START_DAEMON(daemon, {.dtype = "bf16", .kv_cache_memory = "32KiB"});
  const CommandResult result = RunZiggurat(Command(daemon, {"--compression", "minicache"}));
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr("--compression minicache: RESOURCE_EXHAUSTED"));
}

TEST_F(Eval, ABusyDaemonIsWaitedFor) {
  START_DAEMON(daemon, {.dtype = "bf16", .flags = {"--max-running", "1", "--max-queue", "1"}});
  const std::vector<std::string> busy = {
      Binary(),       "generate", "--server",     daemon.grpc_address(),
      "--max-tokens", "2000",     "--ignore-eos", "Once upon a time"};
  auto running = ChildProcess::Start(busy), waiting = ChildProcess::Start(busy);
  ASSERT_TRUE(running.ok() && waiting.ok());
  ASSERT_TRUE(PollUntil(absl::Seconds(20), [&] { return daemon.GetCache().waiting() == 1; }));
  const CommandResult result = RunZiggurat(Command(daemon, {"--limit", "1"}), {}, absl::Minutes(2));
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST_F(Eval, PromptsThatAreTooLongFailAndAreShown) {
  START_DAEMON(daemon, {.dtype = "bf16", .flags = {"--max-prompt-tokens", "600"}});
  WriteFile(folder_ / "long.jsonl", Tasks("single", 2, 200));
  std::vector<std::string> command = Command(daemon, {folder_ / "long.jsonl", "--limit", "2"});
  const CommandResult result = RunZiggurat(command);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("2 of 4 requests failed"));
  const json row = Report()["all_tasks"][0];
  EXPECT_EQ(row["prompts"], 4);
  EXPECT_EQ(row["failed"], 2);
  EXPECT_LE(row["exact"].get<int>(), 2);
  EXPECT_THAT(OutFile("report.md"), HasSubstr("## Failed requests"));
}

TEST_F(Eval, HelpTeaches) {
  const CommandResult help = RunZiggurat({"eval", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* word :
       {"--server", "--tasks", "--compression", "--limit", "--concurrency", "--out",
        "--attention-recall", "ziggurat eval --tasks", "results.jsonl"}) {
    EXPECT_THAT(help.out, HasSubstr(word));
  }
}

}  // namespace
}  // namespace ziggurat::e2e

// `ziggurat bench decode`, `prefill`, `scheduler` and `kernels`: that they run, that their figures
// belong together, and that none is absurd. How fast is for docs/performance.md.
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_split.h"
#include "tests/e2e/testing.h"

namespace ziggurat::e2e {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

/// Runs `bench` with the bundled model and reads what it wrote with --json.
json BenchJson(std::vector<std::string> arguments) {
  const TemporaryFolder folder;
  const std::string file = folder / "bench.json";
  arguments.insert(arguments.begin(), "bench");
  for (const std::string& argument :
       {std::string("--model"), NeedleLlama().string(), std::string("--threads"), std::string("1"),
        std::string("--repeats"), std::string("1"), std::string("--json"), file}) {
    arguments.push_back(argument);
  }
  const CommandResult result = RunZiggurat(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::ifstream in(file);
  return json::parse(in, nullptr, /*allow_exceptions=*/false);
}

TEST(Bench, DecodeTimesEveryBatchContextAndPolicy) {
  const json report =
      BenchJson({"decode", "--batch", "1,4", "--context", "64,600", "--tokens", "400",
                 "--compression", "full", "--compression", "streaming(recent=60)"});
  ASSERT_EQ(report["rows"].size(), 8u) << report;
  for (const json& row : report["rows"]) {
    EXPECT_GE(row["decode_steps"], 400) << row;
    const double rate = row["decode_tokens_per_second"], seconds = row["decode_seconds"];
    const double steps = row["decode_steps"], batch = row["batch"];
    EXPECT_NEAR(rate, batch * steps / seconds, 0.01 * rate);
    double parts = 0;
    for (const auto& part : row["decode_seconds_by_part"]) parts += part.get<double>();
    EXPECT_GT(parts, 0) << row;
    EXPECT_LT(parts, 1.5 * seconds) << row;  // 3.5 times while steps of prefill counted
    // A model of 3 MiB on any machine.
    EXPECT_GT(rate, 5) << row;
    EXPECT_LT(rate, 1e6) << row;
    EXPECT_GT(row["bytes_per_second"], 0);
  }
  // 600 tokens of 8 layers: full holds at least seven times what 64 of them take.
  const auto bytes = [&](int row) { return report["rows"][row]["cache_bytes"].get<double>(); };
  EXPECT_GT(bytes(4), 7 * bytes(5)) << "context 600, batch 1: full against streaming";
}

TEST(Bench, PrefillCountsTheTokensOfAllPrompts) {
  const json report = BenchJson({"prefill", "--batch", "1,3", "--context", "200"});
  ASSERT_EQ(report["rows"].size(), 2u) << report;
  for (const json& row : report["rows"]) {
    const double rate = row["prefill_tokens_per_second"], seconds = row["prefill_seconds"];
    const double tokens = 200.0 * row["batch"].get<double>();
    EXPECT_NEAR(rate, tokens / seconds, 0.01 * rate);
    EXPECT_GT(rate, 50) << row;
  }
}

/// The rows of `bench scheduler` at its default sizes that took absurdly long: more than a
/// microsecond for each layer of each sequence, and a millisecond besides.
std::vector<std::string> AbsurdRows() {
  const CommandResult result = RunZiggurat({"bench", "scheduler", "--steps", "20"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::vector<std::string> absurd;
  int rows = 0;
  for (const auto line : absl::StrSplit(result.out, '\n')) {
    const std::string row(line);
    double microseconds = 0;
    int sequences = 0, layers = 0;
    const int found =
        std::sscanf(row.c_str(), "| `full` | %d | %d | %lf us", &sequences, &layers, &microseconds);
    if (found != 3) continue;
    ++rows;
    EXPECT_GT(microseconds, 0) << row;
    if (microseconds >= 1000 + 1.0 * sequences * layers) absurd.push_back(row);
  }
  EXPECT_EQ(rows, 12) << result.out;
  return absurd;
}

TEST(Bench, SchedulerRunsItsDefaultSizes) {
  std::vector<std::string> absurd = AbsurdRows();
  // Whatever else the machine does can only spoil it.
  for (int more = 4; more > 0 && !absurd.empty(); --more) absurd = AbsurdRows();
  EXPECT_THAT(absurd, testing::IsEmpty());
}

TEST(Bench, SchedulerTimesTheTableOfAGpu) {
  const CommandResult result =
      RunZiggurat({"bench", "scheduler", "--sequences", "64", "--layers", "16", "--steps", "40",
                   "--gpu-table", "--compression", "kivi"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const size_t row = result.out.find("| `kivi`");
  ASSERT_NE(row, std::string::npos) << result.out;
  double schedule = 0, of_layer = 0, sampling = 0, begin_end = 0, table = 0;
  ASSERT_EQ(std::sscanf(result.out.c_str() + row,
                        "| `kivi` | 64 | 16 | %lf us | %lf ns | %lf us | %lf us | %lf us |",
                        &schedule, &of_layer, &sampling, &begin_end, &table),
            5)
      << result.out;
  EXPECT_GT(table, 0);
  EXPECT_LT(table, 1000);
}

TEST(Bench, WrongInputIsNamed) {
  const std::string model = NeedleLlama().string();
  const auto refused = [](const std::vector<std::string>& arguments, int exit_code,
                          const char* why) {
    const CommandResult result = RunZiggurat(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_THAT(result.err, HasSubstr(why));
    EXPECT_EQ(result.out, "") << "refused, and yet it ran";
  };
  constexpr int kFailure = 1, kUsage = 2;
  constexpr char kUnknownPolicy[] = "column 1: unknown policy 'zip'; known are fp8, full, ";
  refused({"bench", "decode", "--model", model, "--batch", "0"}, kUsage,
          "--batch: '0' must be an integer from 1 to 65536");
  refused({"bench", "decode", "--model", model, "--batch", "2147483647"}, kUsage,
          "--batch: '2147483647' must be an integer from 1 to 65536");
  refused({"bench", "scheduler", "--compression", "zip"}, kUsage, kUnknownPolicy);
  refused({"bench", "decode", "--model", model, "--context", "4096"}, kUsage,
          "prompts of 4096 tokens and 35 generated ones do not fit the model's context of 4096");
  refused({"bench", "decode", "--model", model, "--compression", "zip"}, kUsage, kUnknownPolicy);
  refused({"bench", "decode", "--model", "/no/model"}, kFailure,
          "/no/model/config.json: no such file");
  refused({"bench", "decode", "--model", model, "--device", "tpu"}, kUsage,
          "--device: 'tpu' is no device: must be auto, cpu or cuda:N");
  refused({"bench", "decode", "--model", model, "--device", "cuda:99"}, kFailure,
          "--device cuda:99: ");
  refused({"bench", "prefill", "--model", model, "--json", "/no/where"}, kFailure,
          "--json: /no/where: No such file or directory");
  refused({"bench", "scheduler", "--sequences", "1,0"}, kUsage,
          "--sequences: '0' must be an integer from 1 to 65536");
  refused({"bench", "scheduler", "--layers", "0"}, kUsage,
          "--layers: '0' must be an integer from 1 to 1024");
  refused({"bench", "kernels", "--gigabytes", "0.1"}, kUsage,
          "--gigabytes: '0.1' must be a number from 0.25 to 256");
  refused({"bench"}, kUsage, "A subcommand is required");
}

TEST(Bench, KernelsThatDoNotExistAreSaidBeforeAnythingIsMeasured) {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--filter", "zzz"}, {"--filter", "gemm", "--in-cache"}}) {
    std::vector<std::string> command = {"bench", "kernels"};
    command.insert(command.end(), more.begin(), more.end());
    const CommandResult result = RunZiggurat(command);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(result.err, "ziggurat bench kernels: --filter '" + more[1] +
                              "' matches nothing: names begin with decode/, prefill/, "
                              "column_sums/, sample/ or gemm/, with --in-cache decode/ alone\n");
  }
}

TEST(Bench, KernelsAreChosenByName) {
  const CommandResult result =
      RunZiggurat({"bench", "kernels", "--filter", "decode/bf16/D:64/group:3/", "--in-cache"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("decode/bf16/D:64/group:3/"));
  EXPECT_THAT(result.out, testing::Not(HasSubstr("group:4/")));
}

TEST(Bench, AReportThatIsThereStaysUntilThereIsABetterOne) {
  TemporaryFolder folder;
  WriteFile(folder / "report.json", "the last one");
  const auto run = [&](const char* contexts, const char* policy) {
    return RunZiggurat({"bench", "decode", "--model", NeedleLlama().string(), "--context", contexts,
                        "--tokens", "4", "--repeats", "1", "--compression", "full", "--compression",
                        policy, "--json", (folder / "report.json").string()});
  };
  EXPECT_EQ(run("16,5000", "kivi").exit_code, 2) << "the second context does not fit";
  EXPECT_EQ(run("16", "kivi(group=64)").exit_code, 2) << "it does not suit the model";
  EXPECT_EQ(ReadFile(folder / "report.json"), "the last one");
  EXPECT_EQ(run("16", "kivi").exit_code, 0);
  EXPECT_EQ(json::parse(ReadFile(folder / "report.json"))["rows"].size(), 2u);
}

TEST(Bench, ABatchThatIsNeverTogetherEndsWithItsFirst) {
  const TemporaryFolder folder;
  const std::string file = folder / "report.json";
  const CommandResult result = RunZiggurat(
      {"bench", "decode", "--model", NeedleLlama().string(), "--batch", "1,64", "--context", "2000",
       "--tokens", "8", "--repeats", "1", "--kv-cache-memory", "16MiB", "--json", file});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("had begun when the first one ended"));
  const json report = json::parse(ReadFile(file));
  EXPECT_EQ(report["rows"].size(), 1u) << "what was measured before is kept";
  EXPECT_THAT(report["error"], HasSubstr("had begun"));
}

TEST(Bench, JsonGoesIntoAPipeOnce) {
  const std::string command =
      R"("$0" bench decode --model "$1" --batch 1,2 --context 16 --tokens 4 --repeats 1 )"
      "--kv-cache-memory 8MiB --json /dev/stderr > /dev/null";
  auto shell = ChildProcess::Start({"/bin/sh", "-c", command, Binary(), NeedleLlama()});
  ASSERT_TRUE(shell.ok()) << shell.status();
  EXPECT_EQ((*shell)->Wait(absl::Seconds(60)), 0);
  const json report = json::parse((*shell)->stderr_text(), nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(report.is_object()) << (*shell)->stderr_text();
  EXPECT_EQ(report["rows"].size(), 2u);
  EXPECT_FALSE(report.contains("error"));
}

}  // namespace
}  // namespace ziggurat::e2e

// `ziggurat bench serve` against the real daemon and the bundled model.
#include <signal.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/e2e/testing.h"

namespace ziggurat::e2e {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class BenchServe : public testing::Test {
 protected:
  std::string out() const { return folder_ / "out"; }
  std::string OutFile(const std::string& name) const {
    return ReadFile(std::filesystem::path(out()) / name);
  }
  json Result() const { return json::parse(OutFile("result.json")); }
  std::vector<json> Requests() const {
    std::vector<json> requests;
    const std::vector<std::string> lines =
        absl::StrSplit(OutFile("requests.jsonl"), '\n', absl::SkipEmpty());
    for (const std::string& line : lines) requests.push_back(json::parse(line));
    return requests;
  }
  std::vector<std::string> Command(const Daemon& daemon, std::vector<std::string> more) const {
    std::vector<std::string> command = {"bench", "serve", "--server", daemon.grpc_address(),
                                        "--out", out()};
    command.insert(command.end(), more.begin(), more.end());
    return command;
  }
  // Everything in result.json that can be worked out from requests.jsonl.
  void ExpectThatFiguresAddUp(const json& result, const std::vector<json>& requests) const {
    int64_t input = 0, output = 0, gaps = 0, good = 0;
    double end = 0, ttft = 0, worst_ttft = 0;
    for (const json& request : requests) {
      ASSERT_EQ(request["outcome"], "done") << request;
      EXPECT_EQ(request["prompt_tokens"], request["asked_input_tokens"]);
      EXPECT_EQ(request["output_tokens"], request["asked_output_tokens"]);
      EXPECT_EQ(request["arrived_tokens"], request["asked_output_tokens"]);
      input += request["prompt_tokens"].get<int64_t>();
      output += request["output_tokens"].get<int64_t>();
      gaps += request["output_tokens"].get<int64_t>() - 1;
      end = std::max(end, request["end_seconds"].get<double>());
      ttft += request["ttft_seconds"].get<double>();
      worst_ttft = std::max(worst_ttft, request["ttft_seconds"].get<double>());
      const bool is_good = request["ttft_seconds"] <= result["goodput"]["ttft_goal_seconds"] &&
                           request.value("mean_itl_seconds", 0.0) <=
                               result["goodput"]["itl_goal_seconds"].get<double>();
      good += is_good ? 1 : 0;
    }
    const auto count = static_cast<double>(requests.size());
    EXPECT_EQ(result["requests"]["made"], requests.size());
    EXPECT_EQ(result["requests"]["done"], requests.size());
    EXPECT_EQ(result["requests"]["refused"], 0);
    EXPECT_EQ(result["requests"]["failed"], 0);
    EXPECT_EQ(result["requests"]["short_answers"], 0);
    EXPECT_EQ(result["tokens"]["input"], input);
    EXPECT_EQ(result["tokens"]["output"], output);
    EXPECT_NEAR(result["duration_seconds"], end, 1e-9);
    EXPECT_NEAR(result["throughput"]["requests_per_second"], count / end, 1e-6);
    EXPECT_NEAR(result["throughput"]["output_tokens_per_second"], static_cast<double>(output) / end,
                1e-6);
    const json& latency = result["latency_seconds"];
    EXPECT_EQ(latency["ttft"]["count"], requests.size());
    EXPECT_NEAR(latency["ttft"]["mean"], ttft / count, 1e-9);
    EXPECT_NEAR(latency["ttft"]["max"], worst_ttft, 1e-9);
    EXPECT_EQ(latency["itl"]["count"], gaps);
    for (const char* name : {"ttft", "itl", "request_mean_itl", "end_to_end", "queue"}) {
      const json& figures = latency[name];
      EXPECT_LE(figures["p50"], figures["p95"]) << name;
      EXPECT_LE(figures["p95"], figures["p99"]) << name;
      EXPECT_LE(figures["p99"], figures["max"]) << name;
    }
    EXPECT_LE(latency["ttft"]["p50"], latency["end_to_end"]["p50"]);
    EXPECT_EQ(result["goodput"]["by_mean_itl"]["requests"], good);
    EXPECT_LE(result["goodput"]["by_worst_itl"]["requests"], good);
    const json& cache = result["cache"];
    EXPECT_EQ(cache["missed_samples"], 0);
    EXPECT_GE(cache["samples"].size(), 2u);
    for (const json& sample : cache["samples"]) {
      EXPECT_LE(sample["used_blocks"].get<int>() + sample["reserved_blocks"].get<int>(),
                cache["total_blocks"]);
    }
    for (const char* picture : {"latency.svg", "throughput.svg", "cache.svg"}) {
      EXPECT_THAT(OutFile(picture), testing::EndsWith("</svg>\n")) << picture;
    }
  }

  TemporaryFolder folder_;
};

TEST_F(BenchServe, ClosedLoopCountsWhatTheDaemonCounts) {
  START_DAEMON(daemon, {.dtype = "bf16"});
  const CommandResult run = RunZiggurat(
      Command(daemon, {"--clients", "3", "--requests", "24", "--input-tokens", "uniform:20:200",
                       "--output-tokens", "uniform:1:40", "--warmup", "2"}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("closed loop of 3 clients"));
  EXPECT_THAT(run.out, HasSubstr("24 done, 0 refused, 0 failed"));
  EXPECT_THAT(run.err, HasSubstr("24/24 100 %"));
  const json result = Result();
  const std::vector<json> requests = Requests();
  ASSERT_EQ(requests.size(), 24u);
  ExpectThatFiguresAddUp(result, requests);
  EXPECT_EQ(result["load"]["kind"], "closed");
  EXPECT_EQ(result["compression"], "full");
  EXPECT_LE(result["cache"]["running"]["max"], 3);

  // The first two of the warm-up are of the same lengths; before it one token was asked for behind
  // two.
  const auto& first = requests[0];
  const auto& second = requests[1];
  const MetricSamples metrics = daemon.Metrics();
  EXPECT_EQ(metrics.at("ziggurat_prompt_tokens_total"), 2 + result["tokens"]["input"].get<int>() +
                                                            first["prompt_tokens"].get<int>() +
                                                            second["prompt_tokens"].get<int>());
  EXPECT_EQ(metrics.at("ziggurat_generated_tokens_total"),
            1 + result["tokens"]["output"].get<int>() + first["output_tokens"].get<int>() +
                second["output_tokens"].get<int>());
  EXPECT_EMPTY_CACHE(daemon);
}

TEST_F(BenchServe, PoissonArrivalsWithAPolicyAndGoals) {
  START_DAEMON(daemon, {.dtype = "bf16"});
  const std::vector<std::string> load = {"--rate",          "40.0000001",
                                         "--requests",      "30",
                                         "--input-tokens",  "300",
                                         "--output-tokens", "8",
                                         "--compression",   "snapkv(budget=64)",
                                         "--seed",          "5"};
  const CommandResult run = RunZiggurat(Command(daemon, load));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json result = Result();
  const std::vector<json> requests = Requests();
  ExpectThatFiguresAddUp(result, requests);
  EXPECT_THAT(result["command"].get<std::string>(), HasSubstr("--rate 40.0000001 "));
  EXPECT_THAT(result["compression"].get<std::string>(), testing::StartsWith("snapkv(budget=64,"));
  EXPECT_GT(result["cache"]["compression_ratio"]["mean"], 2);
  double last = 0;
  for (const json& request : requests) {
    EXPECT_GE(request["due_seconds"], last);
    EXPECT_GE(request["sent_seconds"], request["due_seconds"]);
    last = request["due_seconds"];
  }
  EXPECT_GT(last, 0.2) << "30 requests at 40/s take about 0.75 s";
  EXPECT_LT(last, 2);

  std::vector<std::string> strict = load;
  strict.insert(strict.end(), {"--ttft-goal", "0.000001"});
  ASSERT_EQ(RunZiggurat(Command(daemon, strict)).exit_code, 0);
  EXPECT_EQ(Result()["goodput"]["by_mean_itl"]["requests"], 0);
  EXPECT_EQ(Requests()[7]["due_seconds"], requests[7]["due_seconds"]) << "the same load again";
  EXPECT_EMPTY_CACHE(daemon);
}

TEST_F(BenchServe, ReplaysBothFormsOfTraceAndCutsWhatDoesNotFit) {
  START_DAEMON(daemon, {.dtype = "bf16", .flags = {"--max-prompt-tokens", "500"}});
  const std::string azure = folder_ / "azure.csv";
  const std::string mooncake = folder_ / "mooncake.jsonl";
  WriteFile(azure,
            "TIMESTAMP,ContextTokens,GeneratedTokens\n"
            "2023-11-16 18:15:46.6805900,374,4\n"
            "2023-11-16 18:15:50.6805900,4000,10\n"
            "2023-11-16 18:15:56.6805900,80,6\n");
  WriteFile(mooncake,
            "{\"timestamp\": 0, \"input_length\": 374, \"output_length\": 4, \"hash_ids\": [0]}\n"
            "{\"timestamp\": 4000, \"input_length\": 4000, \"output_length\": 10}\n"
            "{\"timestamp\": 10000, \"input_length\": 80, \"output_length\": 6}\n");
  for (const std::string& trace : {azure, mooncake}) {
    const CommandResult run = RunZiggurat(
        Command(daemon, {"--trace", trace, "--time-scale", "0.05", "--length-scale", "0.5"}));
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_THAT(run.out, HasSubstr("1 of 3 did not fit the context and were cut"));
    const json result = Result();
    const std::vector<json> requests = Requests();
    ASSERT_EQ(requests.size(), 3u);
    ExpectThatFiguresAddUp(result, requests);
    EXPECT_EQ(result["load"]["kind"], "trace");
    EXPECT_EQ(result["requests"]["cut_to_context"], 1);
    EXPECT_EQ(requests[0]["prompt_tokens"], 187);
    EXPECT_EQ(requests[0]["output_tokens"], 2);
    EXPECT_EQ(requests[1]["prompt_tokens"], 500);
    EXPECT_EQ(requests[2]["output_tokens"], 3);
    EXPECT_NEAR(requests[1]["due_seconds"], 0.2, 1e-6);
    EXPECT_NEAR(requests[2]["due_seconds"], 0.5, 1e-6);
  }
  EXPECT_EMPTY_CACHE(daemon);
}

TEST_F(BenchServe, RefusedRequestsAreCountedWithTheirReason) {
  START_DAEMON(daemon, {.dtype = "bf16", .flags = {"--max-running", "1", "--max-queue", "1"}});
  const CommandResult run =
      RunZiggurat(Command(daemon, {"--rate", "2000", "--requests", "40", "--input-tokens", "600",
                                   "--output-tokens", "60"}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json result = Result();
  EXPECT_GT(result["requests"]["refused"], 0);
  EXPECT_EQ(result["requests"]["failed"], 0);
  EXPECT_EQ(result["requests"]["done"].get<int>() + result["requests"]["refused"].get<int>(), 40);
  EXPECT_THAT(run.out, HasSubstr("RESOURCE_EXHAUSTED: the queue is full"));
  EXPECT_LT(result["goodput"]["by_mean_itl"]["share"], 1);
}

TEST_F(BenchServe, CtrlCKeepsWhatWasMeasured) {
  START_DAEMON(daemon, {.dtype = "bf16"});
  std::vector<std::string> argv = {Binary()};
  const std::vector<std::string> command =
      Command(daemon, {"--clients", "4", "--duration", "600", "--output-tokens", "uniform:16:800"});
  argv.insert(argv.end(), command.begin(), command.end());
  auto process = ChildProcess::Start(argv);
  ASSERT_TRUE(process.ok()) << process.status();
  ASSERT_TRUE(PollUntil(absl::Seconds(120), [&] {
    return daemon.Metrics()["ziggurat_requests_finished_total{reason=\"length\"}"] >= 10;
  })) << (*process)->stderr_text();
  (*process)->Signal(SIGINT);
  const std::optional<int> code = (*process)->Wait(absl::Seconds(20));
  ASSERT_TRUE(code.has_value()) << "Ctrl-C is not obeyed";
  EXPECT_EQ(*code, 1);
  EXPECT_THAT((*process)->stderr_text(), HasSubstr("the figures are those of what was done"));
  const json result = Result();
  EXPECT_EQ(result["broken_off"], true);
  // One asked for the policy; of each client one may have ended in the daemon and not yet there.
  EXPECT_GE(result["requests"]["done"], 10 - 1 - 4);
  EXPECT_EQ(result["requests"]["failed"], 0);
  EXPECT_GE(result["requests"]["cancelled"], 1);
  EXPECT_LE(result["requests"]["cancelled"], 4);
  EXPECT_EMPTY_CACHE(daemon);
}

TEST_F(BenchServe, WrongInputIsSaidBeforeAnythingRuns) {
  START_DAEMON(daemon, {});
  WriteFile(folder_ / "bad.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374\n");
  WriteFile(folder_ / "bad.jsonl",
            "{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 5}\n{\"timestamp\": 1}\n");
  WriteFile(folder_ / "long.jsonl",
            "{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 5}\n"
            "{\"timestamp\": 9e10, \"input_length\": 5, \"output_length\": 5}\n");
  std::filesystem::create_directory(folder_ / "result.json");
  WriteFile(folder_ / "file", "");
  const struct {
    std::vector<std::string> arguments;
    int exit_code;
    std::string message;
  } kWrong[] = {
      {{}, 2, "--clients N (closed loop)"},
      {{"--clients", "1", "--rate", "1"}, 2, "one of --clients"},
      {{"--clients", "0"}, 2, "must be an integer from 1 to 100000"},
      {{"--rate", "-1"}, 2, "'-1' must be a number from 1e-06"},
      {{"--rate", "1e-12"}, 2, "'1e-12' must be a number from 1e-06"},
      {{"--rate", "fast"}, 2, "'fast' must be a number from 1e-06"},
      {{"--clients", "1", "--input-tokens", "normal:5"}, 2, "'normal:5' is no length"},
      {{"--clients", "1", "--output-tokens", "uniform:9:3"}, 2, "9 is more than 3"},
      {{"--clients", "1", "--time-scale", "2"}, 2, "are for --trace"},
      {{"--trace", folder_ / "bad.csv", "--input-tokens", "5"}, 2, "--length-scale scales them"},
      {{"--trace", folder_ / "none.csv"}, 1, "none.csv: No such file"},
      {{"--trace", folder_ / "bad.csv"}, 2, "bad.csv:2: 2 fields, must be 3"},
      {{"--trace", folder_ / "bad.jsonl"}, 2, "bad.jsonl:2: no 'input_length'"},
      {{"--trace", folder_ / "long.jsonl", "--time-scale", "1000"}, 2, "would arrive after 9e+10"},
      {{"--clients", "1", "--compression", "\xff"},
       2,
       "--compression: the text is not valid UTF-8"},
      {{"--clients", "1", "--out", folder_.path()}, 2, "result.json is a folder"},
      {{"--clients", "1", "--compression", "snapkv(bugdet=9)"}, 2, "snapkv(bugdet=9)\n"},
      {{"--clients", "1", "--out", folder_ / "file"}, 1, "file"},
      {{"--clients", "1", "--server", "127.0.0.1:1"}, 1, "Is a daemon serving at 127.0.0.1:1"},
  };
  for (const auto& wrong : kWrong) {
    std::vector<std::string> arguments = {"bench", "serve"};
    const bool names_server = testing::Value(wrong.arguments, testing::Contains("--server"));
    if (!names_server) {
      arguments.insert(arguments.end(), {"--server", daemon.grpc_address()});
    }
    arguments.insert(arguments.end(), wrong.arguments.begin(), wrong.arguments.end());
    const CommandResult result = RunZiggurat(arguments);
    EXPECT_EQ(result.exit_code, wrong.exit_code) << result.err;
    EXPECT_THAT(result.err, HasSubstr(wrong.message));
    EXPECT_EQ(result.out, "");
  }
  EXPECT_EQ(daemon.Metrics().at("ziggurat_prompt_tokens_total"), 0);
}

TEST_F(BenchServe, HelpTeaches) {
  const CommandResult help = RunZiggurat({"bench", "serve", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* word : {"--server",
                           "--clients",
                           "--rate",
                           "--trace",
                           "--time-scale",
                           "--length-scale",
                           "--requests",
                           "--duration",
                           "--input-tokens",
                           "--output-tokens",
                           "--seed",
                           "--compression",
                           "--ttft-goal",
                           "--itl-goal",
                           "--timeout",
                           "--warmup",
                           "--out",
                           "uniform:64:512",
                           "sharegpt",
                           "ziggurat bench serve --rate 2",
                           "MEAN"}) {
    EXPECT_THAT(help.out, HasSubstr(word));
  }
}

}  // namespace
}  // namespace ziggurat::e2e

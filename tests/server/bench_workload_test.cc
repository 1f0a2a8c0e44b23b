// Which requests a load consists of: lengths, traces, arrivals, prompts.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cli/bench/load/distribution.h"
#include "server/cli/bench/load/workload.h"
#include "tests/support/files.h"

namespace ziggurat::bench {
namespace {

using ::testing::HasSubstr;

constexpr ContextLimits kWide = {.context_tokens = 1 << 30, .prompt_tokens = 1 << 30};

std::vector<double> Draw(const std::string& text, LengthSide side, int count) {
  const auto lengths = LengthDistribution::Parse(text, side);
  EXPECT_TRUE(lengths.ok()) << lengths.status();
  Random random(7);
  std::vector<double> drawn;
  for (int i = 0; i < count; ++i) drawn.push_back(static_cast<double>(lengths->Draw(random)));
  return drawn;
}

TEST(BenchLengths, OneNumberIsAlwaysThatNumber) {
  for (const double length : Draw("128", LengthSide::kInput, 100)) EXPECT_EQ(length, 128);
}

TEST(BenchLengths, UniformReachesBothEndsAndEachNumberAboutEquallyOften) {
  std::vector<int> seen(8);
  for (const double length : Draw("uniform:3:7", LengthSide::kOutput, 50000)) {
    ASSERT_GE(length, 3);
    ASSERT_LE(length, 7);
    ++seen[static_cast<size_t>(length)];
  }
  for (int length = 3; length <= 7; ++length) EXPECT_NEAR(seen[length], 10000, 400) << length;
}

TEST(BenchLengths, ShareGptHasTheMeansAndTheMedianThatAreDocumented) {
  const std::pair<LengthSide, double> sides[] = {{LengthSide::kInput, 161},
                                                 {LengthSide::kOutput, 338}};
  for (const auto& [side, mean] : sides) {
    const Distribution figures = Describe(Draw("sharegpt", side, 200000));
    EXPECT_NEAR(figures.mean, mean, 0.02 * mean);
    EXPECT_NEAR(figures.p50, std::exp(-0.5) * mean, 0.02 * mean);
    EXPECT_NEAR(figures.p99, 6.21 * mean, 0.2 * mean);
  }
}

TEST(BenchLengths, PercentilesAreThoseThatAreGiven) {
  const Distribution figures =
      Describe(Draw("p50:200,p95:1500,p100:4000", LengthSide::kInput, 200000));
  EXPECT_NEAR(figures.p50, 200, 4);
  EXPECT_NEAR(figures.p95, 1500, 40);
  EXPECT_LE(figures.max, 4000);
  EXPECT_GT(figures.max, 3900);
  // Behind the last one there is nothing, so half of all are as long as that.
  const std::vector<double> half = Draw("p50:64", LengthSide::kInput, 10000);
  EXPECT_NEAR(std::count(half.begin(), half.end(), 64), 5000, 300);
}

TEST(BenchLengths, MeanAndMostAreKept) {
  const Distribution figures = Describe(Draw("mean:200:4000", LengthSide::kOutput, 200000));
  EXPECT_NEAR(figures.mean, 200, 6);
  EXPECT_LE(figures.max, 4000);
}

TEST(BenchLengths, WhatIsNoLengthIsRefusedWithWhatIsOne) {
  for (const char* text : {"", "0", "-5", "many", "uniform", "uniform:5", "uniform:0:5",
                           "uniform:1:2:3", "uniform:a:b", "normal:5:1", "99999999999"}) {
    const auto lengths = LengthDistribution::Parse(text, LengthSide::kInput);
    ASSERT_FALSE(lengths.ok()) << text;
    EXPECT_TRUE(absl::IsInvalidArgument(lengths.status()));
    EXPECT_THAT(std::string(lengths.status().message()), HasSubstr("uniform:64:512"));
    EXPECT_THAT(std::string(lengths.status().message()), HasSubstr(absl::StrCat("'", text, "'")));
  }
  EXPECT_THAT(
      std::string(LengthDistribution::Parse("uniform:9:3", LengthSide::kInput).status().message()),
      HasSubstr("9 is more than 3"));
}

TEST(BenchLengths, PromptAndAnswerMayClaimHalfOfTheContextEachAndWhatTheOtherLeaves) {
  const ContextLimits limits = {.context_tokens = 1000, .prompt_tokens = 900};
  EXPECT_EQ(FitIntoContext({600, 400}, limits), (Lengths{600, 400}));
  EXPECT_EQ(FitIntoContext({7000, 10}, limits), (Lengths{900, 10}));
  EXPECT_EQ(FitIntoContext({7000, 300}, limits), (Lengths{700, 300}));
  EXPECT_EQ(FitIntoContext({100, 7000}, limits), (Lengths{100, 900}));
  EXPECT_EQ(FitIntoContext({7000, 7000}, limits), (Lengths{500, 500}));
  EXPECT_EQ(FitIntoContext({7000, 7000}, {.context_tokens = 2, .prompt_tokens = 1}),
            (Lengths{1, 1}));
}

TEST(BenchLengths, CutLengthsAlwaysFit) {
  Random random(3);
  for (int i = 0; i < 20000; ++i) {
    const int64_t context = random.UniformInt(2, 50);
    const ContextLimits limits = {.context_tokens = context,
                                  .prompt_tokens = random.UniformInt(1, context - 1)};
    const Lengths wanted = {random.UniformInt(1, 80), random.UniformInt(1, 80)};
    const Lengths fit = FitIntoContext(wanted, limits);
    ASSERT_GE(fit.input, 1);
    ASSERT_GE(fit.output, 1);
    ASSERT_LE(fit.input, std::min(wanted.input, limits.prompt_tokens));
    ASSERT_LE(fit.output, wanted.output);
    ASSERT_LE(fit.input + fit.output, context);
    if (wanted.input <= limits.prompt_tokens && wanted.input + wanted.output <= context) {
      ASSERT_EQ(fit, wanted) << "it fitted";
    }
  }
}

// ---- Traces -------------------------------------------------------------------------------------

TEST(BenchTrace, ReadsAzure) {
  const auto trace = ParseTrace("conv.csv",
                                "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
                                "2023-11-16 18:15:46.6805900,374,44\r\n"
                                "2023-11-16 18:15:50.9951690,396,109\r\n"
                                "\r\n"
                                "2023-11-16 18:16:46.6805900+00:00,879,55");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 3u);
  EXPECT_EQ((*trace)[0].arrival_seconds, 0);
  EXPECT_NEAR((*trace)[1].arrival_seconds, 4.314579, 1e-6);
  EXPECT_NEAR((*trace)[2].arrival_seconds, 60, 1e-6);
  EXPECT_EQ((*trace)[1].lengths, (Lengths{396, 109}));
}

TEST(BenchTrace, ReadsMooncakeInTheOrderOfArrival) {
  const auto trace = ParseTrace(
      "mooncake.jsonl",
      "{\"timestamp\": 5000, \"input_length\": 10, \"output_length\": 1, \"hash_ids\": [1]}\n"
      "{\"timestamp\": 2500, \"input_length\": 6758, \"output_length\": 500}\n");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 2u);
  EXPECT_EQ((*trace)[0].arrival_seconds, 0);
  EXPECT_EQ((*trace)[0].lengths, (Lengths{6758, 500}));
  EXPECT_EQ((*trace)[1].arrival_seconds, 2.5);
}

TEST(BenchTrace, MayBeginWithAByteOrderMark) {
  const auto trace = ParseTrace(
      "t", "\xEF\xBB\xBFTIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46,5,6\r\n");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->front().lengths, (Lengths{5, 6}));
}

TEST(BenchTrace, WhatIsWrongIsSaidWithFileAndLine) {
  const std::string azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,5,5\n";
  const std::string mooncake = R"({"timestamp":0,"input_length":5,"output_length":5})"
                               "\n";
  const std::pair<std::string, std::string> kWrong[] = {
      {"", "t: no request in it"},
      {"TIMESTAMP,ContextTokens,GeneratedTokens\n", "t: no request in it"},
      {"when,in,out\n1,2,3\n", "t:1: neither form of trace"},
      {"2023-11-16 18:15:46,5,5\n", "t:1: neither form of trace"},
      {azure + "2023-11-16 18:15:46,5\n", "t:3: 2 fields, must be 3"},
      {azure + "yesterday,5,5\n", "t:3: TIMESTAMP is 'yesterday'"},
      {azure + "infinite-future,5,5\n", "t:3: TIMESTAMP is 'infinite-future'"},
      {azure + "infinite-past,5,5\n", "t:3: TIMESTAMP is 'infinite-past'"},
      {azure + "\n2023-11-16 18:15:46,five,5\n", "t:4: ContextTokens is 'five'"},
      {azure + "2023-11-16 18:15:46,5,0\n",
       "t:3: GeneratedTokens is 0, must be from 1 to 1073741824"},
      {azure + "2023-11-16 18:15:46,5,2000000000\n", "is 2000000000, must be from 1 to 1073741824"},
      {azure + "2123-11-16 18:15:46,5,5\n", "t: its last request arrives"},
      {mooncake + R"({"timestamp":1700000000000000,"input_length":5,"output_length":5})",
       "t: its last request arrives"},
      {mooncake + R"({"timestamp":1,"input_length":18446744073709551615,"output_length":5})",
       "must be from 1 to 1073741824"},
      {mooncake + "{\"timestamp\":\n", "t:2: each line must be one JSON object"},
      {mooncake + "[1]\n", "t:2: each line must be one JSON object"},
      {mooncake + R"({"input_length":5,"output_length":5})", "t:2: no 'timestamp'"},
      {mooncake + R"({"timestamp":"a","input_length":5,"output_length":5})",
       "'timestamp' is \"a\""},
      {mooncake + R"({"timestamp":1,"output_length":5})", "t:2: no 'input_length'"},
      {mooncake + R"({"timestamp":1,"input_length":5,"output_length":1.5})",
       "t:2: 'output_length' is 1.5"},
      {mooncake + R"({"timestamp":1,"input_length":-5,"output_length":1})",
       "t:2: input_length is -5, must be from 1"},
      // Deeper than any stack.
      {mooncake + R"({"timestamp":1,"output_length":5,"input_length":)" + std::string(400000, '[') +
           std::string(400000, ']') + "}",
       "t:2: 'input_length' is an array"}};
  for (const auto& [content, message] : kWrong) {
    const auto trace = ParseTrace("t", content);
    ASSERT_FALSE(trace.ok()) << content;
    EXPECT_TRUE(absl::IsInvalidArgument(trace.status()));
    EXPECT_THAT(std::string(trace.status().message()), HasSubstr(message));
  }
  EXPECT_TRUE(absl::IsNotFound(ReadTrace("/nowhere/t.csv").status()));
  EXPECT_THAT(std::string(ReadTrace("/").status().message()), HasSubstr("folder"));
}

// The traces that the documentation speaks of, where they lie beside the source tree.
TEST(BenchTrace, ReadsAllOfThePublicTraces) {
  const std::filesystem::path folder = SharedFolder() / "data/traces";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not there";
  const std::tuple<const char*, size_t, double> kTraces[] = {
      {"AzureLLMInferenceTrace_code.csv", 8819, 3435.948},
      {"AzureLLMInferenceTrace_conv.csv", 19366, 3501.722},
      {"mooncake_conversation_trace.jsonl", 12031, 3536.999}};
  for (const auto& [name, requests, seconds] : kTraces) {
    const auto trace = ReadTrace((folder / name).string());
    ASSERT_TRUE(trace.ok()) << trace.status();
    EXPECT_EQ(trace->size(), requests) << name;
    EXPECT_NEAR(trace->back().arrival_seconds, seconds, 1e-3) << name;
  }
}

// ---- Requests -----------------------------------------------------------------------------------

std::vector<PlannedRequest> All(WorkloadOptions options) {
  Workload workload(std::move(options));
  std::vector<PlannedRequest> requests;
  while (const auto request = workload.Next()) requests.push_back(*request);
  EXPECT_EQ(requests.size(), workload.size());
  return requests;
}

TEST(BenchWorkload, PoissonArrivalsHaveTheRateAndExponentialGaps) {
  const std::vector<PlannedRequest> requests =
      All({.rate = 4, .seed = 11, .requests = 40000, .limits = kWide});
  std::vector<double> gaps;
  for (size_t i = 1; i < requests.size(); ++i) {
    gaps.push_back(requests[i].arrival_seconds - requests[i - 1].arrival_seconds);
  }
  double variance = 0;
  const Distribution figures = Describe(gaps);
  for (const double gap : gaps) variance += (gap - figures.mean) * (gap - figures.mean);
  variance /= static_cast<double>(gaps.size());
  EXPECT_NEAR(figures.mean, 0.25, 0.005);
  EXPECT_NEAR(figures.p50, 0.25 * std::log(2), 0.005);
  EXPECT_NEAR(std::sqrt(variance), 0.25, 0.01) << "as wide as the mean";
}

TEST(BenchWorkload, TheSameSeedBringsTheSameRequestsAndAnotherOneOthers) {
  WorkloadOptions options{.input = *LengthDistribution::Parse("sharegpt", LengthSide::kInput),
                          .output = *LengthDistribution::Parse("sharegpt", LengthSide::kOutput),
                          .rate = 2,
                          .seed = 1,
                          .requests = 50,
                          .limits = kWide};
  const std::vector<PlannedRequest> first = All(options), second = All(options);
  options.seed = 2;
  const std::vector<PlannedRequest> other = All(options);
  int equal = 0;
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].index, i);
    EXPECT_EQ(first[i].lengths, second[i].lengths);
    EXPECT_EQ(first[i].arrival_seconds, second[i].arrival_seconds);
    equal += first[i].lengths == other[i].lengths ? 1 : 0;
  }
  EXPECT_LE(equal, 3);
}

TEST(BenchWorkload, ATraceIsScaledCutAndCounted) {
  const std::vector<TraceEntry> trace = {{.arrival_seconds = 0, .lengths = {4, 1}},
                                         {.arrival_seconds = 10, .lengths = {1000, 100}},
                                         {.arrival_seconds = 20, .lengths = {9000, 100}}};
  const std::vector<PlannedRequest> requests =
      All({.trace = trace,
           .time_scale = 0.5,
           .length_scale = 0.1,
           .limits = {.context_tokens = 500, .prompt_tokens = 499}});
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_EQ(requests[0].lengths, (Lengths{1, 1})) << "never less than a token";
  EXPECT_EQ(requests[1].lengths, (Lengths{100, 10}));
  EXPECT_EQ(requests[1].arrival_seconds, 5);
  EXPECT_FALSE(requests[1].cut);
  EXPECT_EQ(requests[2].lengths, (Lengths{490, 10}));
  EXPECT_TRUE(requests[2].cut);
  EXPECT_EQ(All({.requests = 2, .limits = kWide}).size(), 2u);
  EXPECT_EQ(All({.trace = trace, .requests = 2, .limits = kWide}).size(), 2u);
  EXPECT_EQ(All({.trace = trace, .requests = 9, .limits = kWide}).size(), 3u);
}

TEST(BenchWorkload, PromptsAreRandomRepeatableAndWithoutTheTokensThatEnd) {
  const PromptMaker prompts(100, {1, 50}, 5);
  const std::vector<int32_t> prompt = prompts.Make(3, 20000);
  EXPECT_EQ(prompt, prompts.Make(3, 20000));
  EXPECT_NE(prompt, prompts.Make(4, 20000));
  EXPECT_NE(prompt, PromptMaker(100, {1, 50}, 6).Make(3, 20000));
  const std::set<int32_t> ids(prompt.begin(), prompt.end());
  EXPECT_EQ(ids.size(), 98u);
  EXPECT_EQ(*ids.begin(), 0);
  EXPECT_EQ(*ids.rbegin(), 99);
  EXPECT_FALSE(ids.contains(1) || ids.contains(50));
}

}  // namespace
}  // namespace ziggurat::bench

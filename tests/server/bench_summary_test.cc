// From what became of requests to the figures of a run.
#include <cmath>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/cli/bench/load/load_charts.h"
#include "server/cli/bench/load/load_report.h"
#include "server/cli/bench/plot.h"

namespace ziggurat::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using Json = nlohmann::json;

TEST(BenchDistribution, PercentilesAreThoseOfNumPy) {
  const std::vector<double> values = {1, 2, 3, 4, 10};
  EXPECT_EQ(Percentile(values, 0), 1);
  EXPECT_EQ(Percentile(values, 50), 3);
  EXPECT_EQ(Percentile(values, 75), 4);
  EXPECT_NEAR(Percentile(values, 95), 8.8, 1e-12);
  EXPECT_EQ(Percentile(values, 100), 10);
  EXPECT_EQ(Percentile({7}, 99), 7);
  EXPECT_TRUE(std::isnan(Percentile({}, 50)));
}

TEST(BenchDistribution, IsOfValuesInAnyOrder) {
  const Distribution figures = Describe({10, 1, 3, 2, 4});
  EXPECT_EQ(figures.count, 5u);
  EXPECT_EQ(figures.mean, 4);
  EXPECT_EQ(figures.p50, 3);
  EXPECT_NEAR(figures.p99, 9.76, 1e-12);
  EXPECT_EQ(figures.max, 10);
  EXPECT_TRUE(std::isnan(Describe({}).mean));
}

RequestRecord Done(double due, std::vector<TokenArrival> arrivals, double end) {
  RequestRecord record;
  record.outcome = Outcome::kDone;
  record.due_seconds = record.sent_seconds = due;
  record.end_seconds = end;
  record.arrivals = std::move(arrivals);
  record.prompt_tokens = record.plan.lengths.input = 10;
  record.output_tokens = record.plan.lengths.output = record.arrived_tokens();
  record.compression = "full";
  record.compression_ratio = 1;
  return record;
}

RequestRecord Not(Outcome outcome, const std::string& code, const std::string& error) {
  RequestRecord record;
  record.outcome = outcome;
  record.error_code = code;
  record.error = error;
  record.end_seconds = 1;
  return record;
}

TEST(BenchRecord, TokensOfOneMessageCameTogether) {
  const RequestRecord record = Done(1, {{2.0, 1}, {2.5, 3}, {2.75, 1}}, 3);
  EXPECT_EQ(record.ttft(), 1);
  EXPECT_EQ(record.end_to_end(), 2);
  EXPECT_EQ(record.arrived_tokens(), 5);
  EXPECT_THAT(record.InterTokenGaps(), ElementsAre(0.5, 0, 0, 0.25));
  EXPECT_EQ(record.MeanGap(), 0.75 / 4) << "whatever the messages: last less first, over gaps";
  EXPECT_THAT(Done(0, {{1, 2}}, 1).InterTokenGaps(), ElementsAre(0));
  EXPECT_THAT(Done(0, {{1, 1}}, 1).InterTokenGaps(), ElementsAre());
  EXPECT_EQ(Done(0, {{1, 1}}, 1).MeanGap(), 0);
}

// TTFT 1, ITL 0.1; TTFT 1, ITL 0.1 in the mean and 0.3 at worst; TTFT 6, ITL 0; one token.
std::vector<RequestRecord> Four() {
  return {Done(0, {{1, 1}, {1.1, 1}, {1.2, 1}}, 1.2),
          Done(1, {{2, 1}, {2.3, 1}, {2.3, 1}, {2.3, 1}}, 2.3), Done(1, {{7, 1}, {7, 1}}, 8),
          Done(2, {{3, 1}}, 3)};
}

TEST(BenchSummary, GoodRequestsMeetBothGoals) {
  const LoadSummary summary = Summarize(Four(), {}, {.ttft_seconds = 5, .itl_seconds = 0.2});
  EXPECT_EQ(summary.duration_seconds, 8);
  EXPECT_EQ(summary.good_by_mean.requests, 3);
  EXPECT_EQ(summary.good_by_mean.output_tokens, 3 + 4 + 1);
  EXPECT_EQ(summary.good_by_mean.share, 0.75);
  EXPECT_EQ(summary.good_by_mean.requests_per_second, 3.0 / 8);
  EXPECT_EQ(summary.good_by_mean.output_tokens_per_second, 1);
  EXPECT_EQ(summary.good_by_worst.requests, 2) << "0.3 s once is too long for the worst";
  EXPECT_EQ(summary.good_by_worst.output_tokens, 3 + 1);
  EXPECT_EQ(summary.good_by_p99.requests, 2);
  EXPECT_EQ(Summarize(Four(), {}, {.ttft_seconds = 6, .itl_seconds = 0.3}).good_by_worst.requests,
            4);
  EXPECT_EQ(Summarize(Four(), {}, {.ttft_seconds = 0.5, .itl_seconds = 9}).good_by_mean.requests,
            0);
}

TEST(BenchSummary, CountsAndRatesAddUp) {
  std::vector<RequestRecord> records = Four();
  records[2].plan.cut = true;
  records[3].output_tokens = 7;  // another number than asked for
  records.push_back(Not(Outcome::kRefused, "RESOURCE_EXHAUSTED", "the queue is full"));
  records.push_back(Not(Outcome::kRefused, "RESOURCE_EXHAUSTED", "the queue is full"));
  records.push_back(Not(Outcome::kFailed, "DEADLINE_EXCEEDED", ""));
  records.back().arrivals = {{0.5, 2}};
  records.push_back(Not(Outcome::kCancelled, "", ""));
  const CacheSamples cache = {.block_bytes = 1024,
                              .total_blocks = 100,
                              .samples = {{0, 0, 10, 1, 0}, {4, 50, 10, 3, 1}, {99, 100, 0, 9, 9}}};
  const LoadSummary summary = Summarize(records, cache, {});
  EXPECT_EQ(summary.made, 8);
  EXPECT_EQ(summary.done, 4);
  EXPECT_EQ(summary.refused, 2);
  EXPECT_EQ(summary.failed, 1);
  EXPECT_EQ(summary.cancelled, 1);
  EXPECT_THAT(summary.reasons, ElementsAre(Pair("RESOURCE_EXHAUSTED: the queue is full", 2),
                                           Pair("DEADLINE_EXCEEDED", 1)));
  EXPECT_EQ(summary.other_reasons, 0);
  EXPECT_EQ(summary.cut, 1);
  EXPECT_EQ(summary.short_answers, 1);
  EXPECT_EQ(summary.input_tokens, 40);
  EXPECT_EQ(summary.output_tokens, 3 + 4 + 2 + 7);
  EXPECT_EQ(summary.lost_output_tokens, 2);
  EXPECT_EQ(summary.output_tokens_per_second, 2);
  EXPECT_EQ(summary.ttft.count, 4u);
  EXPECT_EQ(summary.itl.count, 2u + 3 + 1);
  EXPECT_EQ(summary.mean_itl.count, 3u);
  EXPECT_NEAR(summary.itl.max, 0.3, 1e-9);
  EXPECT_NEAR(summary.good_by_mean.share, 3.0 / 7, 1e-9) << "those that are not done are not good";
  EXPECT_EQ(summary.used_blocks.count, 2u) << "looks after the end do not count";
  EXPECT_EQ(summary.used_blocks.mean, 25);
  EXPECT_EQ(summary.committed_blocks.max, 60);
  EXPECT_EQ(summary.running.mean, 2);
}

TEST(BenchSummary, ReasonsThatDifferInNumbersAreOne) {
  std::vector<RequestRecord> records;
  for (int i = 0; i < 30; ++i) {
    records.push_back(Not(Outcome::kRefused, "RESOURCE_EXHAUSTED",
                          "needs " + std::to_string(7 * i) + " blocks of 512"));
  }
  const LoadSummary summary = Summarize(records, {}, {});
  EXPECT_THAT(summary.reasons, ElementsAre(Pair("RESOURCE_EXHAUSTED: needs N blocks of N", 30)));
}

TEST(BenchSummary, TheMostFrequentReasonsAreKept) {
  std::vector<RequestRecord> records;
  for (size_t i = 0; i < kMostReasons + 3; ++i) {
    const size_t times = i == 5 ? 4 : 1;
    records.insert(records.end(), times, Not(Outcome::kFailed, "INTERNAL", std::string(i, 'x')));
  }
  const LoadSummary summary = Summarize(records, {}, {});
  ASSERT_EQ(summary.reasons.size(), kMostReasons);
  EXPECT_THAT(summary.reasons[0], Pair("INTERNAL: xxxxx", 4));
  EXPECT_EQ(summary.other_reasons, 3);
  EXPECT_THAT(LoadText({.setting = {}, .summary = summary, .records = {}, .cache = {}}),
              HasSubstr("and 3 more, for other reasons"));
}

TEST(BenchSummary, ALongReasonEndsWithAWholeCharacter) {
  for (size_t before = 116; before <= 120; ++before) {
    const LoadSummary summary = Summarize(
        {Not(Outcome::kFailed, "INTERNAL", std::string(before, 'x') + "🏛🏛")}, {}, {});
    EXPECT_TRUE(Json::accept("\"" + summary.reasons[0].first + "\"")) << before;
  }
}

LoadResult SomeResult() {
  LoadResult result;
  result.setting.kind = "closed";
  result.setting.clients = 2;
  result.setting.input_tokens = result.setting.output_tokens = "128";
  result.setting.model.set_name("needle");
  result.records = Four();
  result.records.push_back(Not(Outcome::kFailed, "INTERNAL", "a \"mistake\" <of> ours"));
  result.cache = {
      .block_bytes = 1024, .total_blocks = 100, .samples = {{0, 0, 10, 1, 0}, {4, 50, 10, 3, 1}}};
  result.summary = Summarize(result.records, result.cache, result.setting.goals);
  return result;
}

TEST(BenchReport, JsonHasTheFiguresAndNullWhereThereAreNone) {
  const LoadResult result = SomeResult();
  const Json json = Json::parse(LoadJson(result));
  EXPECT_EQ(json["requests"]["done"], 4);
  EXPECT_EQ(json["requests"]["reasons"]["INTERNAL: a \"mistake\" <of> ours"], 1);
  EXPECT_EQ(json["throughput"]["output_tokens_per_second"], 10.0 / 8);
  EXPECT_EQ(json["latency_seconds"]["ttft"]["max"], 6);
  EXPECT_EQ(json["goodput"]["by_mean_itl"]["requests"], 3);
  EXPECT_EQ(json["cache"]["samples"].size(), 2u);
  EXPECT_EQ(json["load"]["clients"], 2);
  EXPECT_TRUE(Json::parse(LoadJson({}))["latency_seconds"]["ttft"]["p99"].is_null());
  int lines = 0;
  std::istringstream requests(RequestLines(result.records));
  for (std::string line; std::getline(requests, line); ++lines) {
    EXPECT_TRUE(Json::accept(line)) << line;
  }
  EXPECT_EQ(lines, 5);
}

TEST(BenchReport, TextSaysWhatFailedAndWhy) {
  const std::string text = LoadText(SomeResult());
  EXPECT_THAT(text, HasSubstr("4 done, 0 refused, 1 failed"));
  EXPECT_THAT(text, HasSubstr("1: INTERNAL: a \"mistake\" <of> ours"));
  EXPECT_THAT(text, HasSubstr("closed loop of 2 clients"));
  EXPECT_THAT(text, HasSubstr("3 of 5 requests (60.0 %)"));
  EXPECT_THAT(text, HasSubstr("100 blocks of 1 KiB, 100 KiB: used"));
  EXPECT_THAT(text, HasSubstr("\n  p99 of a request "));
  EXPECT_THAT(LoadText({}), HasSubstr("TTFT"));
}

TEST(BenchReport, TextOfTheServerHasNoEffectOnATerminal) {
  LoadResult result = SomeResult();
  result.setting.model.set_name("\x1b[31mred");
  result.records.push_back(Not(Outcome::kFailed, "INTERNAL", "\x1b[2J"));
  result.summary = Summarize(result.records, result.cache, result.setting.goals);
  const std::string text = LoadText(result);
  EXPECT_THAT(text, ::testing::Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, HasSubstr("\\x1b[31mred"));
}

TEST(BenchReport, PicturesAreWholeWithAndWithoutData) {
  for (const LoadResult& result : {SomeResult(), LoadResult{}}) {
    for (const std::string& picture : {DrawLatency(result.records, result.setting.goals, "a\nb"),
                                       DrawThroughput(result.records, result.summary, "a"),
                                       DrawCacheOverTime(result.cache, result.summary, "a")}) {
      EXPECT_THAT(picture, ::testing::StartsWith("<svg"));
      EXPECT_THAT(picture, ::testing::EndsWith("</svg>\n"));
      EXPECT_THAT(picture, ::testing::Not(HasSubstr("nan")));
      EXPECT_THAT(picture, ::testing::Not(HasSubstr("inf")));
    }
  }
}

TEST(BenchPlot, EveryTickHasALabelOfItsOwn) {
  for (const double high : {0.004, 0.02, 0.5, 1.0, 2.5, 4000.0}) {
    for (const PlotUnit unit : {PlotUnit::kNumber, PlotUnit::kPercent}) {
      PlotPanel panel{.title = "t",
                      .x = {.title = "x", .low = 0, .high = 1},
                      .y = {.title = "", .low = 0, .high = high, .unit = unit},
                      .series = {}};
      const std::string svg = DrawPlot("title", "", {panel});
      std::set<std::string> labels;
      size_t ticks = 0;
      const std::string mark = "text-anchor=\"end\"";
      for (size_t at = svg.find(mark); at != std::string::npos; at = svg.find(mark, at + 1)) {
        const size_t begin = svg.find('>', at) + 1;
        labels.insert(svg.substr(begin, svg.find('<', begin) - begin));
        ++ticks;
      }
      EXPECT_GE(ticks, 4u);
      EXPECT_EQ(labels.size(), ticks) << high << ": " << ::testing::PrintToString(labels);
    }
  }
}

TEST(BenchPlot, TicksAreRound) {
  EXPECT_THAT(PlotTicks({.low = 0, .high = 10}), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(PlotTicks({.low = 0.01, .high = 1, .logarithmic = true}),
              ElementsAre(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1));
  EXPECT_EQ(PlotTicks({.low = 1e-6, .high = 1, .logarithmic = true}).size(), 7u);
  EXPECT_EQ(RoundUp(0.3), 0.5);
  EXPECT_EQ(RoundUp(20), 20);
  EXPECT_EQ(RoundUp(21), 50);
  EXPECT_EQ(RoundUp(0), 1);
}

}  // namespace
}  // namespace ziggurat::bench

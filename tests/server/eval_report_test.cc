// From results to figures, and from figures to the report.
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/cli/eval/charts.h"
#include "server/cli/eval/heat_map.h"
#include "server/cli/eval/report.h"
#include "server/cli/shell_quote.h"
#include "server/cli/svg.h"
#include "tests/support/files.h"

namespace ziggurat::eval {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kFullBytes = 1000;

// An evaluation with made-up answers: `full` answers all questions, the others what a test says.
class EvalReport : public ::testing::Test {
 protected:
  EvalReport() {
    model_.set_name("toy");
    model_.set_architecture("ToyForTests");
    model_.set_dtype("f32");
    model_.set_num_layers(2);
    policies_ = {{.canonical = "full", .name = "full"},
                 {.canonical = "snapkv(budget=64,window=32)", .name = "snapkv(budget=64)"},
                 {.canonical = "snapkv(budget=9000,window=32)", .name = "snapkv(budget=9000)"}};
    file_ = {.path = "toy.jsonl", .hash = "0123", .questions = {}};
  }

  // Questions of one task and length, one for each depth.
  void Add(const std::string& task, int64_t length, int count, const std::string& answer,
           bool with_depth = true) {
    for (int i = 0; i < count; ++i) {
      Question question{.task = task, .length = length, .prompt = "p", .answer = answer};
      if (with_depth) question.depth = count > 1 ? i / (count - 1.0) : 0;
      file_.questions.push_back(question);
    }
  }
  void MakeAskings() {
    for (size_t i = 0; i < file_.questions.size(); ++i) {
      askings_.push_back({.file = &file_, .index = i, .answer_tokens = 5, .max_tokens = 5});
      for (size_t p = 0; p < policies_.size(); ++p) {
        Result& result = At(p, i);
        result.key = MakeKey(model_, askings_[i], policies_[p]);
        result.version = "0.1.0 (abc)";
        result.text = file_.questions[i].answer;
        result.completion_tokens = 5;
        result.first_token_seconds = 0.5;
        result.total_seconds = 1.5;
        result.cache = {.bytes = kFullBytes, .blocks = 10, .full_blocks = 10};
        if (p == 1) result.cache = {.bytes = 100, .blocks = 1, .full_blocks = 10};
        if (p == 2) result.cache = {.bytes = 950, .blocks = 10, .full_blocks = 10};
      }
    }
  }
  Result& At(size_t policy, size_t asking) { return results_[{policy, asking}]; }
  Summary Summarize() const {
    std::map<ResultKey, Result> results;
    for (const auto& [where, result] : results_) results.emplace(result.key, result);
    return eval::Summarize(model_, policies_, askings_, results);
  }
  RunInfo Info() const {
    RunInfo info;
    info.command = "ziggurat eval --tasks 'a b.jsonl' --out x";
    info.server = "host:1";
    info.model = model_;
    info.files = {{&file_, askings_.size()}};
    info.time = absl::FromUnixSeconds(1'800'000'000);
    return info;
  }
  std::string Markdown() const {
    const Summary summary = Summarize();
    return MarkdownReport(Info(), summary, NamePictures(summary));
  }

  v1::GetModelResponse model_;
  TaskFile file_;
  std::vector<EvalPolicy> policies_;
  std::vector<Asking> askings_;
  std::map<std::pair<size_t, size_t>, Result> results_;
};

TEST_F(EvalReport, RowsCountWhatWasAnswered) {
  Add("single", 512, 4, " 12345");
  MakeAskings();
  At(1, 0).text = " 12399";  // lost, 2 of 4 later digits right
  At(0, 1).text = " 99999";  // won
  At(0, 2).text = At(1, 2).text = " 1";
  const Summary summary = Summarize();
  ASSERT_EQ(summary.groups.size(), 1u);
  const Row& full = summary.groups[0].rows[0];
  EXPECT_EQ(full.prompts, 4);
  EXPECT_EQ(full.exact, 2);
  EXPECT_EQ(full.lost, 0);
  EXPECT_EQ(full.won, 0);
  const Row& row = summary.groups[0].rows[1];
  EXPECT_EQ(row.exact, 2);
  EXPECT_EQ(row.lost, 1);
  EXPECT_EQ(row.won, 1);
  EXPECT_EQ(row.mcnemar_p, 1);
  EXPECT_EQ(row.later_digits, 16);
  EXPECT_EQ(row.later_digits_right, 2 + 4 + 0 + 4);
  EXPECT_DOUBLE_EQ(row.accuracy(), 0.5);
  EXPECT_DOUBLE_EQ(row.exact_interval.low, WilsonInterval(2, 4).low);
}

TEST_F(EvalReport, RowsMeasureCacheAndTimes) {
  Add("single", 512, 2, " 12345");
  MakeAskings();
  At(1, 0).cache = {.bytes = 100,
                    .blocks = 1,
                    .full_blocks = 10,
                    .lazy_layers = 1,
                    .evicted_tokens = 30,
                    .merged_tokens = 4,
                    .distant_tokens = 6,
                    .quantized_tokens = 8,
                    .distant_attentions = 10,
                    .skipped_attentions = 5};
  At(1, 1).cache = {.bytes = 300, .blocks = 4, .full_blocks = 10, .lazy_layers = 2};
  At(1, 0).first_token_seconds = 0.1;
  At(1, 0).total_seconds = 0.3;  // 4 tokens in 0.2 s, and 4 in 1 s
  const Row row = Summarize().groups[0].rows[1];
  EXPECT_DOUBLE_EQ(row.bytes, 200);
  EXPECT_DOUBLE_EQ(row.share_of_full, 0.2);
  EXPECT_DOUBLE_EQ(row.compression_ratio, 4);
  EXPECT_DOUBLE_EQ(row.first_token_seconds, 0.3);
  EXPECT_DOUBLE_EQ(row.tokens_per_second, 8 / 1.2);
  EXPECT_DOUBLE_EQ(row.lazy_layers, 1.5);
  EXPECT_DOUBLE_EQ(row.evicted, 15);
  EXPECT_DOUBLE_EQ(row.merged, 2);
  EXPECT_DOUBLE_EQ(row.distant, 3);
  EXPECT_DOUBLE_EQ(row.quantized, 4);
  EXPECT_EQ(row.distant_attentions, 10u);
  EXPECT_EQ(row.skipped_attentions, 5u);
}

TEST_F(EvalReport, FailuresAreWrongAndCountedByCause) {
  Add("single", 512, 4, " 12345");
  MakeAskings();
  for (const size_t i : {0u, 1u}) {
    At(1, i).error_code = "RESOURCE_EXHAUSTED";
    At(1, i).error = "the request can never fit";
    At(1, i).text = "";
  }
  results_.erase({2, 3});  // a request that never was made is not forgotten either
  const Summary summary = Summarize();
  const Row& row = summary.overall[1];
  EXPECT_EQ(row.prompts, 4);
  EXPECT_EQ(row.failed, 2);
  EXPECT_EQ(row.exact, 2);
  EXPECT_EQ(row.lost, 2);
  EXPECT_DOUBLE_EQ(row.bytes, 100) << "means are over what was answered";
  EXPECT_DOUBLE_EQ(row.share_of_full, 0.1);
  ASSERT_EQ(summary.failures.size(), 2u);
  EXPECT_EQ(summary.failures.at("RESOURCE_EXHAUSTED").count, 2);
  EXPECT_EQ(summary.failures.at("RESOURCE_EXHAUSTED").example, "the request can never fit");
  EXPECT_EQ(summary.failures.at("NOT_ASKED").by_policy.at(2), 1);
  const std::string markdown = Markdown();
  EXPECT_THAT(markdown, HasSubstr("## Failed requests"));
  EXPECT_THAT(markdown, HasSubstr("the request can never fit"));
  EXPECT_THAT(markdown, HasSubstr("2 failed"));
}

TEST_F(EvalReport, EverythingFailedIsNoDivisionByZero) {
  Add("single", 512, 2, " 12345");
  MakeAskings();
  for (auto& [where, result] : results_) result.error_code = "INTERNAL";
  const Summary summary = Summarize();
  EXPECT_TRUE(std::isnan(summary.overall[1].bytes));
  EXPECT_TRUE(std::isnan(summary.overall[1].share_of_full));
  EXPECT_FALSE(summary.overall[1].too_little());
  EXPECT_THAT(Markdown(), Not(HasSubstr("nan")));
  EXPECT_THAT(ShortReport(summary), Not(HasSubstr("nan")));
  EXPECT_THAT(DrawAccuracy(summary), Not(HasSubstr("nan")));
  const auto json = nlohmann::json::parse(JsonReport(Info(), summary));
  EXPECT_TRUE(json["tables"][0]["rows"][1]["bytes"].is_null());
}

TEST_F(EvalReport, RowsThatHoldNearlyEverythingAreMarked) {
  Add("single", 512, 2, " 12345");
  MakeAskings();
  const Summary summary = Summarize();
  EXPECT_FALSE(summary.overall[1].too_little());
  EXPECT_TRUE(summary.overall[2].too_little());
  int rows = 0;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(Markdown(), '\n'))) {
    if (!absl::StartsWith(line, "| `") || !absl::StrContains(line, " to ")) continue;
    ++rows;
    EXPECT_EQ(absl::StrContains(line, "does not count: compresses too little"),
              absl::StartsWith(line, "| `snapkv(budget=9000)`"))
        << line;
  }
  EXPECT_GE(rows, 3) << "of the table of all tasks at least";
  const auto json = nlohmann::json::parse(JsonReport(Info(), summary));
  std::vector<bool> marks;
  for (const auto& row : json["all_tasks"]) marks.push_back(row["compresses_too_little"]);
  EXPECT_THAT(marks, ElementsAre(false, false, true));
}

TEST_F(EvalReport, TablesFollowTheKindsOfTasks) {
  Add("zebra", 512, 1, "a");
  Add("agg", 512, 1, " red", false);
  Add("single3", 512, 1, " 123");
  Add("multiquery", 512, 1, " A 1, B 2");
  Add("single", 2048, 1, " 12345");
  Add("single", 512, 1, " 12345");
  MakeAskings();
  At(1, 3).text = " A 1, B 3";
  const Summary summary = Summarize();
  std::vector<std::string> groups;
  for (const Group& group : summary.groups) {
    groups.push_back(absl::StrCat(group.task, " ", group.length));
  }
  EXPECT_THAT(groups, ElementsAre("single 512", "single 2048", "single3 512", "multiquery 512",
                                  "agg 512", "zebra 512"));
  EXPECT_THAT(summary.tasks, ElementsAre("single", "single3", "multiquery", "agg", "zebra"));
  EXPECT_EQ(summary.by_task[0][0].prompts, 2);
  EXPECT_EQ(summary.groups[3].rows[1].items, 2);
  EXPECT_EQ(summary.groups[3].rows[1].items_right, 1);
  const std::string markdown = Markdown();
  size_t at = 0;
  for (const char* title : {"## All tasks", "## Needle in a haystack", "### single, 512 tokens",
                            "### single, 2048 tokens", "## Multi-query retrieval", "items right",
                            "## Aggregation", "## zebra", "## Policies"}) {
    const size_t found = markdown.find(title, at);
    ASSERT_NE(found, std::string::npos) << title;
    at = found;
  }
}

// Every line of a table has as many cells as its head.
void ExpectTablesAreWhole(const std::string& markdown) {
  int64_t columns = 0;
  int tables = 0;
  for (std::string line : std::vector<std::string>(absl::StrSplit(markdown, '\n'))) {
    if (!absl::StartsWith(line, "|")) {
      columns = 0;
      continue;
    }
    for (size_t at = line.find("\\|"); at != std::string::npos; at = line.find("\\|")) {
      line.erase(at, 2);
    }
    const int64_t bars = std::count(line.begin(), line.end(), '|');
    if (columns == 0) ++tables;
    if (columns == 0) columns = bars;
    EXPECT_EQ(bars, columns) << line;
  }
  EXPECT_GT(tables, 4);
}

TEST_F(EvalReport, MarkdownSaysHowItCameAboutAndItsTablesAreWhole) {
  Add("single", 512, 3, " 12345");
  Add("a|b", 512, 2, " x, y");
  MakeAskings();
  At(1, 0).error_code = "INTERNAL";
  At(1, 0).error = "a|b\nc";
  const std::string markdown = Markdown();
  EXPECT_THAT(markdown, HasSubstr("ziggurat eval --tasks 'a b.jsonl' --out x"));
  EXPECT_THAT(markdown, HasSubstr("| model | toy (ToyForTests), 2 layers"));
  EXPECT_THAT(markdown, HasSubstr("ziggurat 0.1.0 (abc)"));
  EXPECT_THAT(markdown, HasSubstr("2027-01-15"));
  EXPECT_THAT(markdown, HasSubstr("| `snapkv(budget=64)` | `snapkv(budget=64,window=32)` |"));
  EXPECT_THAT(markdown, HasSubstr("1.000 (0.439 to 1.000)")) << "three of three, with interval";
  ExpectTablesAreWhole(markdown);
}

TEST_F(EvalReport, AnswersOfOneTokenAreExplained) {
  Add("agg", 512, 2, " red", false);
  MakeAskings();
  for (Asking& asking : askings_) asking.answer_tokens = 1;
  EXPECT_THAT(Markdown(), HasSubstr("cannot tell policies apart"));
  results_.clear();
  askings_.clear();
  MakeAskings();
  for (Asking& asking : askings_) {
    asking.answer_tokens = 1;
    asking.held_back = 1;
    asking.held_back_text = std::string(":");  // an assignment of ":" warns wrongly (GCC 12)
  }
  EXPECT_THAT(Markdown(), HasSubstr("held back"));
  EXPECT_THAT(Markdown(), Not(HasSubstr("cannot tell")));
}

TEST_F(EvalReport, HeatMapsCountByLengthAndDepth) {
  Add("single", 512, 3, " 12345");
  Add("single", 2048, 3, " 12345");
  Add("line", 512, 3, " 12345");
  Add("single", 512, 1, " 12345", false);  // nowhere on the map
  MakeAskings();
  At(1, 1).text = "";
  At(1, 5).text = "";
  const Summary summary = Summarize();
  ASSERT_EQ(summary.heat_maps.size(), 1u);
  const HeatMap& map = summary.heat_maps[0];
  EXPECT_THAT(map.lengths, ElementsAre(512, 2048));
  EXPECT_THAT(map.depths, ElementsAre(0, 0.5, 1));
  const auto& cells = map.cells[1];
  EXPECT_EQ(cells[1][0].prompts, 1);
  EXPECT_EQ(cells[1][0].exact, 0);
  EXPECT_EQ(cells[2][1].exact, 0);
  EXPECT_EQ(cells[0][0].exact, 1);
  EXPECT_EQ(map.cells[0][1][0].exact, 1);
}

TEST_F(EvalReport, DepthsOffTheGridFallIntoTenths) {
  Add("single", 512, 101, " 12345");
  MakeAskings();
  const HeatMap map = Summarize().heat_maps[0];
  EXPECT_EQ(map.depths.size(), 11u);
  int64_t prompts = 0;
  for (const auto& row : map.cells[0]) prompts += row[0].prompts;
  EXPECT_EQ(prompts, 101);
}

// Tags are balanced and attributes quoted: what a browser needs to show a picture at all.
void ExpectWellFormed(const std::string& svg) {
  std::vector<std::string> open;
  for (size_t at = svg.find('<'); at != std::string::npos; at = svg.find('<', at + 1)) {
    const size_t end = svg.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = svg.substr(at + 1, end - at - 1);
    EXPECT_EQ(std::count(tag.begin(), tag.end(), '"') % 2, 0) << tag;
    if (tag[0] == '/') {
      ASSERT_FALSE(open.empty()) << tag;
      EXPECT_EQ(absl::StrCat("/", open.back()), tag);
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  EXPECT_TRUE(open.empty());
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
  EXPECT_THAT(svg, HasSubstr("prefers-color-scheme: dark"));
}

TEST_F(EvalReport, PicturesAreWellFormedAndNameThePolicies) {
  policies_[1].name = "a<b>&\"c\"";
  Add("single", 512, 3, " 12345");
  Add("single", 2048, 3, " 12345");
  Add("agg", 512, 1, " red", false);
  MakeAskings();
  At(1, 0).attention_recall = {0.25, 0.75};
  At(1, 1).attention_recall = {0.75, std::numeric_limits<double>::quiet_NaN()};
  const Summary summary = Summarize();
  EXPECT_EQ(summary.recall[0].requests, 0);
  EXPECT_EQ(summary.recall[1].requests, 2);
  EXPECT_THAT(summary.recall[1].layers, ElementsAre(0.5, 0.75));
  for (const std::string& svg :
       {DrawHeatMaps(summary, 1), DrawHeatMapOverview(summary), DrawAccuracy(summary),
        DrawAccuracyByTask(summary), DrawAttentionRecall(summary)}) {
    ExpectWellFormed(svg);
    EXPECT_THAT(svg, HasSubstr("a&lt;b&gt;&amp;&quot;c&quot;"));
  }
  EXPECT_THAT(DrawAccuracy(summary), HasSubstr("10.0 % of full")) << "a tip with the figures";
}

TEST_F(EvalReport, OnePolicyAloneCanBeDrawn) {
  policies_.resize(1);
  Add("single", 512, 1, " 12345");
  MakeAskings();
  const Summary summary = Summarize();
  for (const std::string& svg : {DrawHeatMaps(summary, 0), DrawHeatMapOverview(summary),
                                 DrawAccuracy(summary), DrawAccuracyByTask(summary)}) {
    ExpectWellFormed(svg);
  }
}

TEST_F(EvalReport, RecallIsTheMeanOfTheLayersThatHaveOne) {
  Add("single", 512, 1, " 12345");
  MakeAskings();
  const double none = std::numeric_limits<double>::quiet_NaN();
  At(1, 0).attention_recall = {0.25, none, 0.75};
  const Summary summary = Summarize();
  RunInfo info = Info();
  info.asking.attention_recall = true;
  EXPECT_THAT(MarkdownReport(info, summary, NamePictures(summary)),
              HasSubstr("| 0.250 | – | 0.750 | 0.500 |"));
  const std::vector<std::string> lines = absl::StrSplit(DrawAttentionRecall(summary), "<polyline");
  EXPECT_EQ(lines.size() - 1, 1u) << "the legend's; none goes across the gap";
}

TEST_F(EvalReport, WhatCannotBeWrittenIsKnownBefore) {
  Add("single", 512, 1, " 12345");
  MakeAskings();
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "needle_full.svg");
  const PictureNames names = NamePictures(policies_, /*has_heat_maps=*/true, /*has_recall=*/false);
  EXPECT_THAT(std::string(CheckReport(folder.path().string(), names).message()),
              HasSubstr("needle_full.svg"));
  EXPECT_TRUE(CheckReport(folder.path().string(), NamePictures(policies_, false, true)).ok());
}

TEST_F(EvalReport, TheCommandStandsThereToBePasted) {
  Add("single", 512, 1, " 12345");
  MakeAskings();
  const Summary summary = Summarize();
  RunInfo info = Info();
  info.command = "ziggurat eval \\\n  --compression kivi";
  EXPECT_THAT(MarkdownReport(info, summary, NamePictures(summary)),
              HasSubstr("\n```sh\nziggurat eval \\\n  --compression kivi\n```\n"));
  info.command = "ziggurat eval --stop " + ShellQuoted("\n```\xff");
  EXPECT_THAT(MarkdownReport(info, summary, NamePictures(summary)),
              HasSubstr("\n```sh\nziggurat eval --stop $'\\n```\\xff'\n```\n"))
      << "it cannot end its block";
}

TEST_F(EvalReport, FilesAreWrittenAndNamedApart) {
  policies_.push_back({.canonical = "snapkv(budget=64)x", .name = "snapkv[budget=64]"});
  Add("single", 512, 1, " 12345");
  MakeAskings();
  const Summary summary = Summarize();
  const PictureNames names = NamePictures(summary);
  EXPECT_THAT(names.heat_maps,
              ElementsAre("needle_full.svg", "needle_snapkv-budget-64.svg",
                          "needle_snapkv-budget-9000.svg", "needle_snapkv-budget-64_2.svg"));
  const TemporaryFolder folder;
  ASSERT_TRUE(WriteReport(folder.path().string(), Info(), summary).ok());
  for (const std::string& name : names.heat_maps) {
    EXPECT_GT(std::filesystem::file_size(folder / name), 100u);
  }
  for (const char* name : {"report.md", "report.json", "accuracy.svg", "accuracy_by_task.svg",
                           "needle_overview.svg"}) {
    EXPECT_GT(std::filesystem::file_size(folder / name), 100u) << name;
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "attention_recall.svg"));
  const absl::Status status = WriteReport((folder / "absent").string(), Info(), summary);
  EXPECT_THAT(std::string(status.message()), HasSubstr("report.md"));
}

TEST_F(EvalReport, JsonHoldsTheSameFigures) {
  Add("single", 512, 2, " 12345");
  MakeAskings();
  At(1, 0).text = "";
  At(1, 1).attention_recall = {0.25, 0.75};
  const auto json = nlohmann::json::parse(JsonReport(Info(), Summarize()));
  EXPECT_EQ(json["run"]["model"]["name"], "toy");
  EXPECT_EQ(json["run"]["task_files"][0]["hash"], "0123");
  EXPECT_EQ(json["policies"][1]["policy"], "snapkv(budget=64,window=32)");
  const auto& row = json["tables"][0]["rows"][1];
  EXPECT_EQ(row["policy"], "snapkv(budget=64,window=32)");
  EXPECT_EQ(row["exact"], 1);
  EXPECT_EQ(row["lost"], 1);
  EXPECT_DOUBLE_EQ(row["share_of_full"], 0.1);
  EXPECT_EQ(json["heat_maps"][0]["policies"][1]["exact"][0][0], 0);
  EXPECT_EQ(json["attention_recall"][0]["layers"][1], 0.75);
}

TEST(EvalSvg, NumbersTextsAndColours) {
  EXPECT_EQ(SvgNumber(1.0), "1");
  EXPECT_EQ(SvgNumber(1.25), "1.25");
  EXPECT_EQ(SvgNumber(-0.001), "0");
  EXPECT_EQ(EscapeXml("a\x01<"), "a &lt;");
  EXPECT_EQ(EscapeXml("caf\xe9 \u00e9\uffff"), "caf\ufffd \u00e9\ufffd");
  EXPECT_EQ(CutToWidth("short", 12, 100), "short");
  EXPECT_LE(TextWidth(CutToWidth(std::string(99, 'x'), 12, 100), 12), 100);
  EXPECT_EQ(HeatColor(1), "#fde725");
  EXPECT_NE(HeatColor(0), HeatColor(0.1));
  EXPECT_EQ(HeatTextColor(0), "#ffffff");
  EXPECT_EQ(HeatTextColor(1), "#000000");
}

}  // namespace
}  // namespace ziggurat::eval

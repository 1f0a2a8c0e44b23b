#include <cstdio>
#include <fstream>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cli/eval/task_file.h"

namespace ziggurat::eval {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kLine[] =
    R"({"task": "single", "length": 512, "depth": 0.5, "n_tokens": 9, "prompt": " Who?", "answer": " 78474"})";

TEST(EvalTaskFile, ReadsTheFieldsAndSkipsOthers) {
  const auto file = ParseTaskFile(
      "a.jsonl", absl::StrCat(kLine, "\n\n", R"({"task":"agg","length":7,)",
                              R"("depth":null,"prompt":"x","answer":"y"})", "\r\n",
                              R"({"task":"b","length":7,"prompt":"x","answer":"z"})"));
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->questions.size(), 3u);
  const Question& first = file->questions[0];
  EXPECT_EQ(first.task, "single");
  EXPECT_EQ(first.length, 512);
  EXPECT_EQ(first.depth, 0.5);
  EXPECT_EQ(first.prompt, " Who?");
  EXPECT_EQ(first.answer, " 78474");
  EXPECT_FALSE(file->questions[1].depth.has_value());
  EXPECT_FALSE(file->questions[2].depth.has_value());
}

TEST(EvalTaskFile, HashIsOfTheContentAndNotOfThePath) {
  const std::string other = absl::StrCat(kLine, "\n");
  EXPECT_EQ(ParseTaskFile("a", kLine)->hash, ParseTaskFile("b", kLine)->hash);
  EXPECT_NE(ParseTaskFile("a", kLine)->hash, ParseTaskFile("a", other)->hash);
  EXPECT_EQ(ParseTaskFile("a", kLine)->hash.size(), 16u);
}

TEST(EvalTaskFile, ErrorsNameFileLineAndField) {
  const struct {
    const char* line;
    const char* error;
  } kWrong[] = {
      {R"({"task": "a")", "t.jsonl:2: not JSON"},
      {"[1]", "t.jsonl:2: a JSON object is expected, not array"},
      {R"({"length":5,"prompt":"x","answer":"y"})", "t.jsonl:2: no 'task'"},
      {R"({"task":"a","length":5,"answer":"y"})", "t.jsonl:2: no 'prompt'"},
      {R"({"task":"a","length":5,"prompt":"x"})", "t.jsonl:2: no 'answer'"},
      {R"({"task":"a","length":5,"prompt":3,"answer":"y"})", "'prompt' is number"},
      {R"({"task":"a","length":5,"prompt":"x","answer":"  "})", "'answer' is empty"},
      {R"({"task":"a","prompt":"x","answer":"y"})", "no 'length'"},
      {R"({"task":"a","length":0,"prompt":"x","answer":"y"})", "'length' is 0"},
      {R"({"task":"a","length":5.5,"prompt":"x","answer":"y"})", "'length' is 5.5"},
      {R"({"task":"a","length":5,"depth":1.5,"prompt":"x","answer":"y"})", "'depth' is 1.5"},
      {R"({"task":"a","length":5,"depth":"low","prompt":"x","answer":"y"})", "'depth' is \"low\""},
      {"{\"task\":\"\xff\",\"length\":5,\"prompt\":\"x\",\"answer\":\"y\"}", "t.jsonl:2: not JSON"},
  };
  for (const auto& wrong : kWrong) {
    const auto file = ParseTaskFile("t.jsonl", absl::StrCat(kLine, "\n", wrong.line, "\n"));
    EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument) << wrong.line;
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(wrong.error));
  }
  // Deeper than any stack.
  for (const char* field : {"length", "depth"}) {
    const std::string line =
        absl::StrCat(R"({"task":"a","prompt":"x","answer":"y","length":5,")", field,
                     "\":", std::string(400000, '['), std::string(400000, ']'), "}");
    EXPECT_THAT(std::string(ParseTaskFile("t.jsonl", line).status().message()),
                HasSubstr(absl::StrCat("'", field, "' is an array")));
  }
  EXPECT_THAT(std::string(ParseTaskFile("t.jsonl", "\n \n").status().message()),
              HasSubstr("t.jsonl: no question"));
}

TEST(EvalTaskFile, MissingFilesAndFoldersAreSaid) {
  const std::string folder = ::testing::TempDir();
  const auto missing = ReadTaskFile(folder + "/there-is-no-such-file.jsonl");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()),
              HasSubstr("there-is-no-such-file.jsonl: No"));
  EXPECT_THAT(std::string(ReadTaskFile(folder).status().message()), HasSubstr("a folder"));
}

// As the files of the bundled model are: the depths in turn, again and again.
std::vector<Question> Rounds(int rounds) {
  std::vector<Question> questions;
  for (int i = 0; i < 11 * rounds; ++i) {
    questions.push_back({.task = "single", .length = 512, .depth = (i % 11) / 10.0});
  }
  return questions;
}

TEST(EvalSpread, TakesEveryDepthEquallyOften) {
  const std::vector<Question> questions = Rounds(10);
  for (const size_t limit : {11u, 22u, 55u, 110u, 500u}) {
    std::map<double, int> counts;
    for (const size_t i : SpreadOverDepths(questions, limit)) ++counts[*questions[i].depth];
    ASSERT_EQ(counts.size(), 11u) << limit;
    for (const auto& [depth, count] : counts) {
      EXPECT_EQ(count, static_cast<int>(std::min<size_t>(limit, 110) / 11)) << depth;
    }
  }
}

TEST(EvalSpread, FewGoFromTheFirstDepthToTheLast) {
  const std::vector<Question> questions = Rounds(10);
  EXPECT_THAT(SpreadOverDepths(questions, 3), ElementsAre(0, 5, 10));
  EXPECT_THAT(SpreadOverDepths(questions, 2), ElementsAre(0, 10));
  EXPECT_THAT(SpreadOverDepths(questions, 1), ElementsAre(5));
}

TEST(EvalSpread, FilesSortedByDepthAreNotCutOff) {
  std::vector<Question> questions;
  for (const double depth : {0.0, 0.5, 1.0}) {
    for (int i = 0; i < 10; ++i) questions.push_back({.task = "t", .length = 1, .depth = depth});
  }
  EXPECT_THAT(SpreadOverDepths(questions, 6), ElementsAre(0, 1, 10, 11, 20, 21));
}

TEST(EvalSpread, LargerLimitsContainSmallerOnes) {
  const std::vector<Question> questions = Rounds(10);
  std::set<size_t> before;
  for (const size_t limit : {11u, 33u, 77u}) {
    const std::vector<size_t> chosen = SpreadOverDepths(questions, limit);
    const std::set<size_t> now(chosen.begin(), chosen.end());
    EXPECT_EQ(now.size(), limit);
    for (const size_t i : before) EXPECT_TRUE(now.contains(i)) << i;
    before = now;
  }
}

TEST(EvalSpread, QuestionsWithoutDepthAndOtherLengthsAreGroupsOfTheirOwn) {
  std::vector<Question> questions;
  for (int i = 0; i < 8; ++i) questions.push_back({.task = "agg", .length = 512});
  for (int i = 0; i < 8; ++i) questions.push_back({.task = "agg", .length = 2048});
  EXPECT_THAT(SpreadOverDepths(questions, 4), ElementsAre(0, 1, 8, 9));
}

}  // namespace
}  // namespace ziggurat::eval

// results.jsonl, and what a later run takes from it.
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cli/eval/result_log.h"
#include "server/cli/eval/resume.h"
#include "tests/support/files.h"

namespace ziggurat::eval {
namespace {

using ::testing::HasSubstr;

class EvalResume : public ::testing::Test {
 protected:
  void SetUp() override {
    model_.set_name("needle-llama");
    model_.set_dtype("bf16");
    file_ = {.path = "x/single.jsonl", .hash = "0123", .questions = {}};
    for (int i = 0; i < 3; ++i) {
      file_.questions.push_back(
          {.task = "single", .length = 512, .depth = i / 2.0, .prompt = "p", .answer = "12345"});
    }
    for (size_t i = 0; i < file_.questions.size(); ++i) {
      askings_.push_back({.file = &file_, .index = i, .max_tokens = 5, .stop = {"."}});
    }
  }

  Result MakeResult(size_t asking, size_t policy) const {
    Result result{.key = MakeKey(model_, askings_[asking], policies_[policy]),
                  .file = "single.jsonl",
                  .version = "0.1.0 (abc)"};
    result.text = " 123\n\"45\"";
    result.prompt_tokens = 505;
    result.completion_tokens = 5;
    result.queue_seconds = 0.25;
    result.first_token_seconds = 0.5;
    result.total_seconds = 0.75;
    result.cache = {.bytes = 1,
                    .blocks = 2,
                    .full_blocks = 3,
                    .lazy_layers = 4,
                    .evicted_tokens = 5,
                    .merged_tokens = 6,
                    .distant_tokens = 7,
                    .quantized_tokens = 8,
                    .distant_attentions = 9,
                    .skipped_attentions = 10};
    return result;
  }
  std::unique_ptr<ResultLog> OpenLog() const {
    auto log = ResultLog::Open(folder_.string());
    EXPECT_TRUE(log.ok()) << log.status();
    return log.ok() ? *std::move(log) : nullptr;
  }
  Resumption Resume(const std::vector<Result>& earlier, bool recall = false) const {
    return eval::Resume(earlier, model_, policies_, askings_, recall);
  }
  std::string LogText() const { return ReadFile(folder_ / "results.jsonl"); }
  void WriteLog(const std::string& text) const {
    std::filesystem::create_directories(folder_);
    WriteFile(folder_ / "results.jsonl", text);
  }

  TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_ / "evaluation";  ///< not there at first
  v1::GetModelResponse model_;
  TaskFile file_;
  std::vector<Asking> askings_;
  std::vector<EvalPolicy> policies_ = {
      {.canonical = "full", .name = "full"},
      {.canonical = "snapkv(budget=64,window=32)", .name = "snapkv(budget=64)"}};
};

TEST_F(EvalResume, WhatIsWrittenIsReadAgain) {
  Result answered = MakeResult(0, 1);
  answered.recall_asked = true;
  answered.attention_recall = {0.5, std::numeric_limits<double>::quiet_NaN(), 1};
  Result failed = MakeResult(1, 0);
  failed.error_code = "RESOURCE_EXHAUSTED";
  failed.error = "the request can never fit: ...";
  {
    const std::unique_ptr<ResultLog> log = OpenLog();
    ASSERT_TRUE(log->Append(answered).ok());
    ASSERT_TRUE(log->Append(failed).ok());
  }
  const std::unique_ptr<ResultLog> log = OpenLog();
  EXPECT_FALSE(log->was_torn());
  ASSERT_EQ(log->earlier().size(), 2u);
  const Result& first = log->earlier()[0];
  EXPECT_EQ(first.key, answered.key);
  EXPECT_EQ(first.text, answered.text);
  EXPECT_EQ(first.total_seconds, 0.75);
  EXPECT_EQ(first.cache.skipped_attentions, 10u);
  EXPECT_EQ(first.cache.evicted_tokens, 5u);
  EXPECT_TRUE(first.recall_asked);
  ASSERT_EQ(first.attention_recall.size(), 3u);
  EXPECT_EQ(first.attention_recall[0], 0.5);
  EXPECT_TRUE(std::isnan(first.attention_recall[1]));
  EXPECT_TRUE(log->earlier()[1].failed());
  EXPECT_EQ(log->earlier()[1].error, failed.error);
}

TEST_F(EvalResume, TornLastLineIsCutOffWhereverItBroke) {
  const std::string whole = ToJsonLine(MakeResult(0, 0)) + "\n";
  const std::string torn = ToJsonLine(MakeResult(1, 0));
  for (const size_t bytes : {size_t{1}, torn.size() / 2, torn.size() - 1}) {
    WriteLog(whole + torn.substr(0, bytes));
    {
      const std::unique_ptr<ResultLog> log = OpenLog();
      EXPECT_TRUE(log->was_torn());
      ASSERT_EQ(log->earlier().size(), 1u) << bytes;
      ASSERT_TRUE(log->Append(MakeResult(2, 0)).ok());
    }
    EXPECT_EQ(LogText(), whole + ToJsonLine(MakeResult(2, 0)) + "\n") << bytes;
  }
}

TEST_F(EvalResume, AWholeLineWithoutItsEndIsKept) {
  const std::string whole = ToJsonLine(MakeResult(0, 0));
  WriteLog(whole);
  const std::unique_ptr<ResultLog> log = OpenLog();
  EXPECT_FALSE(log->was_torn());
  EXPECT_EQ(log->earlier().size(), 1u);
  EXPECT_EQ(LogText(), whole + "\n");
}

TEST_F(EvalResume, AFileOfOthersIsNotCutOff) {
  for (const char* foreign : {R"({"my": "data"})", "x", "\x01\x02", R"({"mode":1)"}) {
    WriteLog(foreign);
    const auto log = ResultLog::Open(folder_.string());
    ASSERT_FALSE(log.ok()) << foreign;
    EXPECT_THAT(std::string(log.status().message()), HasSubstr("results.jsonl:1:"));
    EXPECT_EQ(LogText(), foreign);
  }
}

TEST_F(EvalResume, ForeignLinesAreRefusedWithTheirNumber) {
  const std::string whole = ToJsonLine(MakeResult(0, 0)) + "\n";
  for (const char* foreign : {"not JSON", "{}", "[]", "3", R"({"model": 7})"}) {
    WriteLog(absl::StrCat(whole, foreign, "\n", whole));
    const auto log = ResultLog::Open(folder_.string());
    ASSERT_FALSE(log.ok()) << foreign;
    EXPECT_THAT(std::string(log.status().message()), HasSubstr("results.jsonl:2:"));
    EXPECT_EQ(LogText(), absl::StrCat(whole, foreign, "\n", whole)) << "nothing is cut off";
  }
}

TEST_F(EvalResume, OneProcessAtATimeWrites) {
  const std::unique_ptr<ResultLog> log = OpenLog();
  const auto second = ResultLog::Open(folder_.string());
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("another evaluation"));
}

TEST_F(EvalResume, FolderThatCannotBeMadeIsSaid) {
  const auto log = ResultLog::Open("/dev/null/folder");
  ASSERT_FALSE(log.ok());
  EXPECT_THAT(std::string(log.status().message()), HasSubstr("/dev/null/folder"));
}

TEST_F(EvalResume, AsksEverythingQuestionByQuestionAtFirst) {
  const Resumption resumption = Resume({});
  ASSERT_EQ(resumption.jobs.size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(resumption.jobs[i].asking, &askings_[i / 2]);
    EXPECT_EQ(resumption.jobs[i].policy, &policies_[i % 2]);
  }
  EXPECT_EQ(DescribeResumption(resumption, "r"), "");
}

TEST_F(EvalResume, AsksOnlyWhatIsLeft) {
  const Resumption resumption = Resume({MakeResult(0, 0), MakeResult(0, 1), MakeResult(2, 1)});
  EXPECT_EQ(resumption.settled.size(), 3u);
  ASSERT_EQ(resumption.jobs.size(), 3u);
  EXPECT_EQ(resumption.jobs[0].asking, &askings_[1]);
  EXPECT_EQ(resumption.jobs[2].asking, &askings_[2]);
  EXPECT_EQ(resumption.jobs[2].policy, &policies_[0]);
  EXPECT_THAT(DescribeResumption(resumption, "r"), HasSubstr("3 are done"));
}

TEST_F(EvalResume, ResultsOfAnotherBuildCountAndAreNamed) {
  model_.set_version("0.1.0 (abc)");
  EXPECT_EQ(Resume({MakeResult(0, 0)}).of_other_version, 0u);
  model_.set_version("0.1.0 (def)");
  const Resumption resumption = Resume({MakeResult(0, 0)});
  EXPECT_EQ(resumption.settled.size(), 1u);
  EXPECT_THAT(DescribeResumption(resumption, "r"), HasSubstr("1 of these came from another"));
}

TEST_F(EvalResume, FailedOnesAreAskedAgainUntilOneSucceeds) {
  Result failed = MakeResult(0, 0);
  failed.error_code = "INTERNAL";
  EXPECT_EQ(Resume({failed}).jobs.size(), 6u);
  EXPECT_EQ(Resume({failed}).failed, 1u);
  EXPECT_EQ(Resume({failed, MakeResult(0, 0)}).jobs.size(), 5u);
  EXPECT_EQ(Resume({MakeResult(0, 0), failed}).jobs.size(), 5u);
}

TEST_F(EvalResume, RecallThatWasNotAskedForIsAskedForNow) {
  Result with_recall = MakeResult(1, 0);
  with_recall.recall_asked = true;  // and the daemon may have given none
  const Resumption resumption = Resume({MakeResult(0, 0), with_recall}, true);
  EXPECT_EQ(resumption.without_recall, 1u);
  EXPECT_EQ(resumption.jobs.size(), 5u);
  EXPECT_EQ(Resume({MakeResult(0, 0), with_recall}, false).jobs.size(), 4u);
}

TEST_F(EvalResume, OthersResultsAreNotMixedInAndAreNamed) {
  Result other_model = MakeResult(0, 0);
  other_model.key.model = "llama";
  Result other_dtype = MakeResult(0, 0);
  other_dtype.key.dtype = "f32";
  Result other_file = MakeResult(0, 0);
  other_file.key.tasks = "4567";
  Result other_policy = MakeResult(0, 0);
  other_policy.key.policy = "streaming(sinks=4,recent=60)";
  Result other_limit = MakeResult(0, 0);
  other_limit.key.max_tokens = 6;
  Result other_stop = MakeResult(0, 0);
  other_stop.key.stop = {"\n"};
  Result other_end = MakeResult(0, 0);
  other_end.key.held_back = 1;
  const Resumption resumption = Resume(
      {other_model, other_dtype, other_file, other_policy, other_limit, other_stop, other_end});
  EXPECT_TRUE(resumption.settled.empty());
  EXPECT_EQ(resumption.jobs.size(), 6u);
  EXPECT_EQ(resumption.other_request, 4u);
  const std::string text = DescribeResumption(resumption, "out/results.jsonl");
  EXPECT_THAT(text, HasSubstr("out/results.jsonl"));
  EXPECT_THAT(text, HasSubstr("1 are of another model, llama (bf16): left aside"));
  EXPECT_THAT(text, HasSubstr("1 are of another model, needle-llama (f32): left aside"));
  EXPECT_THAT(text, HasSubstr("1 are of a task file single.jsonl"));
  EXPECT_THAT(text, HasSubstr("4 are of policies, prompts or settings"));
}

TEST_F(EvalResume, NumbersOfResultsAreWholeAndFit) {
  const std::string line = ToJsonLine(MakeResult(0, 0));
  ASSERT_TRUE(ParseResult(line).ok());
  for (const char* key : {"index", "max_tokens", "prompt_tokens", "blocks"}) {
    const size_t value = line.find(':', line.find(absl::StrCat("\"", key, "\"")));
    ASSERT_NE(value, std::string::npos) << key;
    const size_t end = line.find_first_of(",}", value);
    for (const char* wrong : {"1e30", "1.9", "true", "-18446744073709551616"}) {
      const std::string other = absl::StrCat(line.substr(0, value + 1), wrong, line.substr(end));
      EXPECT_THAT(std::string(ParseResult(other).status().message()), HasSubstr(key)) << other;
    }
  }
}

}  // namespace
}  // namespace ziggurat::eval

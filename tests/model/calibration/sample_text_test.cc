// Text files into samples.
#include "model/calibration/sample_text.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/model/checkpoint_files.h"

namespace ziggurat {
namespace {

using ::testing::HasSubstr;

/// Of the bundled model: BOS is 0.
const Tokenizer& BundledTokenizer() {
  static const auto* tokenizer =
      Tokenizer::Load(std::string(ZIGGURAT_SOURCE_DIR) + "/models/needle-llama")->release();
  return *tokenizer;
}

std::vector<int32_t> Ids(const std::string& text) {
  return *BundledTokenizer().Encode(text, {.add_special_tokens = false});
}

TextFile Plain(const std::string& text) { return {"a.txt", false, {text}}; }

/// "0 1 2 3 ...": every stretch of its tokens is another.
std::string Numbers(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) absl::StrAppend(&text, " ", i);
  return text;
}

TEST(ReadTextFile, PlainTextIsOneText) {
  TemporaryFolder folder;
  WriteFile(folder / "a.txt", "one\n\ntwo {\n");
  const auto file = ReadTextFile(folder / "a.txt");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_FALSE(file->has_prompts);
  EXPECT_THAT(file->texts, testing::ElementsAre("one\n\ntwo {\n"));
}

TEST(ReadTextFile, JsonLinesArePromptsWhateverElseTheyHave) {
  TemporaryFolder folder;
  WriteFile(folder / "a.jsonl",
            "{\"prompt\": \"one\", \"task\": 3}\n\n \r\n{\"prompt\": \"two\\n\"}");
  const auto file = ReadTextFile(folder / "a.jsonl");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->has_prompts);
  EXPECT_THAT(file->texts, testing::ElementsAre("one", "two\n"));
}

TEST(ReadTextFile, SaysWhatIsWrongAndWhere) {
  TemporaryFolder folder;
  const auto refusal = [&](const std::string& name, const std::string& content) {
    WriteFile(folder / name, content);
    const auto file = ReadTextFile(folder / name);
    if (file.ok()) return std::string("was accepted");
    EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(file.status().message());
  };
  EXPECT_THAT(refusal("a.txt", " \n"), HasSubstr("a.txt: no text in it"));
  EXPECT_THAT(refusal("a.jsonl", ""), HasSubstr("a.jsonl: no text in it"));
  EXPECT_THAT(refusal("a.jsonl", "{\"prompt\": \"one\"}\nplain\n"),
              HasSubstr("a.jsonl:2: each line must be one JSON object"));
  EXPECT_THAT(refusal("a.jsonl", "[\"prompt\"]"), HasSubstr("a.jsonl:1: each line must be"));
  EXPECT_THAT(refusal("a.jsonl", "\n{\"text\": \"one\"}"),
              HasSubstr("a.jsonl:2: no field 'prompt'"));
  EXPECT_THAT(refusal("a.jsonl", "{\"prompt\": 3}"),
              HasSubstr("a.jsonl:1: 'prompt' is number, must be a string"));
  EXPECT_EQ(ReadTextFile(folder / "absent.txt").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(ReadTextFile(folder.path()).status().message()), HasSubstr("a folder"));
}

TEST(ReadTextFile, OfWhatHasNoEndOnlySoMuchIsRead) {
  const absl::Status status = ReadTextFile("/dev/zero").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("/dev/zero: has more than"));
}

TEST(SampleText, PlainTextIsCutIntoStretchesBehindBos) {
  const std::string text = Numbers(50);
  const std::vector<int32_t> ids = Ids(text);
  const auto sampled = SampleText(BundledTokenizer(), {Plain(text)}, {.count = 100, .length = 11});
  ASSERT_TRUE(sampled.ok()) << sampled.status();
  ASSERT_EQ(sampled->available, ids.size() / 10);
  ASSERT_EQ(sampled->samples.size(), sampled->available);
  for (size_t i = 0; i < sampled->samples.size(); ++i) {
    std::vector<int32_t> expected(ids.begin() + 10 * i, ids.begin() + 10 * (i + 1));
    expected.insert(expected.begin(), 0);
    EXPECT_EQ(sampled->samples[i], expected) << i;
  }
}

TEST(SampleText, OfAPromptComesItsEnd) {
  const std::string text = Numbers(50);
  const std::vector<int32_t> ids = Ids(text);
  const TextFile file{"a.jsonl", true, {text, " 1 2 3", " 1"}};
  const auto sampled =
      SampleText(BundledTokenizer(), {file}, {.count = 9, .length = 11, .least = 4});
  ASSERT_TRUE(sampled.ok()) << sampled.status();
  std::vector<int32_t> end(ids.end() - 10, ids.end()), whole = Ids(" 1 2 3");
  end.insert(end.begin(), 0);
  whole.insert(whole.begin(), 0);
  EXPECT_THAT(sampled->samples, testing::ElementsAre(end, whole));
  EXPECT_EQ(sampled->too_short, 1u);
}

TEST(SampleText, FewerSamplesAreTakenEvenly) {
  TextFile file{"a.jsonl", true, {}};
  for (int i = 0; i < 10; ++i) file.texts.push_back(absl::StrCat(" ", i));
  const auto sampled = SampleText(BundledTokenizer(), {file, file}, {.count = 4, .length = 11});
  ASSERT_TRUE(sampled.ok()) << sampled.status();
  EXPECT_EQ(sampled->available, 20u);
  std::vector<std::string> texts;
  for (const auto& sample : sampled->samples) texts.push_back(*BundledTokenizer().Decode(sample));
  EXPECT_THAT(texts, testing::ElementsAre(" 0", " 5", " 0", " 5"));
}

TEST(SampleText, SaysWhyThereIsNone) {
  const auto refusal = [](const TextFile& file, const SampleOptions& options) {
    const auto sampled = SampleText(BundledTokenizer(), {file}, options);
    return sampled.ok() ? std::string("was accepted") : std::string(sampled.status().message());
  };
  const std::string text = " 1 2 3";
  EXPECT_THAT(refusal(Plain(text), {.length = 100}),
              HasSubstr(absl::StrCat("the text has ", Ids(text).size(),
                                     " tokens, fewer than one sample of 100")));
  EXPECT_THAT(refusal({"a.jsonl", true, {text}}, {.length = 100, .least = 65}),
              HasSubstr("every prompt is shorter than the 65 tokens"));
  EXPECT_THAT(refusal(Plain(text), {.length = 1}), HasSubstr("have no room for text"));
  EXPECT_THAT(refusal(Plain("a\xff"), {.length = 100}), HasSubstr("a.txt: "));
}

}  // namespace
}  // namespace ziggurat

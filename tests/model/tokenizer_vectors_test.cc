// Against the ids that others computed: llama.cpp's vectors, and the goldens beside the models.

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "model/tokenizer/streaming_detokenizer.h"
#include "tests/model/tokenizer_files.h"

namespace ziggurat {
namespace {

/// A file below ../shared that holds a tokenizer, and the folder of its vectors or goldens.
struct Case {
  const char* folder;
  const char* file;
};

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  std::string name = std::string(info.param.folder) + "_" + info.param.file;
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
}

std::vector<std::string> SplitTexts(const std::string& all) {
  static constexpr std::string_view kSeparator = "\n__ggml_vocab_test__\n";
  std::vector<std::string> texts;
  size_t begin = 0;
  while (true) {
    const size_t end = all.find(kSeparator, begin);
    if (end == std::string::npos) break;
    texts.push_back(all.substr(begin, end - begin));
    begin = end + kSeparator.size();
  }
  if (begin < all.size()) texts.push_back(all.substr(begin));
  return texts;
}

std::vector<std::vector<int32_t>> ReadIds(const std::string& all) {
  std::vector<std::vector<int32_t>> lines;
  std::istringstream file(all);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::vector<int32_t>& ids = lines.emplace_back();
    for (int32_t id = 0; words >> id;) ids.push_back(id);
  }
  return lines;
}

std::string Stream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  StreamingDetokenizer stream(tokenizer);
  std::string text;
  for (const int32_t id : ids) text += stream.Push(id).value();
  return text + stream.Finish().value();
}

class TokenizerVectors : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const std::filesystem::path path = SharedFolder() / GetParam().folder / GetParam().file;
    if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is absent";
    absl::StatusOr<std::unique_ptr<Tokenizer>> loaded = Tokenizer::Load(path);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    tokenizer_ = *std::move(loaded);
  }

  std::string ReadShared(const char* name) const {
    return ReadFile(SharedFolder() / GetParam().folder / name);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

using TokenizerVectorFiles = TokenizerVectors;

TEST_P(TokenizerVectorFiles, EveryVectorIsIdenticalAndDecodesToItsText) {
  const std::vector<std::string> texts = SplitTexts(ReadShared("vectors.inp"));
  const std::vector<std::vector<int32_t>> expected = ReadIds(ReadShared("vectors.out"));
  ASSERT_EQ(texts.size(), expected.size());
  ASSERT_GE(texts.size(), 40u);
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto ids = tokenizer_->Encode(texts[i], {.add_special_tokens = false});
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, expected[i]) << "text " << i << ": '" << texts[i] << "'";
    const auto text = tokenizer_->Decode(*ids);
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(*text, texts[i]);
    EXPECT_EQ(Stream(*tokenizer_, *ids), texts[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Shared, TokenizerVectorFiles,
                         ::testing::Values(Case{"tokenizers/llama-3", "tokenizer.json"},
                                           Case{"tokenizers/qwen2.5", "tokenizer.json"},
                                           Case{"tokenizers/gpt2", "tokenizer.json"},
                                           Case{"tokenizers/tinyllama", "tokenizer.json"},
                                           Case{"tokenizers/tinyllama", "tokenizer.model"}),
                         CaseName);

using TokenizerGoldens = TokenizerVectors;

TEST_P(TokenizerGoldens, PromptsHaveTheIdsThatTheModelWasRunWith) {
  const nlohmann::json golden = nlohmann::json::parse(ReadShared("golden.json"));
  ASSERT_FALSE(golden["prompts"].empty());
  for (const nlohmann::json& prompt : golden["prompts"]) {
    const auto ids = tokenizer_->Encode(prompt["prompt"].get<std::string>());
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, prompt["prompt_ids"].get<std::vector<int32_t>>());
    const auto text = tokenizer_->Decode(*ids);
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(*text, prompt["prompt"].get<std::string>());
  }
}

TEST_P(TokenizerGoldens, GreedyOutputContinuesThePrompt) {
  const nlohmann::json golden = nlohmann::json::parse(ReadShared("golden.json"));
  for (const nlohmann::json& prompt : golden["prompts"]) {
    const auto prompt_ids = prompt["prompt_ids"].get<std::vector<int32_t>>();
    const auto output = prompt["greedy_ids"].get<std::vector<int32_t>>();
    std::vector<int32_t> all = prompt_ids;
    all.insert(all.end(), output.begin(), output.end());
    StreamingDetokenizer stream(*tokenizer_, {.skip_special = true, .continues_text = true});
    std::string text = tokenizer_->Decode(prompt_ids).value();
    for (const int32_t id : output) text += stream.Push(id).value();
    text += stream.Finish().value();
    EXPECT_EQ(text, tokenizer_->Decode(all).value());
  }
}

INSTANTIATE_TEST_SUITE_P(Shared, TokenizerGoldens,
                         ::testing::Values(Case{"models/needle-llama", "tokenizer.json"},
                                           Case{"models/stories260K", "tokenizer.json"},
                                           Case{"models/stories260K", "tokenizer.model"},
                                           Case{"models/tinystories-656k", "tokenizer.json"},
                                           Case{"models/templategpt-1m", "tokenizer.json"}),
                         CaseName);

/// Without spaces at the ends, and single ones between.
std::string RemoveExtraSpaces(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c != ' ' || (!result.empty() && result.back() != ' ')) result.push_back(c);
  }
  while (!result.empty() && result.back() == ' ') result.pop_back();
  return result;
}

/// Both files of one folder. `removes_extra_spaces`: so the SentencePiece model was trained, which
/// its tokenizer.json does not say.
void ExpectAgreement(const char* folder, bool removes_extra_spaces) {
  const std::filesystem::path dir = SharedFolder() / folder;
  if (!std::filesystem::exists(dir)) GTEST_SKIP() << dir << " is absent";
  const auto json = Tokenizer::Load(dir / "tokenizer.json");
  const auto model = Tokenizer::Load(dir / "tokenizer.model");
  ASSERT_TRUE(json.ok() && model.ok()) << json.status() << model.status();
  ASSERT_EQ((*json)->vocab_size(), (*model)->vocab_size());
  EXPECT_EQ((*json)->bos_id(), (*model)->bos_id());
  EXPECT_EQ((*json)->eos_id(), (*model)->eos_id());
  EXPECT_EQ((*json)->unk_id(), (*model)->unk_id());
  for (int id = 0; id < (*json)->vocab_size(); ++id) {
    EXPECT_EQ((*json)->IdToPiece(id).value(), (*model)->IdToPiece(id).value());
    EXPECT_EQ((*json)->IsSpecial(id), (*model)->IsSpecial(id)) << id;
  }
  const std::string prose = ReadFile(SharedFolder() / "data/text/GrimmsFairyTales.txt");
  for (const std::string& text :
       {std::string(), std::string(" "), std::string("  two  spaces "),
        std::string("Grüße, 世界! 🚀🦙"), std::string("a\nb"), std::string("\t\n\r\n "),
        std::string("<s> is BOS</s>"), prose.substr(0, 20000)}) {
    const auto ids = (*model)->Encode(text, {.parse_special = false});
    const auto expected = (*json)->Encode(removes_extra_spaces ? RemoveExtraSpaces(text) : text,
                                          {.parse_special = false});
    ASSERT_TRUE(expected.ok() && ids.ok());
    EXPECT_EQ(*ids, *expected) << text;
    EXPECT_EQ((*model)->Decode(*ids).value(), (*json)->Decode(*expected).value());
  }
}

TEST(TokenizerPairs, JsonAndSentencePieceModelOfTinyLlamaAgree) {
  ExpectAgreement("tokenizers/tinyllama", /*removes_extra_spaces=*/false);
}

TEST(TokenizerPairs, JsonAndSentencePieceModelOfStoriesAgree) {
  ExpectAgreement("models/stories260K", /*removes_extra_spaces=*/true);
}

TEST(TokenizerRoundTrips, MistralPutsOneSpaceBeforeTheTextAndNoneBehindSpecialTokens) {
  const std::filesystem::path dir = SharedFolder() / "tokenizers/mistral-v0.3";
  if (!std::filesystem::exists(dir)) GTEST_SKIP() << dir << " is absent";
  const auto tokenizer = Tokenizer::Load(dir);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto pieces = [&](std::string_view text) {
    std::vector<std::string> result;
    const std::vector<int32_t> ids = (*tokenizer)->Encode(text).value();
    for (const int32_t id : ids) {
      result.emplace_back((*tokenizer)->IdToPiece(id).value());
    }
    return result;
  };
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(pieces("Hello world"), (Pieces{"<s>", "▁Hello", "▁world"}));
  EXPECT_EQ(pieces("[INST] Hello [/INST]Hello"),
            (Pieces{"<s>", "[INST]", "▁Hello", "▁", "[/INST]", "Hello"}));
  for (const std::string text : {"Hello world", "naïve 世界 🚀", "a\n\n  b", "x = {1: 'y'}\t"}) {
    EXPECT_EQ((*tokenizer)->Decode((*tokenizer)->Encode(text).value()).value(), text);
  }
}

TEST(TokenizerSpecialTokens, ChatTokensOfLlama3AndQwenAreFoundInTheText) {
  const std::filesystem::path dir = SharedFolder() / "tokenizers";
  if (!std::filesystem::exists(dir)) GTEST_SKIP() << dir << " is absent";
  const auto llama = Tokenizer::Load(dir / "llama-3");
  ASSERT_TRUE(llama.ok()) << llama.status();
  EXPECT_EQ((*llama)->Encode("<|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|>").value(),
            (std::vector<int32_t>{128000, 128006, 882, 128007, 271, 9906, 128009}));
  EXPECT_TRUE((*llama)->IsSpecial(128009));
  const auto qwen = Tokenizer::Load(dir / "qwen2.5");
  ASSERT_TRUE(qwen.ok()) << qwen.status();
  EXPECT_EQ((*qwen)->Encode("<|im_start|>user\nHello<|im_end|>").value(),
            (std::vector<int32_t>{151644, 872, 198, 9707, 151645}));
  EXPECT_EQ((*qwen)->eos_id(), 151645);
  EXPECT_EQ((*qwen)->bos_id(), std::nullopt);
  // Qwen normalizes to NFC: e and a combining accent are one character.
  EXPECT_EQ((*qwen)->Encode("cafe\u0301").value(), (*qwen)->Encode("caf\u00e9").value());
}

}  // namespace
}  // namespace ziggurat

// Our SentencePiece models against the library's, over models trained here and random texts.
#include <cstdlib>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "model/tokenizer/sentence_piece_model.h"
#include "model/tokenizer/sentence_piece_proto.h"
#include "tests/model/sentence_piece_library.h"
#include "tests/model/tokenizer_files.h"

namespace ziggurat {
namespace {

// What tokenizers stumble over: spaces of all kinds, characters that normalization rewrites,
// combined ones, the names of special pieces.
std::vector<std::string> RandomTexts(int count) {
  const char* const parts[] = {
      " ",       "  ",     "\t",     "\n",      "a",        "ü",      "①", "ﬁ",
      "Ｆ",      "\u00a0", "\u3000", "が",      "か\u3099", "日本",   "😀", "👩‍👧",
      "tab",     "ing",    "<s>",    "</s>",    "<unk>",    "<0x0A>", "▁", "the ",
      "<sep>",   "[X]",    "\u200b", "e\u0301", "ǆ",        "é",      "─", "½",
      "العربية", "ไทย",    "0",      "1234",    "cache",    "block"};
  std::mt19937 random(1);
  std::vector<std::string> texts = {"", " ", "▁", "───", "─────", "a ééé", "éé─ ──é"};
  for (int i = 0; i < count; ++i) {
    std::string text;
    const int length = static_cast<int>(random() % 14);
    for (int k = 0; k < length; ++k) text += parts[random() % std::size(parts)];
    texts.push_back(text);
  }
  return texts;
}

/// Appended to a serialized ModelProto, this sets normalizer_spec.add_dummy_prefix (fields 3 and 3)
/// to false: protobuf merges what comes later into what came before.
constexpr std::string_view kNoDummyPrefix("\x1A\x02\x18\x00", 4);

void ExpectSameIds(const std::string& serialized, const std::vector<std::string>& texts) {
  ASSERT_FALSE(serialized.empty());
  std::string error;
  const auto ours = SentencePieceModel::Load(serialized, &error);
  ASSERT_NE(ours, nullptr) << error;
  for (const bool may_add_space : {true, false}) {
    const SentencePieceLibrary theirs(may_add_space ? serialized
                                                    : serialized + std::string(kNoDummyPrefix));
    for (const std::string& text : texts) {
      std::vector<int32_t> ids;
      ASSERT_TRUE(ours->Encode(text, may_add_space, &ids, &error)) << error;
      ASSERT_EQ(ids, theirs.Encode(text)) << "text: '" << text << "', " << may_add_space;
    }
  }
}

/// A model of a corpus of the tree, serialized.   arguments  of the library, besides
std::string Train(const std::string& arguments) {
  return SentencePieceLibrary::Train(
      "--input=" ZIGGURAT_SOURCE_DIR
      "/models/needle-llama/tokenizer.json --minloglevel=2 "
      "--vocab_size=600 --hard_vocab_limit=false --max_sentence_length=1000000 " +
      arguments);
}

class SentencePieceTest : public ::testing::TestWithParam<const char*> {};

TEST_P(SentencePieceTest, GivesTheIdsOfTheLibrary) {
  ExpectSameIds(Train(GetParam()), RandomTexts(1000));
}

INSTANTIATE_TEST_SUITE_P(
    Models, SentencePieceTest,
    ::testing::Values("--model_type=unigram --user_defined_symbols=<sep>,[X]",
                      "--model_type=unigram --byte_fallback=true "
                      "--normalization_rule_name=nmt_nfkc_cf",
                      // Of whose characters none is a piece.
                      "--model_type=unigram --byte_fallback=true --user_defined_symbols=──,éé",
                      "--model_type=unigram --user_defined_symbols=──,éé",
                      "--model_type=bpe --user_defined_symbols=<sep>,[X],▁the",
                      "--model_type=bpe --byte_fallback=true --normalization_rule_name=identity "
                      "--remove_extra_whitespaces=false --add_dummy_prefix=false"));

/// tokenizer.json as transformers converts XLM-RoBERTa's models.
nlohmann::json Converted(const std::string& serialized) {
  const absl::StatusOr<SentencePieceProto> proto = ParseSentencePieceProto(serialized);
  nlohmann::json vocab = nlohmann::json::array();
  for (const SentencePieceProto::Piece& piece : proto.value().pieces) {
    vocab.push_back({piece.text, piece.score});
  }
  const nlohmann::json normalizers = {
      {{"type", "Precompiled"},
       {"precompiled_charsmap", absl::Base64Escape(proto->precompiled_charsmap)}},
      {{"type", "Strip"}},
      {{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", " "}}};
  return {{"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers}}},
          {"pre_tokenizer", {{"type", "Metaspace"}, {"prepend_scheme", "always"}}},
          {"model", {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", vocab}}}};
}

TEST(SentencePieceJsonTest, TheSameModelAsTokenizerJsonGivesTheIdsOfTheLibrary) {
  const std::string serialized = Train("--model_type=unigram");
  const SentencePieceLibrary library(serialized);
  const std::unique_ptr<Tokenizer> tokenizer = LoadJson(Converted(serialized));
  ASSERT_NE(tokenizer, nullptr);
  int compared = 0;
  for (const std::string& text : RandomTexts(1000)) {
    // Names of pieces, which the library finds in no text, and clusters of several characters, of
    // which it replaces others.
    if (absl::StrContains(text, "<") || absl::StrContains(text, "\u0301") ||
        absl::StrContains(text, "\u3099")) {
      continue;
    }
    ASSERT_EQ(tokenizer->Encode(text).value(), library.Encode(text)) << "text: '" << text << "'";
    ++compared;
  }
  EXPECT_GT(compared, 200);
}

TEST(SentencePieceFilesTest, GiveTheIdsOfTheLibraryForModelsOfOthers) {
  int models = 0;
  for (const char* path :
       {"tokenizers/tinyllama/tokenizer.model", "models/stories260K/tokenizer.model"}) {
    const std::string serialized = ReadFileIfThere(SharedFolder() / path);
    if (serialized.empty()) continue;
    ++models;
    ExpectSameIds(serialized, RandomTexts(1000));
  }
  if (models == 0) GTEST_SKIP() << "../shared is absent: no SentencePiece models of others";
}

TEST(SentencePieceErrorsTest, RefusesWhatIsNoModel) {
  const std::string good = Train("--model_type=bpe");
  ASSERT_FALSE(good.empty());
  std::string error;
  for (const std::string& bad : {std::string(), std::string("hello"), std::string(1000, '\xff')}) {
    EXPECT_EQ(SentencePieceModel::Load(bad, &error), nullptr);
    EXPECT_FALSE(error.empty());
  }
  // Cut anywhere, it loads or is refused, but is never read past its end.
  for (size_t size = 1; size < good.size(); size += 97) {
    (void)SentencePieceModel::Load(good.substr(0, size), &error);
  }
}

}  // namespace
}  // namespace ziggurat

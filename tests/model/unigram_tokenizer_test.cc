// tokenizer.json with a unigram model, and the components that come with such models. What ids are
// expected is what Hugging Face's tokenizers 0.23 gave for the same files and texts, where these
// have a way to forbid special tokens (they have none) and an unknown token.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "model/tokenizer/tokenizer.h"
#include "tests/model/tokenizer_files.h"

namespace ziggurat {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

json Component(std::string_view type, json members = json::object()) {
  members["type"] = type;
  return members;
}

using ScoredPieces = std::vector<std::pair<std::string, double>>;

/// <unk> <s> </s> = 0 1 2, then `pieces`.
json UnigramTokenizer(const ScoredPieces& pieces, bool byte_fallback = false) {
  ScoredPieces vocab = {{"<unk>", 0.0}, {"<s>", 0.0}, {"</s>", 0.0}};
  json added = json::array();
  for (size_t id = 0; id < vocab.size(); ++id) {
    added.push_back({{"id", id}, {"content", vocab[id].first}, {"special", true}});
  }
  vocab.insert(vocab.end(), pieces.begin(), pieces.end());
  if (byte_fallback) {
    for (int byte = 0; byte < 256; ++byte) {
      char name[8];
      std::snprintf(name, sizeof(name), "<0x%02X>", byte);
      vocab.emplace_back(name, -30.0);
    }
  }
  return {
      {"added_tokens", added},
      {"decoder", {{"type", "Fuse"}}},
      {"model",
       {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", vocab}, {"byte_fallback", byte_fallback}}}};
}

std::vector<std::string> PiecesOf(const json& tokenizer_json, std::string_view text,
                                  bool parse_special = true) {
  EncodeOptions options;
  options.parse_special = parse_special;
  return Pieces(*LoadJson(tokenizer_json), text, options);
}

TEST(UnigramTokenizerTest, TakesTheMostProbableSplit) {
  ScoredPieces pieces = {{"a", -2.0},  {"b", -2.0},  {"c", -2.0},
                         {"ab", -3.0}, {"bc", -2.5}, {"abc", -6.0}};
  EXPECT_THAT(PiecesOf(UnigramTokenizer(pieces), "abc"), ElementsAre("a", "bc"));
  EXPECT_THAT(PiecesOf(UnigramTokenizer(pieces), "abab"), ElementsAre("ab", "ab"));
  pieces[5].second = -4.0;
  EXPECT_THAT(PiecesOf(UnigramTokenizer(pieces), "cabc"), ElementsAre("c", "abc"));
}

TEST(UnigramTokenizerTest, OfSplitsThatAreAlikeTheOneWithTheLongerLastPieceStays) {
  const ScoredPieces pieces = {{"a", -1.0}, {"aa", -1.0}};
  EXPECT_THAT(PiecesOf(UnigramTokenizer(pieces), "aaa"), ElementsAre("a", "aa"));
}

// The splits differ by what is rounded when these scores are read and added.
TEST(UnigramTokenizerTest, OfSplitsThatAreAlikeToTheLastBitTheOneOfTheOriginalIsTaken) {
  const ScoredPieces pieces = {{"g", -13.029181247038437}, {"gg", -8.193204814860641}};
  EXPECT_THAT(PiecesOf(UnigramTokenizer(pieces), "ggggg"), ElementsAre("g", "gg", "gg"));
}

TEST(UnigramTokenizerTest, UnknownCharactersInARowAreOneToken) {
  const json tokenizer_json = UnigramTokenizer({{"a", -2.0}});
  EXPECT_THAT(PiecesOf(tokenizer_json, "a中文a語"), ElementsAre("a", "<unk>", "a", "<unk>"));
  // Written out, the unknown token is one too where it is no special one.
  EXPECT_THAT(PiecesOf(tokenizer_json, "a<unk>x", false), ElementsAre("a", "<unk>"));
}

TEST(UnigramTokenizerTest, UnknownCharactersCostTenMoreThanTheLeastProbablePiece) {
  // Two pieces of -9 against one unknown character of -20 and a piece of -1: the pieces.
  ScoredPieces pieces = {{"x", -10.0}, {"ab", -9.0}, {"c", -9.0}, {"bc", -1.0}};
  EXPECT_THAT(PiecesOf(UnigramTokenizer(pieces), "abc"), ElementsAre("ab", "c"));
  pieces[2].second = -12.5;  // now the least probable one: unknown is -22.5, and -23.5 is less
  EXPECT_THAT(PiecesOf(UnigramTokenizer(pieces), "abc"), ElementsAre("ab", "c"));
  pieces[1].second = -12.4;
  EXPECT_THAT(PiecesOf(UnigramTokenizer(pieces), "abc"), ElementsAre("<unk>", "bc"));
}

TEST(UnigramTokenizerTest, UnknownCharactersFallBackToBytesWhereAllAreThere) {
  json tokenizer_json = UnigramTokenizer({{"a", -2.0}}, /*byte_fallback=*/true);
  EXPECT_THAT(PiecesOf(tokenizer_json, "aé"), ElementsAre("a", "<0xC3>", "<0xA9>"));
  tokenizer_json["model"]["vocab"][4 + 0xA9][0] = "no byte";
  EXPECT_THAT(PiecesOf(tokenizer_json, "aé"), ElementsAre("a", "<unk>"));
  EXPECT_THAT(PiecesOf(tokenizer_json, "aèé"), ElementsAre("a", "<unk>")) << "all of a row";
}

TEST(UnigramTokenizerTest, SpecialTokensStayOrdinaryTextWhereTheyAreForbidden) {
  const ScoredPieces pieces = {{"<", -2.0}, {"s", -2.0}, {">", -2.0}, {"/", -2.0}};
  EXPECT_THAT(PiecesOf(UnigramTokenizer(pieces), "s<s>"), ElementsAre("s", "<s>"));
  EXPECT_THAT(PiecesOf(UnigramTokenizer(pieces), "s<s></s>", false),
              ElementsAre("s", "<", "s", ">", "<", "/", "s", ">"));
}

TEST(UnigramTokenizerTest, ASpecialTokenThatIsAllThereIsForItsCharacterIsText) {
  for (const bool byte_fallback : {false, true}) {
    json tokenizer_json = UnigramTokenizer({{"a", -2.0}, {"!", -2.0}, {"a!", -1.0}}, byte_fallback);
    for (const char* special : {"!", "a!"}) {
      const int id = special[0] == '!' ? 4 : 5;
      tokenizer_json["added_tokens"].push_back(
          {{"id", id}, {"content", special}, {"special", true}});
    }
    EXPECT_THAT(PiecesOf(tokenizer_json, "a!"), ElementsAre("a!"));
    EXPECT_THAT(PiecesOf(tokenizer_json, "a!", false),
                ElementsAre("a", byte_fallback ? "<0x21>" : "!"));
  }
}

TEST(UnigramTokenizerTest, AModelWithoutATypeIsKnownByItsVocabulary) {
  json tokenizer_json = UnigramTokenizer({{"ab", -2.0}});
  tokenizer_json["model"].erase("type");
  EXPECT_THAT(PiecesOf(tokenizer_json, "abab"), ElementsAre("ab", "ab"));
}

TEST(UnigramTokenizerTest, WithoutAnUnknownTokenAnUnknownCharacterIsAnError) {
  json tokenizer_json = UnigramTokenizer({{"a", -2.0}, {"bc", -3.0}});
  tokenizer_json["model"]["unk_id"] = nullptr;
  const auto tokenizer = LoadJson(tokenizer_json);
  EXPECT_TRUE(tokenizer->Encode("abc").ok());
  const absl::Status status = tokenizer->Encode("ab").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no token is 'b'"));
}

TEST(UnigramTokenizerTest, BrokenModelsAreRefused) {
  const auto error_of = [](const char* member, const json& value) {
    json tokenizer_json = UnigramTokenizer({{"a", -2.0}});
    tokenizer_json["model"][member] = value;
    const TokenizerDir dir;
    dir.Write("tokenizer.json", tokenizer_json);
    const absl::Status status = Tokenizer::Load(dir.path()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(error_of("vocab", json::array()), HasSubstr("\"vocab\" of model is empty"));
  EXPECT_THAT(error_of("vocab", json::object()), HasSubstr("\"vocab\" of model must be a list"));
  EXPECT_THAT(error_of("vocab", {json::array({"a", -1.0}), json::array({"b"})}),
              HasSubstr("token 1 of vocab"));
  EXPECT_THAT(error_of("vocab", {json::array({"a", "-1"})}), HasSubstr("token 0 of vocab"));
  EXPECT_THAT(error_of("vocab", ScoredPieces{{"a", -1.0}, {"a", -2.0}}),
              HasSubstr("two ids: 0 and 1"));
  EXPECT_THAT(error_of("unk_id", 4), HasSubstr("\"unk_id\" of model is 4"));
  EXPECT_THAT(error_of("unk_id", -1), HasSubstr("\"unk_id\" of model is -1"));
}

TEST(UnigramTokenizerTest, FilesOfLlmJpDropTheSpaceThatTheyPutBeforeAText) {
  json tokenizer_json =
      UnigramTokenizer({{"▁", -80.0}, {"▁a", -4.0}, {"a", -4.0}, {"\n", -80.0}}, true);
  const auto replace = [](const char* regex, const char* content) {
    return Component("Replace", {{"pattern", {{"Regex", regex}}}, {"content", content}});
  };
  tokenizer_json["normalizer"] =
      Component("Sequence", {{"normalizers", {replace("(?<!\\n)^", "▁"), replace(" ", "▁")}}});
  tokenizer_json["decoder"] =
      Component("Sequence", {{"decoders",
                              {Component("ByteFallback"), replace("▁", " "), Component("Fuse"),
                               replace("(?<!\\n)^ ", "")}}});
  EXPECT_THAT(PiecesOf(tokenizer_json, "a a\na"), ElementsAre("▁a", "▁a", "\n", "a"));
  const auto tokenizer = LoadJson(tokenizer_json);
  for (const char* text : {"a a\na", " a", "é a", "\n a", "a\n a"}) {
    EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text).value()).value(), text);
  }
}

/// What a normalizer makes of `text`.
std::string Normalized(const json& normalizer, std::string_view text) {
  json tokenizer_json = UnigramTokenizer({}, true);
  tokenizer_json["normalizer"] = normalizer;
  tokenizer_json["decoder"] =
      Component("Sequence", {{"decoders", {Component("ByteFallback"), Component("Fuse")}}});
  const auto tokenizer = LoadJson(tokenizer_json);
  return tokenizer->Decode(tokenizer->Encode(text).value()).value();
}

TEST(UnigramComponentsTest, NmtDropsControlsAndMakesSpaces) {
  const json nmt = Component("Nmt");
  EXPECT_EQ(Normalized(nmt, "a\x01\x08\x0b\x0e\x1f\x7f\u008f\u009f"), "a");
  EXPECT_EQ(Normalized(nmt, "a\t\n\f\rb"), "a    b");
  EXPECT_EQ(Normalized(nmt, "\u1680\u200b\u200f\u2028\u2029▁\ufeff\ufffd"), "        ");
  EXPECT_EQ(Normalized(nmt, "\u0080\u200a\u2010é"), "\u0080\u200a\u2010é");
}

TEST(UnigramComponentsTest, StripAccentsDropsMarksOfAllKinds) {
  const json strip = Component("StripAccents");
  EXPECT_EQ(Normalized(strip, "e\u0301\u0323 \u20dd\u0903o"), "e o");
  EXPECT_EQ(Normalized(strip, "é中文"), "é中文") << "composed ones stay";
}

/// A table of rules as SentencePiece compiles them, in base64.
std::string CompileRules(const std::map<std::string, std::string>& rules) {
  constexpr size_t kFirst = 256;  // each state has 256 places, and place 0 is its leaf
  std::map<std::string, size_t> states = {{"", 0}};
  for (const auto& [from, to] : rules) {
    for (size_t n = 1; n <= from.size(); ++n) states.emplace(from.substr(0, n), states.size());
  }
  std::vector<uint32_t> trie((states.size() + 1) * 256, 0);
  const auto base = [&](const std::string& state) { return kFirst + states.at(state) * 256; };
  trie[0] = static_cast<uint32_t>(base("")) << 10;
  std::string texts;
  for (const auto& [state, index] : states) {
    const auto rule = rules.find(state);
    if (!state.empty()) {
      const auto byte = static_cast<unsigned char>(state.back());
      const size_t place = base(state.substr(0, state.size() - 1)) ^ byte;
      const uint32_t has_leaf = rule == rules.end() ? 0 : 1u << 8;
      trie[place] = static_cast<uint32_t>(place ^ base(state)) << 10 | has_leaf | byte;
    }
    if (rule == rules.end()) continue;
    trie[base(state)] = static_cast<uint32_t>(texts.size()) | 0x80000000u;
    texts.append(rule->second).push_back('\0');
  }
  const auto bytes = static_cast<uint32_t>(trie.size() * sizeof(uint32_t));
  std::string table(sizeof(bytes) + bytes, '\0');
  std::memcpy(table.data(), &bytes, sizeof(bytes));
  std::memcpy(table.data() + sizeof(bytes), trie.data(), bytes);
  return absl::Base64Escape(table.append(texts));
}

TEST(UnigramComponentsTest, PrecompiledRulesReplaceShortClustersAsAWhole) {
  const json rules = Component(
      "Precompiled",
      {{"precompiled_charsmap",
        CompileRules(
            {{"ﬁ", "fi"}, {"①", "1"}, {"e", "E"}, {"é", ""}, {"\r", " "}, {"xy", "no"}})}});
  EXPECT_EQ(Normalized(rules, "ﬁn ① 中"), "fin 1 中");
  EXPECT_EQ(Normalized(rules, "aéa\r\nxy"), "aa xy") << "no rule is for two clusters";
  EXPECT_EQ(Normalized(rules, "e\u0301"), "E") << "its mark with it";
  EXPECT_EQ(Normalized(rules, "e\u0301\u0301\u0301"), "E\u0301\u0301\u0301") << "too long";
}

TEST(UnigramComponentsTest, BrokenTablesAreRefused) {
  std::string odd_text;
  ASSERT_TRUE(absl::Base64Unescape(CompileRules({{"a", "é"}}), &odd_text));
  odd_text[odd_text.size() - 2] = '\xc3';
  for (const std::string& table :
       {std::string(), std::string("#"), std::string("AAAA"), absl::Base64Escape(odd_text)}) {
    json tokenizer_json = UnigramTokenizer({});
    tokenizer_json["normalizer"] = Component("Precompiled", {{"precompiled_charsmap", table}});
    const TokenizerDir dir;
    dir.Write("tokenizer.json", tokenizer_json);
    const absl::Status status = Tokenizer::Load(dir.path()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << table << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("table"));
  }
}

TEST(UnigramComponentsTest, PunctuationStandsAloneUnlessSaidOtherwise) {
  json tokenizer_json = UnigramTokenizer({{"ab", -5.0},
                                          {"$", -5.0},
                                          {"?", -5.0},
                                          {"$?", -1.0},
                                          {"ab$", -1.0},
                                          {"。", -5.0},
                                          {"。ab", -1.0}});
  EXPECT_THAT(PiecesOf(tokenizer_json, "ab$?。ab"), ElementsAre("ab", "$?", "。ab"));
  tokenizer_json["pre_tokenizer"] = Component("Punctuation");
  EXPECT_THAT(PiecesOf(tokenizer_json, "ab$?。ab"), ElementsAre("ab", "$", "?", "。", "ab"));
  tokenizer_json["pre_tokenizer"]["behavior"] = "Contiguous";
  EXPECT_THAT(PiecesOf(tokenizer_json, "ab$?。ab"), ElementsAre("ab", "$?", "。", "ab"));
}

TEST(UnigramComponentsTest, WhitespaceTellsWordsFromWhatIsNone) {
  json tokenizer_json = UnigramTokenizer({{"a", -5.0}, {"_", -5.0}, {"Ⅷ", -5.0}, {"!", -5.0}});
  const ScoredPieces joined = {{"a!", -1.0}, {"a_Ⅷ", -1.0}, {"!€", -1.0}, {" ", -1.0}};
  for (const auto& piece : joined) {
    tokenizer_json["model"]["vocab"].push_back(json::array({piece.first, piece.second}));
  }
  tokenizer_json["pre_tokenizer"] = Component("Whitespace");
  EXPECT_THAT(PiecesOf(tokenizer_json, " a!€ a_Ⅷ!  "), ElementsAre("a", "!€", "a_Ⅷ", "!"));
}

TEST(UnigramComponentsTest, WhitespaceSplitDropsTheSpacesBetweenWords) {
  json tokenizer_json = UnigramTokenizer({{"▁a", -2.0}, {"▁b", -2.0}});
  tokenizer_json["pre_tokenizer"] = Component(
      "Sequence", {{"pretokenizers", {Component("WhitespaceSplit"), Component("Metaspace")}}});
  EXPECT_THAT(PiecesOf(tokenizer_json, " a \n\t b\u3000a "), ElementsAre("▁a", "▁b", "▁a"));
}

}  // namespace
}  // namespace ziggurat

#include "model/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <sstream>
#include <thread>

#include "model/tokenizer/normalizer.h"
#include "model/tokenizer/tokenize_command.h"
#include "tests/model/tokenizer_files.h"

namespace ziggurat {
namespace {

using nlohmann::json;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

/// Random text of ASCII, spaces, line ends, letters of several scripts, marks, digits and emoji.
std::string RandomText(std::mt19937* random, int characters) {
  static const std::vector<std::string> kAlphabet = {
      "a",  "b",  "e", "h", "l",      "o",      "Z",      "1",      "7", " ", " ",     "\n",
      "\r", "\t", "'", "s", ".",      "!",      "<",      ">",      "é", "ß", "世",    "界",
      "щ",  "ក",  "្",  "🚀", "\u0301", "\u00a0", "\u3000", "\u180e", "▁", "�", "\u0000"};
  std::string text;
  for (int i = 0; i < characters; ++i) text += kAlphabet[(*random)() % kAlphabet.size()];
  return text;
}

TEST(ByteLevelTokenizerTest, AppliesMergesInTheOrderLearnt) {
  const auto tokenizer = LoadJson(ByteLevelTokenizer());
  EXPECT_THAT(Pieces(*tokenizer, "hello hello"), ElementsAre("hello", "Ġhello"));
  EXPECT_THAT(Pieces(*tokenizer, "heel"), ElementsAre("he", "e", "l"));
  EXPECT_THAT(Pieces(*tokenizer, "llll"), ElementsAre("ll", "ll"));
  EXPECT_THAT(Pieces(*tokenizer, "lll"), ElementsAre("ll", "l"));
  EXPECT_THAT(Pieces(*tokenizer, "  hello"), ElementsAre("Ġ", "Ġhello"));
  EXPECT_THAT(Pieces(*tokenizer, ""), ElementsAre());
}

TEST(ByteLevelTokenizerTest, MergesNeverCrossWords) {
  json tokenizer_json = ByteLevelTokenizer();
  tokenizer_json["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", "l"}}}, {"behavior", "Isolated"}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  const auto tokenizer = LoadJson(tokenizer_json);
  EXPECT_THAT(Pieces(*tokenizer, "hello"), ElementsAre("he", "l", "l", "o"));
}

TEST(ByteLevelTokenizerTest, MergesMayBeWrittenAsPairs) {
  json tokenizer_json = ByteLevelTokenizer();
  for (json& merge : tokenizer_json["model"]["merges"]) {
    const std::string text = merge.get<std::string>();
    const size_t space = text.find(' ');
    merge = json::array({text.substr(0, space), text.substr(space + 1)});
  }
  EXPECT_THAT(Pieces(*LoadJson(tokenizer_json), "hello"), ElementsAre("hello"));
}

TEST(ByteLevelTokenizerTest, TheVersionOfMergesIsNoMerge) {
  json tokenizer_json = ByteLevelTokenizer();
  json& merges = tokenizer_json["model"]["merges"];
  merges.insert(merges.begin(), "#version: 0.2 - Trained by `huggingface/tokenizers`");
  EXPECT_THAT(Pieces(*LoadJson(tokenizer_json), "hello"), ElementsAre("hello"));
}

TEST(ByteLevelTokenizerTest, IgnoreMergesTakesAWholeWordThatIsAPiece) {
  json tokenizer_json = ByteLevelTokenizer();
  tokenizer_json["model"]["vocab"]["heel"] = 300;
  EXPECT_THAT(Pieces(*LoadJson(tokenizer_json), "heel"), ElementsAre("he", "e", "l"));
  tokenizer_json["model"]["ignore_merges"] = true;
  EXPECT_THAT(Pieces(*LoadJson(tokenizer_json), "heel"), ElementsAre("heel"));
}

TEST(ByteLevelTokenizerTest, AddsAPrefixSpaceWhereItIsAskedFor) {
  json tokenizer_json = ByteLevelTokenizer();
  tokenizer_json["pre_tokenizer"]["add_prefix_space"] = true;
  const auto tokenizer = LoadJson(tokenizer_json);
  EXPECT_THAT(Pieces(*tokenizer, "hello"), ElementsAre("Ġhello"));
  EXPECT_THAT(Pieces(*tokenizer, " hello"), ElementsAre("Ġhello"));
}

TEST(ByteLevelTokenizerTest, RandomTextComesBackExactly) {
  std::mt19937 random(1);
  const auto tiny = LoadJson(ByteLevelTokenizer());
  const auto needle = Tokenizer::Load(NeedleDir());
  ASSERT_TRUE(needle.ok()) << needle.status();
  for (int i = 0; i < 500; ++i) {
    const std::string text = RandomText(&random, static_cast<int>(random() % 60));
    for (const Tokenizer* tokenizer : {tiny.get(), needle->get()}) {
      const auto ids = tokenizer->Encode(text, {.parse_special = false});
      ASSERT_TRUE(ids.ok()) << ids.status();
      EXPECT_EQ(tokenizer->Decode(*ids).value(), text);
    }
  }
}

TEST(ByteLevelTokenizerTest, BytesThatFormNoCharacterBecomeReplacementCharacters) {
  const auto tokenizer = LoadJson(ByteLevelTokenizer());
  const auto ids = tokenizer->Encode("世x").value();
  ASSERT_EQ(ids.size(), 4u);
  EXPECT_EQ(tokenizer->Decode({ids[0], ids[1]}).value(), "\uFFFD");
  EXPECT_EQ(tokenizer->Decode({ids[1], ids[3]}).value(), "\uFFFDx");
  EXPECT_EQ(tokenizer->Decode({ids[0], ids[0], ids[1], ids[2]}).value(), "\uFFFD世");
}

TEST(SentencePieceStyleTest, PutsASpaceBeforeTheTextAndTakesItAway) {
  const auto tokenizer = LoadJson(SentencePieceTokenizer());
  EXPECT_THAT(Pieces(*tokenizer, "hello world"), ElementsAre("<s>", "▁hello", "▁world"));
  EXPECT_THAT(Pieces(*tokenizer, " hello"), ElementsAre("<s>", "▁", "▁hello"));
  EXPECT_THAT(Pieces(*tokenizer, ""), ElementsAre("<s>"));
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(" hello  world ").value()).value(),
            " hello  world ");
}

TEST(SentencePieceStyleTest, EverySectionBetweenSpecialTokensIsNormalizedForItself) {
  const auto tokenizer = LoadJson(SentencePieceTokenizer());
  EXPECT_THAT(Pieces(*tokenizer, "hello</s>world"), ElementsAre("<s>", "▁hello", "</s>", "▁world"));
}

TEST(SentencePieceStyleTest, UnknownCharactersFallBackToBytes) {
  const auto tokenizer = LoadJson(SentencePieceTokenizer());
  EXPECT_THAT(Pieces(*tokenizer, "世"), ElementsAre("<s>", "▁", "<0xE4>", "<0xB8>", "<0x96>"));
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode("世!🚀").value()).value(), "世!🚀");
}

TEST(SentencePieceStyleTest, BrokenRunsOfBytesKeepTheirValidCharacters) {
  const auto tokenizer = LoadJson(SentencePieceTokenizer());
  const auto byte = [&](const char* piece) { return tokenizer->PieceToId(piece).value(); };
  EXPECT_EQ(tokenizer->Decode({byte("<0xE4>"), byte("<0xB8>")}).value(), "\uFFFD\uFFFD");
  EXPECT_EQ(
      tokenizer->Decode({byte("<0xE4>"), byte("<0xB8>"), byte("<0x96>"), byte("<0xE4>"), byte("h")})
          .value(),
      "世\uFFFDh");
}

TEST(SentencePieceStyleTest, UnknownCharactersInARowAreFusedOnlyWhereAsked) {
  json tokenizer_json = SentencePieceTokenizer();
  tokenizer_json["model"]["byte_fallback"] = false;
  EXPECT_THAT(Pieces(*LoadJson(tokenizer_json), "世世h"), ElementsAre("<s>", "▁", "<unk>", "h"));
  tokenizer_json["model"]["fuse_unk"] = false;
  EXPECT_THAT(Pieces(*LoadJson(tokenizer_json), "世世h"),
              ElementsAre("<s>", "▁", "<unk>", "<unk>", "h"));
}

TEST(SentencePieceStyleTest, UnknownCharactersAreFusedPastPiecesOfByteFallback) {
  // As Hugging Face's library has it.
  json tokenizer_json = SentencePieceTokenizer();
  tokenizer_json["model"]["vocab"].erase("<0xE4>");
  EXPECT_THAT(Pieces(*LoadJson(tokenizer_json), "世🚀世h"),
              ElementsAre("<s>", "▁", "<0xF0>", "<0x9F>", "<0x9A>", "<0x80>", "<unk>", "h"));
  tokenizer_json["model"]["fuse_unk"] = false;
  EXPECT_THAT(
      Pieces(*LoadJson(tokenizer_json), "世🚀世h"),
      ElementsAre("<s>", "▁", "<0xF0>", "<0x9F>", "<0x9A>", "<0x80>", "<unk>", "<unk>", "h"));
}

TEST(SentencePieceStyleTest, RandomTextComesBackExactly) {
  std::mt19937 random(2);
  const auto tokenizer = LoadJson(SentencePieceTokenizer());
  for (int i = 0; i < 500; ++i) {
    std::string text = RandomText(&random, static_cast<int>(random() % 60));
    // U+2581 stands for a space in the vocabulary, so it cannot come back.
    for (size_t at = 0; (at = text.find("▁")) != std::string::npos;) text.erase(at, 3);
    const auto ids = tokenizer->Encode(text, {.parse_special = false});
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(tokenizer->Decode(*ids).value(), text);
  }
}

TEST(MetaspaceTest, PrependSchemesDifferBehindSpecialTokens) {
  json tokenizer_json = SentencePieceTokenizer();
  tokenizer_json["normalizer"] = nullptr;
  const auto with_scheme = [&](const char* scheme) {
    tokenizer_json["pre_tokenizer"] = {
        {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}, {"split", true}};
    return Pieces(*LoadJson(tokenizer_json), "hello</s>hello world");
  };
  EXPECT_THAT(with_scheme("always"), ElementsAre("<s>", "▁hello", "</s>", "▁hello", "▁world"));
  EXPECT_THAT(with_scheme("first"),
              ElementsAre("<s>", "▁hello", "</s>", "h", "e", "ll", "o", "▁world"));
  EXPECT_THAT(with_scheme("never"),
              ElementsAre("<s>", "h", "e", "ll", "o", "</s>", "h", "e", "ll", "o", "▁world"));
}

TEST(MetaspaceTest, WhatFollowsANormalizedTokenIsNotFirst) {
  json tokenizer_json = SentencePieceTokenizer();
  tokenizer_json["normalizer"] = nullptr;
  tokenizer_json["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}};
  tokenizer_json["added_tokens"].push_back({{"id", 400}, {"content", "<t>"}, {"normalized", true}});
  const auto tokenizer = LoadJson(tokenizer_json);
  EXPECT_THAT(Pieces(*tokenizer, "<t>hello"), ElementsAre("<s>", "<t>", "h", "e", "ll", "o"));
  EXPECT_THAT(Pieces(*tokenizer, "hello<t>he"), ElementsAre("<s>", "▁hello", "<t>", "h", "e"));
}

TEST(MetaspaceTest, TheDecoderDropsTheFirstSpaceOnly) {
  json tokenizer_json = SentencePieceTokenizer();
  tokenizer_json["decoder"] = {{"type", "Metaspace"}, {"replacement", "▁"}};
  const auto tokenizer = LoadJson(tokenizer_json);
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode("hello world").value()).value(), "hello world");
}

TEST(AddedTokenTest, SpecialTokensAreFoundInTheTextUnlessForbidden) {
  const auto tokenizer = LoadJson(ByteLevelTokenizer());
  EXPECT_THAT(Pieces(*tokenizer, "hello<|end|>hello"), ElementsAre("hello", "<|end|>", "hello"));
  const auto plain = tokenizer->Encode("<|end|>", {.parse_special = false}).value();
  EXPECT_EQ(plain.size(), 7u);
  EXPECT_EQ(tokenizer->Decode(plain).value(), "<|end|>");
  const int32_t end = tokenizer->PieceToId("<|end|>").value();
  EXPECT_TRUE(tokenizer->IsSpecial(end));
  EXPECT_FALSE(tokenizer->IsSpecial(0));
  EXPECT_FALSE(tokenizer->IsSpecial(-1));
  EXPECT_EQ(tokenizer->Decode({end}).value(), "");
  EXPECT_EQ(tokenizer->Decode({end}, /*skip_special=*/false).value(), "<|end|>");
}

/// Pieces of `text` where the one added token "<t>" has `flag` set.
std::vector<std::string> WithFlag(const char* flag, std::string_view text) {
  json tokenizer_json = ByteLevelTokenizer();
  json& token = tokenizer_json["added_tokens"][0];
  token["content"] = "<t>";
  token["special"] = false;
  token[flag] = true;
  return Pieces(*LoadJson(tokenizer_json), text);
}

TEST(AddedTokenTest, StripFlagsTakeTheSpacesBeside) {
  EXPECT_THAT(WithFlag("special", "he  <t>\n ll"),
              ElementsAre("he", "Ġ", "Ġ", "<t>", "Ċ", "Ġ", "ll"));
  EXPECT_THAT(WithFlag("lstrip", "he  <t>\n ll"), ElementsAre("he", "<t>", "Ċ", "Ġ", "ll"));
  EXPECT_THAT(WithFlag("rstrip", "he  <t>\n ll"), ElementsAre("he", "Ġ", "Ġ", "<t>", "ll"));
}

TEST(AddedTokenTest, WhiteSpaceThatOneTokenTookIsNotLeftForTheNext) {
  // As Hugging Face's library has it.
  json tokenizer_json = ByteLevelTokenizer();
  json& tokens = tokenizer_json["added_tokens"];
  tokens[0]["content"] = "\n\n";
  tokens[0]["special"] = false;
  tokens[0]["lstrip"] = tokens[0]["rstrip"] = true;
  EXPECT_THAT(Pieces(*LoadJson(tokenizer_json), "\n\n\n\n\n\n"), ElementsAre("\n\n"));
  tokens[0]["lstrip"] = tokens[0]["rstrip"] = false;
  tokens.push_back(tokens[0]);
  tokens[1]["id"] = tokens[0]["id"].get<int>() + 1;
  tokens[1]["content"] = "<t>";
  tokens[1]["rstrip"] = true;
  EXPECT_THAT(Pieces(*LoadJson(tokenizer_json), "<t>\n\n\nh"),
              ElementsAre("<t>", "\n\n", "Ċ", "h"));
}

TEST(AddedTokenTest, SingleWordTokensAreNotFoundInsideWords) {
  EXPECT_THAT(WithFlag("single_word", "he <t> he"), ElementsAre("he", "Ġ", "<t>", "Ġ", "he"));
  EXPECT_THAT(WithFlag("single_word", "he<t>"), ElementsAre("he", "<", "t", ">"));
}

TEST(AddedTokenTest, WhatTheMatcherDoesNotTakeIsNoPieceOfTheModelEither) {
  json word = ByteLevelTokenizer();
  word["model"]["ignore_merges"] = true;
  word["added_tokens"].push_back({{"id", 400}, {"content", "end"}, {"special", true}});
  const auto words = LoadJson(word);
  EXPECT_THAT(Pieces(*words, "end"), ElementsAre("end"));
  EXPECT_THAT(*words->Encode("end", {.parse_special = false}), SizeIs(3));

  json character = SentencePieceTokenizer();
  character["added_tokens"].push_back({{"id", 400}, {"content", "☤"}, {"special", true}});
  character["added_tokens"].push_back({{"id", 401}, {"content", "℞"}, {"single_word", true}});
  const auto characters = LoadJson(character);
  EXPECT_THAT(Pieces(*characters, "☤"), ElementsAre("<s>", "☤"));
  const std::vector<int32_t> plain = *characters->Encode("☤", {.parse_special = false});
  EXPECT_THAT(plain, SizeIs(5)) << "<s>, the space, three bytes";
  EXPECT_THAT(plain, Not(Contains(400)));
  EXPECT_THAT(*characters->Encode("h℞w"), Not(Contains(401)));
  EXPECT_EQ(characters->Decode({401, 401}).value(), "℞℞");
}

TEST(AddedTokenTest, TheLongestOfThoseThatBeginTogetherWins) {
  json tokenizer_json = ByteLevelTokenizer();
  json longer = tokenizer_json["added_tokens"][0];
  longer["content"] = "<|end|>!";
  longer["id"] = 400;
  tokenizer_json["added_tokens"].push_back(longer);
  const auto tokenizer = LoadJson(tokenizer_json);
  EXPECT_THAT(Pieces(*tokenizer, "<|end|>!<|end|>"), ElementsAre("<|end|>!", "<|end|>"));
  EXPECT_EQ(tokenizer->vocab_size(), 401);
  EXPECT_FALSE(tokenizer->IdToPiece(399).ok()) << "a hole in the vocabulary";
}

TEST(AddedTokenTest, NormalizedTokensAreLookedForInTheNormalizedText) {
  json tokenizer_json = ByteLevelTokenizer();
  tokenizer_json["normalizer"] = {{"type", "Lowercase"}};
  tokenizer_json["added_tokens"][0]["content"] = "<|End|>";
  EXPECT_THAT(Pieces(*LoadJson(tokenizer_json), "<|End|>"), ElementsAre("<|End|>"));
  EXPECT_GT(Pieces(*LoadJson(tokenizer_json), "<|END|>").size(), 1u);
  tokenizer_json["added_tokens"][0]["normalized"] = true;
  EXPECT_THAT(Pieces(*LoadJson(tokenizer_json), "<|END|>hello"), ElementsAre("<|End|>", "hello"));
}

TEST(AddedTokenTest, OfTwoThatNormalizeToTheSameTheSpecialOneIsFound) {
  json tokenizer_json = ByteLevelTokenizer();
  tokenizer_json["normalizer"] = {{"type", "Lowercase"}};
  json& tokens = tokenizer_json["added_tokens"];
  tokens[0]["content"] = "<t>";
  tokens[0]["normalized"] = true;
  tokens.push_back(tokens[0]);
  tokens[1]["id"] = tokens[0]["id"].get<int>() + 1;
  tokens[1]["content"] = "<T>";
  tokens[0]["special"] = tokens[1]["special"] = false;
  EXPECT_THAT(Pieces(*LoadJson(tokenizer_json), "<T>"), ElementsAre("<t>")) << "the first";
  tokens[1]["special"] = true;
  EXPECT_THAT(Pieces(*LoadJson(tokenizer_json), "<t>"), ElementsAre("<T>"));
}

TEST(NormalizerTest, NormalFormsAreThoseOfUnicode9) {
  json tokenizer_json = ByteLevelTokenizer();
  const auto normalized = [&](const char* form, std::string_view text) {
    tokenizer_json["normalizer"] = {{"type", form}};
    const auto tokenizer = LoadJson(tokenizer_json);
    return tokenizer->Decode(tokenizer->Encode(text).value()).value();
  };
  EXPECT_EQ(normalized("NFKC", "\u337b"), "\u5e73\u6210") << "the era Heisei";
  EXPECT_EQ(normalized("NFKC", "\u32ff"), "\u32ff") << "the era Reiwa, of Unicode 12.1";
  EXPECT_EQ(normalized("NFC", "a\u0315\u0300"), "\u00e0\u0315");
  EXPECT_EQ(normalized("NFC", "a\u0315\u1abf\u0300"), "a\u0315\u1abf\u0300");
  EXPECT_EQ(normalized("NFC", "\u1abfe\u0301\u1abf\u1abfe\u0301"),
            "\u1abf\u00e9\u1abf\u1abf\u00e9");
  EXPECT_EQ(normalized("NFC", "\U00011935\U00011930"), "\U00011935\U00011930");
  EXPECT_EQ(normalized("NFD", "\U00011938"), "\U00011938");
}

// By their combining class, in a time that does not grow with the square of their number: these
// would take minutes.
TEST(NormalizerTest, ManyMarksAreSoonInOrder) {
  constexpr int kCount = 100'000;
  std::string upper, lower;
  for (int i = 0; i < kCount; ++i) upper += "\u0301", lower += "\u0316";
  const auto normalized = [&](const char* form, std::string text) {
    const auto normalizer = ParseNormalizer(json{{"type", form}});
    EXPECT_TRUE((*normalizer)->Normalize(&text).ok());
    return text;
  };
  EXPECT_TRUE(normalized("NFD", "e" + upper + lower) == "e" + lower + upper);
  EXPECT_TRUE(normalized("NFC", "e" + lower + upper) == "\u00e9" + lower + upper.substr(2));
  EXPECT_EQ(normalized("NFD", "\u0f73\u0f73"), "\u0f71\u0f71\u0f72\u0f72");
}

TEST(NormalizerTest, ReplacementsThatMakeTooMuchAreRefused) {
  const std::string many(1024, 'a');
  json steps = json::array();
  for (int i = 0; i < 40; ++i) {
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", many}});
  }
  const auto normalizer = ParseNormalizer(json{{"type", "Sequence"}, {"normalizers", steps}});
  ASSERT_TRUE(normalizer.ok()) << normalizer.status();
  std::string text = "a";
  EXPECT_EQ((*normalizer)->Normalize(&text).code(), absl::StatusCode::kInvalidArgument);
}

TEST(NormalizerTest, ComposesReplacesAndStrips) {
  json tokenizer_json = ByteLevelTokenizer();
  tokenizer_json["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers",
       {{{"type", "NFC"}},
        {{"type", "Replace"}, {"pattern", {{"Regex", "l{2,}"}}}, {"content", "L"}},
        {{"type", "Strip"}, {"strip_left", true}, {"strip_right", false}}}}};
  const auto tokenizer = LoadJson(tokenizer_json);
  const auto normalized = [&](std::string_view text) {
    return tokenizer->Decode(tokenizer->Encode(text).value()).value();
  };
  EXPECT_EQ(normalized(" \n cafe\u0301 "), "caf\u00e9 ");
  EXPECT_EQ(normalized("\u1112\u1161\u11ab"), "\ud55c") << "Hangul syllables are composed";
  EXPECT_EQ(normalized("llllol"), "Lol");
  EXPECT_EQ(normalized("  "), "");
}

TEST(PreTokenizerTest, SplitBehaviors) {
  json tokenizer_json = ByteLevelTokenizer();
  // With all characters merged into words, pieces are words.
  const auto words = [&](const char* behavior, bool invert, const std::string& text) {
    tokenizer_json["model"]["merges"] = json::array();
    int id = 1000;
    for (size_t begin = 0; begin < text.size(); ++begin) {
      for (size_t size = 2; begin + size <= text.size(); ++size) {
        const std::string piece = text.substr(begin, size);
        if (!tokenizer_json["model"]["vocab"].contains(piece)) {
          tokenizer_json["model"]["vocab"][piece] = id++;
        }
      }
    }
    tokenizer_json["model"]["ignore_merges"] = true;
    tokenizer_json["pre_tokenizer"] = {{"type", "Split"},
                                       {"pattern", {{"String", "-"}}},
                                       {"behavior", behavior},
                                       {"invert", invert}};
    const auto pieces = Pieces(*LoadJson(tokenizer_json), text);
    tokenizer_json = ByteLevelTokenizer();
    return pieces;
  };
  const std::string text = "the-final--end";
  EXPECT_THAT(words("Removed", false, text), ElementsAre("the", "final", "end"));
  EXPECT_THAT(words("Removed", true, text), ElementsAre("-", "-", "-"));
  EXPECT_THAT(words("Isolated", false, text), ElementsAre("the", "-", "final", "-", "-", "end"));
  EXPECT_THAT(words("MergedWithPrevious", false, text), ElementsAre("the-", "final-", "-", "end"));
  EXPECT_THAT(words("MergedWithNext", false, text), ElementsAre("the", "-final", "-", "-end"));
  EXPECT_THAT(words("Contiguous", false, text), ElementsAre("the", "-", "final", "--", "end"));
}

TEST(PreTokenizerTest, DigitsStandAlone) {
  json tokenizer_json = ByteLevelTokenizer();
  tokenizer_json["model"]["vocab"]["12"] = 500;
  tokenizer_json["model"]["merges"].push_back("1 2");
  tokenizer_json["pre_tokenizer"] = {{"type", "Digits"}, {"individual_digits", true}};
  EXPECT_THAT(Pieces(*LoadJson(tokenizer_json), "12"), ElementsAre("1", "2"));
  tokenizer_json["pre_tokenizer"]["individual_digits"] = false;
  EXPECT_THAT(Pieces(*LoadJson(tokenizer_json), "12he"), ElementsAre("12", "he"));
}

TEST(PreTokenizerTest, WhiteSpaceIsWhatUnicodeSaysToday) {
  // U+180E is a format character since Unicode 6.3; PCRE2's own \s still takes it for a space.
  json tokenizer_json = ByteLevelTokenizer();
  tokenizer_json["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"Regex", "\\s"}}}, {"behavior", "Removed"}};
  tokenizer_json["model"]["vocab"]["\u180e"] = 600;
  EXPECT_THAT(Pieces(*LoadJson(tokenizer_json), "h\u180e\u0085\u2003\u3000h"),
              ElementsAre("h", "\u180e", "h"));
}

TEST(ConfigurationTest, NamesSpecialTokensAndOverrulesTheTemplate) {
  const TokenizerDir dir;
  dir.Write("tokenizer.json", SentencePieceTokenizer());
  dir.Write("special_tokens_map.json", json{{"eos_token", {{"content", "</s>"}}}});
  dir.Write("tokenizer_config.json", json{{"bos_token", "<s>"},
                                          {"unk_token", "<unk>"},
                                          {"add_bos_token", false},
                                          {"add_eos_token", true}});
  const auto tokenizer = Tokenizer::Load(dir.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->bos_id(), 1);
  EXPECT_EQ((*tokenizer)->eos_id(), 2) << "what the configuration leaves open, the map says";
  EXPECT_EQ((*tokenizer)->unk_id(), 0);
  EXPECT_EQ((*tokenizer)->pad_id(), std::nullopt);
  EXPECT_THAT(Pieces(**tokenizer, "hello"), ElementsAre("▁hello", "</s>"));
  EXPECT_THAT(Pieces(**tokenizer, "hello", {.add_special_tokens = false}), ElementsAre("▁hello"));
}

TEST(ConfigurationTest, AddedTokensOfTheConfigurationJoinTheVocabulary) {
  const TokenizerDir dir;
  dir.Write("tokenizer.json", ByteLevelTokenizer());
  dir.Write("tokenizer_config.json",
            json{{"added_tokens_decoder", {{"262", {{"content", "<|new|>"}, {"special", true}}}}}});
  const auto tokenizer = Tokenizer::Load(dir.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->Encode("<|new|>").value(), ElementsAre(262));
  EXPECT_TRUE((*tokenizer)->IsSpecial(262));
}

TEST(ConfigurationTest, FlagsOfAddedTokensOverruleTheFile) {
  const TokenizerDir dir;
  dir.Write("tokenizer.json", ByteLevelTokenizer());
  const auto as_in_the_file = Tokenizer::Load(dir.path());
  ASSERT_TRUE(as_in_the_file.ok()) << as_in_the_file.status();
  EXPECT_THAT(Pieces(**as_in_the_file, "h <|end|> h"), ElementsAre("h", "Ġ", "<|end|>", "Ġ", "h"));
  dir.Write("tokenizer_config.json",
            json{{"added_tokens_decoder",
                  {{"261", {{"content", "<|end|>"}, {"lstrip", true}, {"rstrip", true}}}}}});
  const auto tokenizer = Tokenizer::Load(dir.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(Pieces(**tokenizer, "h <|end|> h"), ElementsAre("h", "<|end|>", "h"));
  EXPECT_TRUE((*tokenizer)->IsSpecial(261));
}

TEST(ConfigurationTest, AddPrefixSpaceOverrulesTheFile) {
  for (const bool adds : {true, false}) {
    const TokenizerDir dir;
    json file = ByteLevelTokenizer();
    file["pre_tokenizer"]["add_prefix_space"] = !adds;
    dir.Write("tokenizer.json", file);
    dir.Write("tokenizer_config.json", json{{"add_prefix_space", adds}});
    const auto tokenizer = Tokenizer::Load(dir.path());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_THAT(Pieces(**tokenizer, "hello"), ElementsAre(adds ? "Ġhello" : "hello"));
  }
}

TEST(BundledModelTest, EncodesWithBosAndDecodesWithoutIt) {
  const auto tokenizer = Tokenizer::Load(NeedleDir());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->bos_id(), 0);
  EXPECT_EQ((*tokenizer)->eos_id(), 1);
  EXPECT_EQ((*tokenizer)->vocab_size(), 1024);
  const auto ids = (*tokenizer)->Encode(" The tower in Delhi was large and heavy.").value();
  ASSERT_FALSE(ids.empty());
  EXPECT_EQ(ids[0], 0);
  EXPECT_EQ((*tokenizer)->Decode(ids).value(), " The tower in Delhi was large and heavy.");
}

TEST(EncodeTest, RefusesTextThatIsNotUtf8AndSaysWhere) {
  const auto tokenizer = LoadJson(ByteLevelTokenizer());
  for (const std::string text :
       {"ab\xff", "ab\xc0\x80", "ab\xed\xa0\x80", "ab\xf4\x90\x80\x80", "ab\xe4\xb8", "ab\x80"}) {
    const auto ids = tokenizer->Encode(text);
    EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(ids.status().message()), HasSubstr("offset 2"));
  }
}

TEST(DecodeTest, IdsOutOfRangeAreAnError) {
  const auto tokenizer = LoadJson(ByteLevelTokenizer());
  for (const int32_t id : {-1, 262, 1 << 30, INT32_MIN, INT32_MAX}) {
    EXPECT_EQ(tokenizer->Decode({0, id}).status().code(), absl::StatusCode::kOutOfRange) << id;
    EXPECT_EQ(tokenizer->IdToPiece(id).status().code(), absl::StatusCode::kOutOfRange) << id;
  }
  EXPECT_EQ(tokenizer->PieceToId("no such piece"), std::nullopt);
}

TEST(EncodeTest, LongTextWithoutSpacesIsNotQuadratic) {
  const auto tokenizer = LoadJson(SentencePieceTokenizer());
  const std::string text(1 << 20, 'l');
  const auto begin = std::chrono::steady_clock::now();
  const auto ids = tokenizer->Encode(text);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(ids->size(), 2 + text.size() / 2);  // <s>, the prefix space, pairs
  // A quadratic algorithm takes minutes; sanitizers and a busy machine take some seconds.
  EXPECT_LT(seconds.count(), 30);
}

TEST(ThreadTest, OneTokenizerServesManyThreads) {
  const auto tokenizer = Tokenizer::Load(NeedleDir());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::string text = "Anna fell near the quiet train. <|eos|> 12345";
  const auto expected = (*tokenizer)->Encode(text).value();
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int& count : wrong) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) count += (*tokenizer)->Encode(text).value() != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

TEST(TokenizeCommandTest, GoesBothWays) {
  std::ostringstream ids;
  TokenizeCommand command{.tokenizer_dir = NeedleDir()};
  ASSERT_TRUE(RunTokenizeCommand(command, "The tower.\n", ids).ok());
  EXPECT_EQ(ids.str().substr(0, 2), "0 ");
  command.decode = true;
  std::ostringstream decoded;
  ASSERT_TRUE(RunTokenizeCommand(command, ids.str(), decoded).ok());
  EXPECT_EQ(decoded.str(), "The tower.\n");
}

TEST(TokenizeCommandTest, RefusesWhatIsNoId) {
  std::ostringstream out;
  TokenizeCommand command{.tokenizer_dir = NeedleDir(), .decode = true};
  EXPECT_THAT(std::string(RunTokenizeCommand(command, "1, [2] x3", out).message()),
              HasSubstr("'x3'"));
  EXPECT_EQ(RunTokenizeCommand(command, "99999", out).code(), absl::StatusCode::kOutOfRange);
  command.tokenizer_dir = "/no/such/folder";
  EXPECT_EQ(RunTokenizeCommand(command, "", out).code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace ziggurat

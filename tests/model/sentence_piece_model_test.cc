// tokenizer.model files, written here field by field as protobuf's wire has them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>

#include "model/tokenizer/tokenizer.h"
#include "tests/model/tokenizer_files.h"

namespace ziggurat {
namespace {

using nlohmann::json;
using ::testing::_;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Bytes(int field, std::string_view content) {
  std::string wire(1, static_cast<char>(field << 3 | 2));
  if (field >= 16)
    wire = {static_cast<char>((field & 15) << 3 | 2 | 0x80), static_cast<char>(field >> 4)};
  wire.push_back(static_cast<char>(content.size()));  // all of ours are shorter than 128 bytes
  return wire.append(content);
}

std::string Integer(int field, int value) {
  std::string wire(1, static_cast<char>(field << 3));
  if (field >= 16)
    wire = {static_cast<char>((field & 15) << 3 | 0x80), static_cast<char>(field >> 4)};
  wire.push_back(static_cast<char>(value));
  return wire;
}

enum Type { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kByte = 6 };

std::string Piece(std::string_view text, float score = 0, Type type = kNormal) {
  std::string score_field(5, static_cast<char>(2 << 3 | 5));
  std::memcpy(score_field.data() + 1, &score, sizeof(score));
  return Bytes(1, Bytes(1, text) + score_field + Integer(3, type));
}

constexpr int kUnigram = 1;
constexpr int kBpe = 2;

/// <unk> <s> </s> = 0 1 2, then `pieces`.
std::string Model(int algorithm, const std::string& pieces, bool byte_fallback = false,
                  bool remove_extra_whitespaces = false) {
  std::string model =
      Piece("<unk>", 0, kUnknown) + Piece("<s>", 0, kControl) + Piece("</s>", 0, kControl) + pieces;
  if (byte_fallback) {
    for (int byte = 0; byte < 256; ++byte) {
      char name[8];
      std::snprintf(name, sizeof(name), "<0x%02X>", byte);
      model += Piece(name, 0, kByte);
    }
  }
  return model + Bytes(2, Integer(3, algorithm) + Integer(35, byte_fallback)) +
         Bytes(3, Integer(3, 1) + Integer(4, remove_extra_whitespaces));
}

/// BPE: the score is minus the rank of the merge.
std::string BpePieces() {
  return Piece("he", -1) + Piece("ll", -2) + Piece("hell", -3) + Piece("hello", -4) +
         Piece("▁hello", -5) + Piece("▁", -6) + Piece("h", -7) + Piece("e", -8) + Piece("l", -9) +
         Piece("o", -10);
}

struct Loaded {
  std::unique_ptr<Tokenizer> tokenizer;

  explicit Loaded(std::string_view model, const json& config = json::object()) {
    const TokenizerDir dir;
    dir.Write("tokenizer.model", model);
    dir.Write("tokenizer_config.json", config);
    auto result = Tokenizer::Load(dir.path());
    EXPECT_TRUE(result.ok()) << result.status();
    if (result.ok()) tokenizer = *std::move(result);
  }

  std::vector<std::string> Pieces(std::string_view text) const {
    std::vector<std::string> pieces;
    const auto ids = tokenizer->Encode(text).value();
    for (const int32_t id : ids) pieces.emplace_back(tokenizer->IdToPiece(id).value());
    return pieces;
  }
};

TEST(SentencePieceModelTest, BpeMergesTheBestScoreFirst) {
  const Loaded model(Model(kBpe, BpePieces()));
  EXPECT_THAT(model.Pieces("hello"), ElementsAre("<s>", "▁hello"));
  EXPECT_THAT(model.Pieces("heell"), ElementsAre("<s>", "▁", "he", "e", "ll"));
  EXPECT_THAT(model.Pieces("lll"), ElementsAre("<s>", "▁", "ll", "l"));
  EXPECT_EQ(model.tokenizer->bos_id(), 1);
  EXPECT_EQ(model.tokenizer->eos_id(), 2);
  EXPECT_EQ(model.tokenizer->unk_id(), 0);
}

TEST(SentencePieceModelTest, UnigramTakesTheMostProbableSplit) {
  // "▁" + "abc" = -9; "▁a" + "b" + "c" = -7; "▁ab" + "c" = -6.5.
  const Loaded model(Model(kUnigram, Piece("▁", -4) + Piece("abc", -5) + Piece("▁a", -3) +
                                         Piece("b", -2) + Piece("c", -2) + Piece("▁ab", -4.5f)));
  EXPECT_THAT(model.Pieces("abc"), ElementsAre("<s>", "▁ab", "c"));
  EXPECT_THAT(model.Pieces("bb"), ElementsAre("<s>", "▁", "b", "b"));
  EXPECT_THAT(model.Pieces("abcxyabc"), ElementsAre("<s>", "▁ab", "c", "<unk>", "abc"))
      << "unknown characters in a row are one token";
}

TEST(SentencePieceModelTest, UnknownCharactersFallBackToBytes) {
  for (const int algorithm : {kBpe, kUnigram}) {
    const Loaded model(Model(algorithm, BpePieces(), /*byte_fallback=*/true));
    EXPECT_THAT(model.Pieces("é"), ElementsAre("<s>", "▁", "<0xC3>", "<0xA9>"));
    for (const std::string text : {"hello 世界 🚀", " hello ", "", " ", "a\nb\t"}) {
      const auto ids = model.tokenizer->Encode(text).value();
      EXPECT_EQ(model.tokenizer->Decode(ids).value(), text);
    }
  }
}

TEST(SentencePieceModelTest, BpeNeverMergesUserDefinedPieces) {
  const Loaded model(Model(kBpe, BpePieces() + Piece("lo", 0, kUserDefined)));
  EXPECT_THAT(model.Pieces("hello"), ElementsAre("<s>", "▁", "he", "l", "lo"));
}

TEST(SentencePieceModelTest, SpecialTokensThatArePiecesStayTextWhereTheyAreToBe) {
  for (const Type type : {kUserDefined, kNormal}) {
    // Where it is an ordinary one, merges lead to it.
    const std::string pieces = BpePieces() + Piece("<|", -11) + Piece("<", -12) + Piece("|", -13) +
                               Piece("|>", -14) + Piece(">", -15) + Piece("<||>", -1, type) +
                               Piece("lo", 0, kUserDefined);
    for (const int algorithm : {kBpe, kUnigram}) {
      const Loaded model(Model(algorithm, pieces, /*byte_fallback=*/true),
                         {{"additional_special_tokens", {"<||>"}}});
      const int32_t special = *model.tokenizer->PieceToId("<||>");
      const int32_t ordinary = *model.tokenizer->PieceToId("lo");
      EXPECT_THAT(*model.tokenizer->Encode("lo<||>lo"),
                  ElementsAre(1, *model.tokenizer->PieceToId("▁"), ordinary, special, _, ordinary));
      const auto plain = *model.tokenizer->Encode("lo<||>lo", {.parse_special = false});
      EXPECT_THAT(plain, Not(Contains(special))) << type << ", " << algorithm;
      EXPECT_THAT(plain, Contains(ordinary).Times(2));
      EXPECT_EQ(model.tokenizer->Decode(plain).value(), "lo<||>lo");
    }
  }
}

TEST(SentencePieceModelTest, AddedTokensOfEarlierVersionsJoinTheVocabulary) {
  const TokenizerDir dir;
  const std::string model = Model(kBpe, BpePieces());
  dir.Write("tokenizer.model", std::string_view(model));
  dir.Write("special_tokens_map.json", json{{"eos_token", "<|im_end|>"}});
  dir.Write("added_tokens.json", json{{"<|im_end|>", 14}, {"<|im_start|>", 13}});
  auto tokenizer = Tokenizer::Load(dir.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->Encode("<|im_start|>hello<|im_end|>").value(),
              ElementsAre(1, 13, 7, 14));
  EXPECT_EQ((*tokenizer)->eos_id(), 14);
  EXPECT_TRUE((*tokenizer)->IsSpecial(14));
  EXPECT_FALSE((*tokenizer)->IsSpecial(13)) << "no file says so";

  // What tokenizer_config.json lists is all there is.
  dir.Write("tokenizer_config.json",
            json{{"added_tokens_decoder", {{"15", {{"content", "<|new|>"}}}}}});
  tokenizer = Tokenizer::Load(dir.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->PieceToId("<|im_start|>"), std::nullopt);

  dir.Write("tokenizer_config.json", json::object());
  for (const json& wrong : {json{{"<|x|>", "13"}}, json{{"", 13}}, json{{"<|x|>", -1}}}) {
    dir.Write("added_tokens.json", wrong);
    const absl::Status status = Tokenizer::Load(dir.path()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_THAT(std::string(status.message()), HasSubstr("added_tokens.json"));
  }
}

TEST(SentencePieceModelTest, UnigramGivesUserDefinedPiecesTheScoreOfTheLibrary) {
  // A user-defined piece scores -0.1, however long: "xyz" beats "xy" + "z" = -0.2.
  const Loaded model(Model(kUnigram, Piece("▁", -4) + Piece("xy", -0.1f) + Piece("z", -0.1f) +
                                         Piece("xyz", 0, kUserDefined)));
  EXPECT_THAT(model.Pieces("xyz"), ElementsAre("<s>", "▁", "xyz"));
}

TEST(SentencePieceModelTest, ExtraSpacesGoOnlyWhereTheModelSaysSo) {
  const Loaded keeps(Model(kBpe, BpePieces()));
  EXPECT_THAT(keeps.Pieces(" hello  hello "),
              ElementsAre("<s>", "▁", "▁hello", "▁", "▁hello", "▁"));
  const Loaded removes(Model(kBpe, BpePieces(), false, /*remove_extra_whitespaces=*/true));
  EXPECT_THAT(removes.Pieces(" hello  hello "), ElementsAre("<s>", "▁hello", "▁hello"));
}

TEST(SentencePieceModelTest, TheConfigurationSaysWhereThePrefixSpaceGoes) {
  const std::string model = Model(kBpe, BpePieces());
  const std::string text = "hello</s>hello";
  EXPECT_THAT(Loaded(model).Pieces(text), ElementsAre("<s>", "▁hello", "</s>", "▁hello"))
      << "legacy: before every section";
  EXPECT_THAT(Loaded(model, {{"legacy", false}}).Pieces(text),
              ElementsAre("<s>", "▁hello", "</s>", "hello"));
  const Loaded never(model, {{"add_prefix_space", false}, {"add_bos_token", false}});
  EXPECT_THAT(never.Pieces(text), ElementsAre("hello", "</s>", "hello"));
  EXPECT_EQ(never.tokenizer->Decode(never.tokenizer->Encode(" hello").value()).value(), " hello");
}

TEST(SentencePieceModelTest, WhatItDoesNotRunIsRefused) {
  const std::pair<std::string, const char*> models[] = {
      {Model(/*char*/ 4, BpePieces()), "only BPE and unigram are supported"},
      {Model(kBpe, BpePieces()) + Bytes(5, Bytes(2, "rules")), "denormalizer_spec"}};
  for (const auto& [model, why] : models) {
    const TokenizerDir dir;
    dir.Write("tokenizer.model", std::string_view(model));
    const absl::Status status = Tokenizer::Load(dir.path()).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr("tokenizer.model"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }
}

TEST(SentencePieceModelTest, OnlyAModelThatFallsBackToBytesReadsThemInTheNamesOfPieces) {
  const Loaded model(Model(kBpe, BpePieces() + Piece("<0x0A>", 0, kUserDefined)));
  const auto ids = model.tokenizer->Encode("hello<0x0A>").value();
  EXPECT_EQ(model.tokenizer->Decode(ids).value(), "hello<0x0A>");
}

TEST(SentencePieceModelTest, WhereExtraSpacesGoTextBeginsWithNone) {
  const Loaded removes(Model(kBpe, BpePieces(), false, /*remove_extra_whitespaces=*/true));
  const int32_t space = removes.tokenizer->PieceToId("▁").value();
  const int32_t hello = removes.tokenizer->PieceToId("▁hello").value();
  EXPECT_EQ(removes.tokenizer->Decode({space, space, hello, hello}).value(), "hello hello");
}

TEST(SentencePieceModelTest, ManyUserDefinedPiecesCostNoMoreThanFew) {
  std::string text;
  while (text.size() < 100000) text += "hello hell ";
  for (const int algorithm : {kBpe, kUnigram}) {
    const auto seconds = [&](int user_defined) {
      std::string pieces = BpePieces() + Piece(std::string(100, 'h'), -20);
      for (int i = 0; i < user_defined; ++i) {
        pieces += Piece("[" + std::to_string(i) + "]", 0, kUserDefined);
      }
      const Loaded model(Model(algorithm, pieces, /*byte_fallback=*/true));
      double best = 1e9;
      for (int repeat = 0; repeat < 3; ++repeat) {
        const auto start = std::chrono::steady_clock::now();
        EXPECT_TRUE(model.tokenizer->Encode(text).ok());
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
        best = std::min(best, taken.count());
      }
      return best;
    };
    // A hundred times as long while every one of them was tried at every character.
    EXPECT_LT(seconds(5000), 10 * seconds(5)) << algorithm;
  }
}

TEST(SentencePieceModelTest, EveryCutModelIsRefusedOrRuns) {
  const std::string model = Model(kUnigram, BpePieces(), true);
  const TokenizerDir dir;
  for (size_t size = 0; size < model.size(); size += 7) {
    dir.Write("tokenizer.model", std::string_view(model).substr(0, size));
    const auto tokenizer = Tokenizer::Load(dir.path());
    if (!tokenizer.ok()) {
      EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("tokenizer.model"));
      continue;
    }
    const auto ids = (*tokenizer)->Encode("hello 世");
    EXPECT_TRUE(!ids.ok() || (*tokenizer)->Decode(*ids).ok());
  }
}

}  // namespace
}  // namespace ziggurat

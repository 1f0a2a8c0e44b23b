#include "model/tokenizer/streaming_detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "model/tokenizer/utf8.h"
#include "tests/model/tokenizer_files.h"

namespace ziggurat {
namespace {

std::vector<std::string> Increments(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                                    const StreamingDetokenizer::Options& options = {}) {
  StreamingDetokenizer stream(tokenizer, options);
  std::vector<std::string> increments;
  for (const int32_t id : ids) increments.push_back(stream.Push(id).value());
  increments.push_back(stream.Finish().value());
  return increments;
}

std::vector<int32_t> EncodePlain(const Tokenizer& tokenizer, std::string_view text) {
  return tokenizer.Encode(text, {.add_special_tokens = false}).value();
}

using Texts = std::vector<std::string>;

TEST(StreamingDetokenizerTest, ACharacterComesWithItsLastByte) {
  const auto byte_level = LoadJson(ByteLevelTokenizer());
  EXPECT_EQ(Increments(*byte_level, EncodePlain(*byte_level, "世hello")),
            (Texts{"", "", "世", "hello", ""}));
  const auto sentence_piece = LoadJson(SentencePieceTokenizer());
  EXPECT_EQ(Increments(*sentence_piece, EncodePlain(*sentence_piece, "世hello")),
            (Texts{"", "", "", "世", "h", "e", "ll", "o", ""}));
}

TEST(StreamingDetokenizerTest, WhatNeverBecameACharacterComesAtTheEnd) {
  const auto tokenizer = LoadJson(ByteLevelTokenizer());
  std::vector<int32_t> ids = EncodePlain(*tokenizer, "a世");
  ids.pop_back();
  EXPECT_EQ(Increments(*tokenizer, ids), (Texts{"a", "", "", "\uFFFD"}));
}

TEST(StreamingDetokenizerTest, TheSpaceBeforeTheTextIsDroppedOnlyAtItsBeginning) {
  const auto tokenizer = LoadJson(SentencePieceTokenizer());
  const std::vector<int32_t> ids = EncodePlain(*tokenizer, "hello world");
  EXPECT_EQ(Increments(*tokenizer, ids), (Texts{"hello", " world", ""}));
  EXPECT_EQ(Increments(*tokenizer, ids, {.continues_text = true}), (Texts{" hello", " world", ""}));
}

TEST(StreamingDetokenizerTest, SpecialTokensGiveTextOnlyWhereAsked) {
  const auto tokenizer = LoadJson(SentencePieceTokenizer());
  const std::vector<int32_t> ids = tokenizer->Encode("hello</s>").value();
  EXPECT_EQ(Increments(*tokenizer, ids), (Texts{"", "hello", "", ""}));
  EXPECT_EQ(Increments(*tokenizer, ids, {.skip_special = false}),
            (Texts{"<s>", " hello", "</s>", ""}));
}

TEST(StreamingDetokenizerTest, AnIdOutOfRangeIsAnErrorAndChangesNothing) {
  const auto tokenizer = LoadJson(ByteLevelTokenizer());
  const std::vector<int32_t> ids = EncodePlain(*tokenizer, "世");
  StreamingDetokenizer stream(*tokenizer);
  std::string text = stream.Push(ids[0]).value();
  EXPECT_EQ(stream.Push(-1).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(stream.Push(1 << 20).status().code(), absl::StatusCode::kOutOfRange);
  for (size_t i = 1; i < ids.size(); ++i) text += stream.Push(ids[i]).value();
  EXPECT_EQ(text + stream.Finish().value(), "世");
}

/// The ids need not come from a text: a model may give any.
void RandomIdsDecodeAlike(const Tokenizer& tokenizer, uint32_t seed) {
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    std::vector<int32_t> ids(random() % 40);
    // Half of the rounds are mostly bytes, which tokenizers have first.
    const uint32_t limit = static_cast<uint32_t>(tokenizer.vocab_size());
    const uint32_t range = round % 2 == 0 ? limit : std::min<uint32_t>(limit, 262);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % range);
    for (const bool skip_special : {true, false}) {
      std::string text;
      for (const std::string& part : Increments(tokenizer, ids, {.skip_special = skip_special})) {
        EXPECT_TRUE(ValidateUtf8(part).ok());
        text += part;
      }
      EXPECT_EQ(text, tokenizer.Decode(ids, skip_special).value());
    }
  }
}

TEST(StreamingDetokenizerTest, IncrementsOfRandomIdsAreTheirDecodedText) {
  RandomIdsDecodeAlike(*LoadJson(ByteLevelTokenizer()), 1);
  RandomIdsDecodeAlike(*LoadJson(SentencePieceTokenizer()), 2);
  const auto needle = Tokenizer::Load(NeedleDir());
  ASSERT_TRUE(needle.ok()) << needle.status();
  RandomIdsDecodeAlike(**needle, 3);
}

TEST(StreamingDetokenizerTest, StripAtTheEndWaitsForTheEnd) {
  nlohmann::json tokenizer_json = SentencePieceTokenizer();
  tokenizer_json["decoder"]["decoders"].back()["stop"] = 1;
  const auto tokenizer = LoadJson(tokenizer_json);
  EXPECT_EQ(Increments(*tokenizer, EncodePlain(*tokenizer, "hello  ")),
            (Texts{"hello", "", " ", ""}));
  EXPECT_EQ(tokenizer->Decode(EncodePlain(*tokenizer, "hello world")).value(), "hello world");
}

}  // namespace
}  // namespace ziggurat

// Text in which special tokens are forbidden, as that of users whom nobody knows: none comes of it,
// and none of it is lost.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "model/tokenizer/tokenizer.h"
#include "tests/model/tokenizer_files.h"

namespace ziggurat {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;

TEST(PlainTextTest, SpecialTokensThatAreWordsOrMergesStayOrdinaryTextWhereForbidden) {
  json tokenizer_json = ByteLevelTokenizer();
  for (const bool ignore_merges : {false, true}) {
    tokenizer_json["model"]["ignore_merges"] = ignore_merges;
    for (const char* word : {"hell", "hello"}) {
      tokenizer_json["added_tokens"][0]["content"] = word;
      tokenizer_json["added_tokens"][0]["special"] = true;
      const auto tokenizer = LoadJson(tokenizer_json);
      EXPECT_THAT(Pieces(*tokenizer, word), ElementsAre(word));
      EncodeOptions plain;
      plain.parse_special = false;
      const std::vector<int32_t> ids = tokenizer->Encode(word, plain).value();
      EXPECT_EQ(tokenizer->Decode(ids).value(), word) << ignore_merges;
      for (const int32_t id : ids) {
        EXPECT_FALSE(tokenizer->IsSpecial(id)) << word << ", " << ignore_merges;
      }
    }
  }
}

TEST(PlainTextTest, ASpecialTokenThatIsAllThereIsForItsCharacterIsText) {
  json tokenizer_json = ByteLevelTokenizer();
  tokenizer_json["added_tokens"][0]["content"] = "!";
  EncodeOptions plain;
  plain.parse_special = false;
  const auto tokenizer = LoadJson(tokenizer_json);
  EXPECT_THAT(Pieces(*tokenizer, "he!!", plain), ElementsAre("he", "!", "!"));
}

}  // namespace
}  // namespace ziggurat

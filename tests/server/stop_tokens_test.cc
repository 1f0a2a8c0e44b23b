#include "server/stop_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/model/tokenizer_files.h"

namespace ziggurat {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(StopTokens, AreThoseOfTheModelElseEosOfTheTokenizer) {
  const TokenizerDir dir;
  dir.Write("tokenizer.json", SentencePieceTokenizer());
  const auto without_eos = Tokenizer::Load(dir.path());
  ASSERT_TRUE(without_eos.ok()) << without_eos.status();
  EXPECT_THAT(ChooseStopTokens({5, 7}, **without_eos).ids, ElementsAre(5, 7));
  EXPECT_THAT(ChooseStopTokens({}, **without_eos).ids, IsEmpty());
  EXPECT_THAT(ChooseStopTokens({}, **without_eos).source, HasSubstr("neither"));

  dir.Write("tokenizer_config.json", nlohmann::json{{"eos_token", "</s>"}});
  const auto with_eos = Tokenizer::Load(dir.path());
  ASSERT_TRUE(with_eos.ok()) << with_eos.status();
  EXPECT_THAT(ChooseStopTokens({5, 7}, **with_eos).ids, ElementsAre(5, 7));
  EXPECT_THAT(ChooseStopTokens({}, **with_eos).ids, ElementsAre(2));
  EXPECT_THAT(ChooseStopTokens({}, **with_eos).source, HasSubstr("of the tokenizer"));
}

}  // namespace
}  // namespace ziggurat

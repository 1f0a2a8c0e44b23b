// What stands beside a tokenizer in folders as they are found: classes with rules of their own,
// files of earlier versions, tokens that are named and are not there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/model/tokenizer_files.h"

namespace ziggurat {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<Tokenizer> Load(const json& file, const json& config) {
  const TokenizerDir dir;
  dir.Write("tokenizer.json", file);
  dir.Write("tokenizer_config.json", config);
  auto tokenizer = Tokenizer::Load(dir.path());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

json BosAndEos(json file) {
  file["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<s>"}}}},
        {{"Sequence", {{"id", "A"}}}},
        {{"SpecialToken", {{"id", "</s>"}}}}}},
      {"special_tokens", {{"<s>", {{"ids", {1}}}}, {"</s>", {{"ids", {2}}}}}}};
  return file;
}

TEST(TokenizerClass, LlamasAddsBosAndNoEosWhateverTheFileSays) {
  json bare = SentencePieceTokenizer();
  bare["post_processor"] = nullptr;
  const json both = BosAndEos(bare);
  json named = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  for (const char* name : {"LlamaTokenizer", "LlamaTokenizerFast"}) {
    named["tokenizer_class"] = name;
    for (const json& file : {bare, both}) {
      const auto tokenizer = Load(file, named);
      EXPECT_THAT(tokenizer->prefix_ids(), ElementsAre(1)) << name;
      EXPECT_THAT(tokenizer->suffix_ids(), ElementsAre()) << name;
    }
  }
  json otherwise = named;
  otherwise.update({{"add_bos_token", false}, {"add_eos_token", true}});
  EXPECT_THAT(Load(both, otherwise)->prefix_ids(), ElementsAre());
  EXPECT_THAT(Load(both, otherwise)->suffix_ids(), ElementsAre(2));

  named["tokenizer_class"] = "PreTrainedTokenizerFast";
  EXPECT_THAT(Load(bare, named)->prefix_ids(), ElementsAre());
  EXPECT_THAT(Load(both, named)->suffix_ids(), ElementsAre(2));
}

TEST(TokenizerClass, ClsAndSepSurroundTheText) {
  for (const char* type : {"RobertaProcessing", "BertProcessing"}) {
    json file = SentencePieceTokenizer();
    file["post_processor"] = {{"type", type}, {"cls", {"<s>", 1}}, {"sep", {"</s>", 2}}};
    const auto tokenizer = LoadJson(file);
    EXPECT_THAT(tokenizer->prefix_ids(), ElementsAre(1)) << type;
    EXPECT_THAT(tokenizer->suffix_ids(), ElementsAre(2)) << type;
  }
}

TEST(TokenizerClass, AnUnknownTokenMustBeThereOnlyWhereItIsNeeded) {
  json bytes = ByteLevelTokenizer();
  bytes["model"]["unk_token"] = "<nothing>";
  EXPECT_TRUE(LoadJson(bytes)->Encode("hello é").ok()) << "it has all bytes";

  json letters = SentencePieceTokenizer();
  letters["model"]["unk_token"] = "<nothing>";
  letters["model"]["byte_fallback"] = false;
  const auto tokenizer = LoadJson(letters);
  EXPECT_TRUE(tokenizer->Encode("hello").ok());
  const absl::Status status = tokenizer->Encode("hello 漢").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("no token is '漢', nor is the unknown token '<nothing>'"));
}

}  // namespace
}  // namespace ziggurat

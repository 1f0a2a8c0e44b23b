// What tokenizer_config.json changes of what tokenizer.json says, and what either names that is not
// there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/model/tokenizer_files.h"

namespace ziggurat {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A Llama 2 whose template has these special tokens before and behind the text.
json WithTemplate(const std::vector<std::string>& before, const std::vector<std::string>& behind) {
  json file = SentencePieceTokenizer();
  json& post_processor = file["post_processor"];
  post_processor["single"] = json::array();
  const auto add = [&](const std::string& token) {
    post_processor["single"].push_back({{"SpecialToken", {{"id", token}, {"type_id", 0}}}});
    post_processor["special_tokens"][token]["ids"] = {file["model"]["vocab"][token]};
  };
  for (const std::string& token : before) add(token);
  post_processor["single"].push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  for (const std::string& token : behind) add(token);
  return file;
}

TEST(TokenizerConfigTest, AddEosTokenOverrulesTheTemplate) {
  const json file = WithTemplate({"<s>"}, {"</s>"});
  json config = {{"eos_token", "</s>"}};
  EXPECT_THAT(Pieces(*LoadJson(file, config), "hello"), ElementsAre("<s>", "▁hello", "</s>"));
  config["add_eos_token"] = true;
  EXPECT_THAT(Pieces(*LoadJson(file, config), "hello"), ElementsAre("<s>", "▁hello", "</s>"));
  config["add_eos_token"] = false;
  EXPECT_THAT(Pieces(*LoadJson(file, config), "hello"), ElementsAre("<s>", "▁hello"));
}

TEST(TokenizerConfigTest, BosIsTheOneTokenBeforeEveryTextWhereNothingNamesIt) {
  EXPECT_EQ(LoadJson(WithTemplate({"<s>"}, {}), json::object())->bos_id(), 1);
  EXPECT_EQ(LoadJson(WithTemplate({"</s>"}, {}), json{{"bos_token", "<s>"}})->bos_id(), 1);
  EXPECT_EQ(LoadJson(WithTemplate({}, {"</s>"}), json::object())->bos_id(), std::nullopt);
  EXPECT_EQ(LoadJson(WithTemplate({"<s>", "</s>"}, {}), json::object())->bos_id(), std::nullopt);
}

/// A byte-level tokenizer with the added token "<t>" of these flags, which the configuration's
/// entry overrules.
std::unique_ptr<Tokenizer> LoadOverruled(const json& flags_of_file, const json& flags_of_config) {
  json file = ByteLevelTokenizer();
  const json id = file["added_tokens"][0]["id"];
  json in_file = flags_of_file, in_config = flags_of_config;
  in_file["id"] = id;
  in_file["content"] = in_config["content"] = "<t>";
  file["added_tokens"][0] = in_file;
  return LoadJson(file, json{{"added_tokens_decoder", {{id.dump(), in_config}}}});
}

TEST(TokenizerConfigTest, AnAddedTokenIsSpecialWhereEitherFileSaysSo) {
  for (const bool of_file : {false, true}) {
    for (const bool of_config : {false, true}) {
      const auto tokenizer = LoadOverruled({{"special", of_file}}, {{"special", of_config}});
      const int32_t id = tokenizer->PieceToId("<t>").value();
      EXPECT_EQ(tokenizer->IsSpecial(id), of_file || of_config);
      EXPECT_EQ(tokenizer->Decode({id}).value(), of_file || of_config ? "" : "<t>");
    }
  }
}

TEST(TokenizerConfigTest, WhateverNamesASpecialTokenItIsOne) {
  json file = SentencePieceTokenizer();
  file["added_tokens"] = json::array();
  const json unnamed = json::object();
  ASSERT_GT(Pieces(*LoadJson(file, unnamed), "a</s>").size(), 3u) << "it is taken apart";
  for (const json& config :
       {json{{"sep_token", "</s>"}}, json{{"cls_token", {{"content", "</s>"}}}},
        json{{"mask_token", "</s>"}}, json{{"additional_special_tokens", {"</s>"}}},
        json{{"extra_special_tokens", {"</s>"}}},
        json{{"extra_special_tokens", {{"image_token", "</s>"}}}}}) {
    EXPECT_EQ(Pieces(*LoadJson(file, config), "a</s>").back(), "</s>") << config;
  }
}

TEST(TokenizerConfigTest, ANamedTokenLeavesTheListToTheOtherFile) {
  json file = SentencePieceTokenizer();
  file["added_tokens"] = json::array();
  const TokenizerDir dir;
  dir.Write("tokenizer.json", file);
  dir.Write("tokenizer_config.json", json{{"sep_token", "<s>"}});
  dir.Write("special_tokens_map.json", json{{"additional_special_tokens", {"</s>"}}});
  const auto tokenizer = Tokenizer::Load(dir.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(Pieces(**tokenizer, "a<s>").back(), "<s>");
  EXPECT_EQ(Pieces(**tokenizer, "a</s>").back(), "</s>");
}

TEST(TokenizerConfigTest, TheMapOverrulesAnOldConfigurationAndNoNewOne) {
  for (const bool is_new : {false, true}) {
    const TokenizerDir dir;
    json config = {{"bos_token", "<s>"}};
    if (is_new) config["added_tokens_decoder"]["1"] = {{"content", "<s>"}, {"special", true}};
    dir.Write("tokenizer.json", SentencePieceTokenizer());
    dir.Write("tokenizer_config.json", config);
    dir.Write("special_tokens_map.json", json{{"bos_token", "</s>"}});
    const auto tokenizer = Tokenizer::Load(dir.path());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_EQ((*tokenizer)->bos_id(), is_new ? 1 : 2);
  }
}

TEST(TokenizerConfigTest, TokensOfTheConfigurationWithoutAnIdOfTheirOwnGetTheNextOnes) {
  const json file = SentencePieceTokenizer();
  const int size = LoadJson(file)->vocab_size();
  json config = {{"pad_token", "[PAD]"}, {"additional_special_tokens", {"<a>", "<s>"}}};
  config["added_tokens_decoder"]["1"] = {{"content", "<taken>"}, {"special", true}};
  const auto tokenizer = LoadJson(file, config);
  EXPECT_EQ(tokenizer->PieceToId("<taken>"), size);
  EXPECT_EQ(tokenizer->PieceToId("[PAD]"), size + 1);
  EXPECT_EQ(tokenizer->PieceToId("<a>"), size + 2);
  EXPECT_EQ(tokenizer->PieceToId("<s>"), 1);
  EXPECT_EQ(tokenizer->vocab_size(), size + 3);
  EXPECT_EQ(Pieces(*tokenizer, "hello[PAD]").back(), "[PAD]");
  EXPECT_TRUE(tokenizer->IsSpecial(size + 1));
}

TEST(TokenizerConfigTest, WhetherAnAddedTokenIsASingleWordIsAsTheConfigurationSays) {
  const json yes = {{"single_word", true}}, no = {{"single_word", false}};
  EXPECT_THAT(Pieces(*LoadOverruled(no, yes), "he<t>"), ElementsAre("he", "<", "t", ">"));
  EXPECT_THAT(Pieces(*LoadOverruled(yes, no), "he<t>"), ElementsAre("he", "<t>"));
}

TEST(TokenizerClass, LlamasAddsBosAndNoEosWhateverTheFileSays) {
  json bare = SentencePieceTokenizer();
  bare["post_processor"] = nullptr;
  const json both = WithTemplate({"<s>"}, {"</s>"});
  json named = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  for (const char* name : {"LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer"}) {
    named["tokenizer_class"] = name;
    for (const json& file : {bare, both}) {
      const auto tokenizer = LoadJson(file, named);
      EXPECT_THAT(tokenizer->prefix_ids(), ElementsAre(1)) << name;
      EXPECT_THAT(tokenizer->suffix_ids(), ElementsAre()) << name;
    }
  }
  json otherwise = named;
  otherwise.update({{"add_bos_token", false}, {"add_eos_token", true}});
  EXPECT_THAT(LoadJson(both, otherwise)->prefix_ids(), ElementsAre());
  EXPECT_THAT(LoadJson(both, otherwise)->suffix_ids(), ElementsAre(2));

  named["tokenizer_class"] = "PreTrainedTokenizerFast";
  EXPECT_THAT(LoadJson(bare, named)->prefix_ids(), ElementsAre());
  EXPECT_THAT(LoadJson(both, named)->suffix_ids(), ElementsAre(2));
}

TEST(TokenizerClass, LlamasBosTakesThePlaceOfTheTemplates) {
  const json file = WithTemplate({"<s>"}, {});
  json config = {{"tokenizer_class", "LlamaTokenizer"}, {"bos_token", "</s>"}};
  EXPECT_THAT(LoadJson(file, config)->prefix_ids(), ElementsAre(2));
  config["add_bos_token"] = false;
  EXPECT_THAT(LoadJson(file, config)->prefix_ids(), ElementsAre());
}

TEST(TokenizerClass, LlamasTokensHaveNamesOfTheirOwn) {
  json file = SentencePieceTokenizer();
  file["post_processor"] = nullptr;
  const auto tokenizer = LoadJson(file, {{"tokenizer_class", "LlamaTokenizer"}});
  EXPECT_THAT(tokenizer->prefix_ids(), ElementsAre(1));
  EXPECT_EQ(tokenizer->bos_id(), 1);
  EXPECT_EQ(tokenizer->eos_id(), 2);
  EXPECT_EQ(tokenizer->unk_id(), 0);
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

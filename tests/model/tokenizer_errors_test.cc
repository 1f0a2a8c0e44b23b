// Files that are missing, broken, or ask for what is not known: an error that names them, never a
// crash.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <functional>
#include <random>

#include "model/tokenizer/tokenizer.h"
#include "tests/model/tokenizer_files.h"

namespace ziggurat {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

absl::Status LoadStatus(const TokenizerDir& dir) { return Tokenizer::Load(dir.path()).status(); }

TEST(TokenizerErrors, AFolderWithoutTokenizerIsNamed) {
  const TokenizerDir dir;
  const absl::Status status = LoadStatus(dir);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(dir.path().string()));
  EXPECT_THAT(std::string(status.message()), HasSubstr("tokenizer.json"));
  EXPECT_EQ(Tokenizer::Load("/no/such/folder").status().code(), absl::StatusCode::kNotFound);
  dir.Write("vocab.json", std::string_view("{}"));
  EXPECT_THAT(std::string(LoadStatus(dir).message()), HasSubstr("vocab.json is of a kind that"));
}

TEST(TokenizerErrors, BrokenJsonIsNamedWithItsPlace) {
  for (const char* content : {"", "{", "[]", "{\"model\": }", "nul", "\xff\xfe"}) {
    const TokenizerDir dir;
    dir.Write("tokenizer.json", std::string_view(content));
    const absl::Status status = LoadStatus(dir);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << content;
    EXPECT_THAT(std::string(status.message()), HasSubstr("tokenizer.json")) << content;
  }
  const TokenizerDir dir;
  dir.Write("tokenizer.json", ByteLevelTokenizer());
  dir.Write("tokenizer_config.json", std::string_view("{\"bos_token\": 7}"));
  EXPECT_THAT(std::string(LoadStatus(dir).message()), HasSubstr("tokenizer_config.json"));
  EXPECT_THAT(std::string(LoadStatus(dir).message()), HasSubstr("bos_token"));
}

TEST(TokenizerErrors, AFileThatCannotBeReadIsNoAbsentFile) {
  for (const char* name :
       {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json"}) {
    const auto status_with = [&](const std::function<void(const std::filesystem::path&)>& make) {
      const TokenizerDir dir;
      if (std::string_view(name) != "tokenizer.json") {
        dir.Write(std::string_view(name) == "tokenizer.model" ? "other.json" : "tokenizer.json",
                  ByteLevelTokenizer());
      } else {  // not to be taken instead
        dir.Write("tokenizer.model", std::string_view("model"));
      }
      make(dir.path() / name);
      return LoadStatus(dir);
    };
    const absl::Status folder =
        status_with([](const auto& path) { std::filesystem::create_directory(path); });
    const absl::Status pipe =
        status_with([](const auto& path) { ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0); });
    const absl::Status link =
        status_with([](const auto& path) { std::filesystem::create_symlink("absent", path); });
    for (const absl::Status* status : {&folder, &pipe, &link}) {
      EXPECT_EQ(status->code(), absl::StatusCode::kInvalidArgument) << *status;
      EXPECT_THAT(std::string(status->message()), HasSubstr(name));
      EXPECT_THAT(std::string(status->message()),
                  HasSubstr(status == &link ? "leads nowhere" : "not a regular file"));
    }
  }
}

struct Change {
  const char* expected;  ///< must stand in the error, if there is to be one
  std::function<void(json*)> change;
};

TEST(TokenizerErrors, WhatIsNotSupportedIsRefusedByName) {
  const std::vector<Change> changes = {
      {"WordPiece", [](json* j) { (*j)["model"]["type"] = "WordPiece"; }},
      {"WordLevel", [](json* j) { (*j)["model"]["type"] = "WordLevel"; }},
      {"BertNormalizer",
       [](json* j) {
         (*j)["normalizer"] = {{"type", "BertNormalizer"}};
       }},
      {"supported: NFC",
       [](json* j) {
         (*j)["normalizer"] = {{"type", "ByteLevel"}};
       }},
      {"'UnicodeScripts'",
       [](json* j) {
         (*j)["pre_tokenizer"] = {{"type", "UnicodeScripts"}};
       }},
      {"PairProcessing",
       [](json* j) {
         (*j)["post_processor"] = {{"type", "PairProcessing"}};
       }},
      {"'CTC'",
       [](json* j) {
         (*j)["decoder"] = {{"type", "CTC"}};
       }},
      {"'Odd'",
       [](json* j) {
         (*j)["pre_tokenizer"] = {
             {"type", "Split"}, {"pattern", {{"String", "-"}}}, {"behavior", "Odd"}};
       }},
      {"a negated class inside a class",
       [](json* j) {
         (*j)["pre_tokenizer"] = {{"type", "Split"},
                                  {"pattern", {{"Regex", "[(\\s|[^.,!])]+"}}},
                                  {"behavior", "Isolated"}};
       }},
      {"prepend_scheme",
       [](json* j) {
         (*j)["pre_tokenizer"] = {{"type", "Metaspace"}, {"prepend_scheme", "sometimes"}};
       }},
      {"'TemplateProcessing' is not supported behind another that adds",
       [](json* j) {
         const json adds = {
             {"type", "TemplateProcessing"},
             {"single", {{{"SpecialToken", {{"id", "b"}}}}, {{"Sequence", {{"id", "A"}}}}}},
             {"special_tokens", {{"b", {{"ids", {5}}}}}}};
         (*j)["post_processor"] = {{"type", "Sequence"}, {"processors", {adds, adds}}};
       }},
      {"continuing_subword_prefix",
       [](json* j) { (*j)["model"]["continuing_subword_prefix"] = "##"; }},
      {"dropout", [](json* j) { (*j)["model"]["dropout"] = 0.1; }},
      {"behind Fuse",
       [](json* j) {
         (*j)["decoder"] = {{"type", "Sequence"},
                            {"decoders", {{{"type", "Fuse"}}, {{"type", "ByteFallback"}}}}};
       }},
      {"'ByteLevel' is supported behind ByteFallback only where Fuse",
       [](json* j) {
         (*j)["decoder"] = {{"type", "Sequence"},
                            {"decoders", {{{"type", "ByteFallback"}}, {{"type", "ByteLevel"}}}}};
       }},
      {"' ' is \"normalized\", and nothing is left",
       [](json* j) {
         (*j)["normalizer"] = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
         (*j)["added_tokens"].push_back({{"id", 262}, {"content", " "}, {"normalized", true}});
       }},
      {"'Metaspace' is supported behind ByteFallback only where Fuse",
       [](json* j) {
         (*j)["decoder"] = {{"type", "Sequence"},
                            {"decoders", {{{"type", "ByteFallback"}}, {{"type", "Metaspace"}}}}};
       }},
      {"\"first\" is supported only as the first",
       [](json* j) {
         (*j)["normalizer"] = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", false}};
         (*j)["pre_tokenizer"] = {{"type", "Metaspace"}, {"prepend_scheme", "first"}};
       }},
  };
  for (const Change& bad : changes) {
    const TokenizerDir dir;
    json tokenizer_json = ByteLevelTokenizer();
    bad.change(&tokenizer_json);
    dir.Write("tokenizer.json", tokenizer_json);
    const absl::Status status = LoadStatus(dir);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << bad.expected << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.expected));
    EXPECT_THAT(std::string(status.message()), HasSubstr("tokenizer.json"));
  }
}

TEST(TokenizerErrors, WhatMakesNoSenseIsRefused) {
  const std::vector<Change> changes = {
      {"\"vocab\"", [](json* j) { (*j)["model"].erase("vocab"); }},
      {"\"merges\"", [](json* j) { (*j)["model"].erase("merges"); }},
      {"\"model\" must be an object, not string", [](json* j) { (*j)["model"] = "BPE"; }},
      {"a decoder must be an object", [](json* j) { (*j)["decoder"] = "ByteLevel"; }},
      {"no unsigned integer", [](json* j) { (*j)["model"]["vocab"]["x y"] = -1; }},
      {"is not in [0", [](json* j) { (*j)["model"]["vocab"]["x y"] = 1ULL << 40; }},
      {"have the id 0", [](json* j) { (*j)["model"]["vocab"]["x y"] = 0; }},
      {"not in the vocabulary", [](json* j) { (*j)["model"]["merges"].push_back("q zz"); }},
      {"merge number 5", [](json* j) { (*j)["model"]["merges"].push_back("q"); }},
      {"merge number 5", [](json* j) { (*j)["model"]["merges"].push_back(7); }},
      {"\"added_tokens\"", [](json* j) { (*j)["added_tokens"] = 7; }},
      {"\"content\"", [](json* j) { (*j)["added_tokens"][0].erase("content"); }},
      {"\"id\"", [](json* j) { (*j)["added_tokens"][0]["id"] = -7; }},
      {"have the id 5", [](json* j) { (*j)["added_tokens"][0]["id"] = 5; }},
      {"cannot be compiled",
       [](json* j) {
         (*j)["pre_tokenizer"] = {
             {"type", "Split"}, {"pattern", {{"Regex", "(("}}}, {"behavior", "Isolated"}};
       }},
      {"'first', which \"add_prefix_space\": false contradicts",
       [](json* j) {
         (*j)["pre_tokenizer"] = {
             {"type", "Metaspace"}, {"prepend_scheme", "first"}, {"add_prefix_space", false}};
       }},
      {"\"type\"", [](json* j) { (*j)["decoder"] = json::object(); }},
      {"true or false", [](json* j) { (*j)["model"]["byte_fallback"] = "yes"; }},
      {"once",
       [](json* j) {
         (*j)["post_processor"] = {{"type", "TemplateProcessing"}, {"single", json::array()}};
       }},
      {"\"sep\" of RobertaProcessing",
       [](json* j) {
         (*j)["post_processor"] = {
             {"type", "RobertaProcessing"}, {"cls", {"h", 1}}, {"sep", {"e", -1}}};
       }},
      {"the id 9999",
       [](json* j) {
         (*j)["post_processor"] = {
             {"type", "BertProcessing"}, {"cls", {"h", 1}}, {"sep", {"e", 9999}}};
       }},
      {"the id 9999",
       [](json* j) {
         (*j)["post_processor"] = {
             {"type", "TemplateProcessing"},
             {"single", {{{"SpecialToken", {{"id", "b"}}}}, {{"Sequence", {{"id", "A"}}}}}},
             {"special_tokens", {{"b", {{"ids", {9999}}}}}}};
       }},
      {"too deep",
       [](json* j) {
         json nested = {{"type", "NFC"}};
         for (int i = 0; i < 50; ++i) {
           nested = {{"type", "Sequence"}, {"normalizers", json::array({nested})}};
         }
         (*j)["normalizer"] = nested;
       }},
  };
  for (const Change& bad : changes) {
    const TokenizerDir dir;
    json tokenizer_json = ByteLevelTokenizer();
    bad.change(&tokenizer_json);
    dir.Write("tokenizer.json", tokenizer_json);
    const absl::Status status = LoadStatus(dir);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.expected << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.expected));
    EXPECT_THAT(std::string(status.message()), HasSubstr("tokenizer.json"));
  }
}

TEST(TokenizerErrors, AnIdThatIsTooLargeIsBlamedOnTheFileThatHasIt) {
  const TokenizerDir dir;
  dir.Write("tokenizer.json", ByteLevelTokenizer());
  dir.Write("tokenizer_config.json",
            json{{"added_tokens_decoder", {{"99999999", {{"content", "<|new|>"}}}}}});
  const absl::Status status = LoadStatus(dir);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("the id 99999999 of the token '<|new|>'"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("tokenizer_config.json"));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("tokenizer.json")));
}

TEST(TokenizerErrors, AnOptionalFlagThatIsNullIsAsIfAbsent) {
  const std::vector<Change> changes = {
      {"byte_fallback", [](json* j) { (*j)["model"]["byte_fallback"] = nullptr; }},
      {"fuse_unk", [](json* j) { (*j)["model"]["fuse_unk"] = nullptr; }},
      {"ignore_merges", [](json* j) { (*j)["model"]["ignore_merges"] = nullptr; }},
      {"special", [](json* j) { (*j)["added_tokens"][0]["special"] = nullptr; }},
      {"lstrip", [](json* j) { (*j)["added_tokens"][0]["lstrip"] = nullptr; }},
      {"rstrip", [](json* j) { (*j)["added_tokens"][0]["rstrip"] = nullptr; }},
      {"single_word", [](json* j) { (*j)["added_tokens"][0]["single_word"] = nullptr; }},
      {"normalized", [](json* j) { (*j)["added_tokens"][0]["normalized"] = nullptr; }},
      {"ByteLevel",
       [](json* j) {
         (*j)["pre_tokenizer"] = {
             {"type", "ByteLevel"}, {"add_prefix_space", nullptr}, {"use_regex", nullptr}};
       }},
      {"Metaspace",
       [](json* j) {
         (*j)["pre_tokenizer"] = {
             {"type", "Metaspace"}, {"add_prefix_space", nullptr}, {"split", nullptr}};
       }},
      {"Digits",
       [](json* j) {
         (*j)["pre_tokenizer"] = {{"type", "Digits"}, {"individual_digits", nullptr}};
       }},
      {"Split",
       [](json* j) {
         (*j)["pre_tokenizer"] = {{"type", "Split"},
                                  {"pattern", {{"String", "-"}}},
                                  {"behavior", "Isolated"},
                                  {"invert", nullptr}};
       }},
      {"Strip",
       [](json* j) {
         (*j)["normalizer"] = {
             {"type", "Strip"}, {"strip_left", nullptr}, {"strip_right", nullptr}};
       }},
  };
  for (const Change& change : changes) {
    const TokenizerDir dir;
    json tokenizer_json = ByteLevelTokenizer();
    change.change(&tokenizer_json);
    dir.Write("tokenizer.json", tokenizer_json);
    EXPECT_TRUE(LoadStatus(dir).ok()) << change.expected << ": " << LoadStatus(dir);
  }
}

/// Loads `content` cut short and with bytes changed: an error or a tokenizer, never a crash.
void LoadDamaged(const char* name, const std::string& content, int rounds) {
  std::mt19937 random(3);
  const TokenizerDir dir;
  for (int i = 0; i < rounds; ++i) {
    std::string damaged = content;
    if (i % 3 == 0) damaged.resize(random() % damaged.size());
    for (int change = 0; change < i % 4 && !damaged.empty(); ++change) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    dir.Write(name, std::string_view(damaged));
    const auto tokenizer = Tokenizer::Load(dir.path());
    if (!tokenizer.ok()) {
      EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr(name));
      continue;
    }
    const auto ids = (*tokenizer)->Encode("hello 世界 <s> world");
    if (ids.ok()) {
      EXPECT_TRUE((*tokenizer)->Decode(*ids).ok());
    }
  }
}

TEST(TokenizerErrors, DamagedTokenizerJsonNeverCrashes) {
  LoadDamaged("tokenizer.json", SentencePieceTokenizer().dump(), 150);
}

TEST(TokenizerErrors, DamagedTokenizerModelNeverCrashes) {
  const std::string model = ReadFileIfThere(SharedFolder() / "models/stories260K/tokenizer.model");
  if (model.empty()) GTEST_SKIP() << "../shared/models/stories260K/tokenizer.model is absent";
  LoadDamaged("tokenizer.model", model, 150);
}

TEST(TokenizerErrors, WhatIsNoSentencePieceModelIsNamed) {
  for (const char* content : {"", "hello", "{}"}) {
    const TokenizerDir dir;
    dir.Write("tokenizer.model", std::string_view(content));
    const absl::Status status = LoadStatus(dir);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("tokenizer.model"));
  }
}

}  // namespace
}  // namespace ziggurat

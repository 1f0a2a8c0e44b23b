#include "model/tokenizer/tokenizer_config.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "model/input_file.h"
#include "model/tokenizer/json_reader.h"

namespace ziggurat {
namespace {

constexpr std::string_view kConfigFile = "tokenizer_config.json";
constexpr std::string_view kSpecialTokensFile = "special_tokens_map.json";
constexpr std::string_view kAddedTokensFile = "added_tokens.json";

/// A special token is written as its content, or as an object with its options.
absl::StatusOr<std::optional<AddedToken>> ParseSpecialToken(const nlohmann::json& value,
                                                            absl::string_view key) {
  if (value.is_null()) return std::optional<AddedToken>();
  AddedToken token;
  if (value.is_string()) {
    token.content = value.get<std::string>();
  } else if (value.is_object()) {
    absl::StatusOr<AddedToken> parsed = ParseAddedToken(value);
    if (!parsed.ok()) return parsed.status();
    token = *std::move(parsed);
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", key, "\" must be a string or an object, not ", value.type_name()));
  }
  token.special = true;
  return std::optional<AddedToken>(std::move(token));
}

absl::Status ReadFlag(const nlohmann::json& object, absl::string_view key,
                      std::optional<bool>* flag) {
  if (Member(object, key).is_null()) return absl::OkStatus();
  const absl::StatusOr<bool> value = BoolMember(object, key, false, "the tokenizer");
  if (!value.ok()) return value.status();
  *flag = *value;
  return absl::OkStatus();
}

/// What both files may hold; what `config` has already is overruled.
absl::Status ReadSpecialTokens(const nlohmann::json& object, TokenizerConfig* config) {
  const std::pair<absl::string_view, std::optional<AddedToken>*> named[] = {
      {"bos_token", &config->bos},  {"eos_token", &config->eos}, {"unk_token", &config->unk},
      {"pad_token", &config->pad},  {"sep_token", &config->sep}, {"cls_token", &config->cls},
      {"mask_token", &config->mask}};
  for (const auto& [key, token] : named) {
    absl::StatusOr<std::optional<AddedToken>> parsed = ParseSpecialToken(Member(object, key), key);
    if (!parsed.ok()) return parsed.status();
    if (parsed->has_value()) *token = *std::move(parsed);
  }
  // The latter is what newer files call it; it may have a name for each token.
  for (const absl::string_view key : {"additional_special_tokens", "extra_special_tokens"}) {
    const nlohmann::json& tokens = Member(object, key);
    if (tokens.is_null()) continue;
    if (!tokens.is_array() && (!tokens.is_object() || key != "extra_special_tokens")) {
      return absl::InvalidArgumentError(absl::StrCat("\"", key, "\" must be a list"));
    }
    for (const nlohmann::json& token : tokens) {
      absl::StatusOr<std::optional<AddedToken>> parsed = ParseSpecialToken(token, key);
      if (!parsed.ok()) return parsed.status();
      if (parsed->has_value()) config->additional_special_tokens.push_back(**std::move(parsed));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadAddedTokens(const nlohmann::json& object, TokenizerConfig* config) {
  const nlohmann::json& tokens = Member(object, "added_tokens_decoder");
  if (tokens.is_null()) return absl::OkStatus();
  if (!tokens.is_object()) {
    return absl::InvalidArgumentError("\"added_tokens_decoder\" must be an object");
  }
  for (const auto& [key, value] : tokens.items()) {
    absl::StatusOr<AddedToken> token = ParseAddedToken(value);
    if (!token.ok()) return token.status();
    if (!absl::SimpleAtoi(key, &token->id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"added_tokens_decoder\" has the key '", key, "', which is no id"));
    }
    config->added_tokens.push_back(*std::move(token));
  }
  std::sort(config->added_tokens.begin(), config->added_tokens.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  config->has_added_tokens = true;
  return absl::OkStatus();
}

absl::Status ReadConfigFile(const nlohmann::json& object, TokenizerConfig* config) {
  const std::pair<absl::string_view, std::optional<bool>*> flags[] = {
      {"add_bos_token", &config->add_bos_token},
      {"add_eos_token", &config->add_eos_token},
      {"add_prefix_space", &config->add_prefix_space},
      {"legacy", &config->legacy}};
  for (const auto& [key, flag] : flags) {
    if (absl::Status status = ReadFlag(object, key, flag); !status.ok()) return status;
  }
  const absl::StatusOr<std::string> class_name =
      StringMember(object, "tokenizer_class", "", "the tokenizer");
  if (!class_name.ok()) return class_name.status();
  config->tokenizer_class = *class_name;
  if (absl::Status status = ReadSpecialTokens(object, config); !status.ok()) return status;
  return ReadAddedTokens(object, config);
}

std::vector<AddedToken> SpecialTokens(const TokenizerConfig& config) {
  std::vector<AddedToken> tokens;
  for (const auto& token :
       {config.bos, config.eos, config.unk, config.sep, config.pad, config.cls, config.mask}) {
    if (token.has_value()) tokens.push_back(*token);
  }
  tokens.insert(tokens.end(), config.additional_special_tokens.begin(),
                config.additional_special_tokens.end());
  return tokens;
}

/// {"<|im_start|>": 32001, ...}
absl::Status ReadLegacyAddedTokens(const nlohmann::json& object, TokenizerConfig* config) {
  const std::vector<AddedToken> special = SpecialTokens(*config);
  for (const auto& [content, id] : object.items()) {
    if (content.empty() || !id.is_number_unsigned() ||
        id.get<uint64_t>() > Vocabulary::kMaxTokenId) {
      return absl::InvalidArgumentError(
          absl::StrCat("the added token '", content, "' has no valid id"));
    }
    AddedToken token;
    token.content = content;
    token.id = id.get<int32_t>();
    token.special = std::any_of(special.begin(), special.end(), [&](const AddedToken& other) {
      return other.content == token.content;
    });
    token.normalized = !token.special;
    config->added_tokens.push_back(std::move(token));
  }
  return absl::OkStatus();
}

using Reader = absl::Status (*)(const nlohmann::json&, TokenizerConfig*);

absl::Status ReadIfPresent(const std::filesystem::path& path, Reader reader,
                           TokenizerConfig* config) {
  const absl::StatusOr<nlohmann::json> object = ReadJsonObject(path);
  if (absl::IsNotFound(object.status())) return absl::OkStatus();
  if (!object.ok()) return object.status();
  absl::Status status = reader(*object, config);
  return status.ok() ? status : InFile(path, status);
}

}  // namespace

absl::StatusOr<AddedToken> ParseAddedToken(const nlohmann::json& object) {
  AddedToken token;
  const absl::StatusOr<std::string> content = StringMember(object, "content", "", "an added token");
  if (!content.ok()) return content.status();
  token.content = *content;
  if (token.content.empty()) {
    return absl::InvalidArgumentError("an added token has no \"content\"");
  }
  const std::pair<absl::string_view, bool*> flags[] = {{"special", &token.special},
                                                       {"lstrip", &token.lstrip},
                                                       {"rstrip", &token.rstrip},
                                                       {"single_word", &token.single_word},
                                                       {"normalized", &token.normalized}};
  for (const auto& [key, flag] : flags) {
    const absl::StatusOr<bool> value =
        BoolMember(object, key, false, absl::StrCat("the added token '", token.content, "'"));
    if (!value.ok()) return value.status();
    *flag = *value;
  }
  return token;
}

absl::StatusOr<TokenizerConfig> TokenizerConfig::Read(const std::filesystem::path& model_dir) {
  TokenizerConfig config;
  config.path = model_dir / kConfigFile;
  absl::Status status = ReadIfPresent(config.path, ReadConfigFile, &config);
  if (!status.ok()) return status;
  if (!config.has_added_tokens) {
    status = ReadIfPresent(model_dir / kSpecialTokensFile, ReadSpecialTokens, &config);
    if (!status.ok()) return status;
  }
  return config;
}

absl::Status TokenizerConfig::ReadAddedTokensFile(const std::filesystem::path& model_dir) {
  return ReadIfPresent(model_dir / kAddedTokensFile, ReadLegacyAddedTokens, this);
}

bool TokenizerConfig::is_llama() const {
  for (const char* name : {"LlamaTokenizer", "CodeLlamaTokenizer"}) {
    if (tokenizer_class == name || tokenizer_class == absl::StrCat(name, "Fast")) return true;
  }
  return false;
}
std::optional<bool> TokenizerConfig::adds_bos() const {
  return !add_bos_token && is_llama() ? true : add_bos_token;
}
std::optional<bool> TokenizerConfig::adds_eos() const {
  return !add_eos_token && is_llama() ? false : add_eos_token;
}

absl::Status CompleteAddedTokens(const TokenizerConfig& config, Vocabulary* vocabulary,
                                 std::vector<AddedToken>* tokens) {
  const auto find = [tokens](const AddedToken& token) {
    return std::find_if(tokens->begin(), tokens->end(),
                        [&](const AddedToken& other) { return other.content == token.content; });
  };
  const size_t of_the_file = tokens->size();
  for (const AddedToken& token : config.added_tokens) {
    const auto known = find(token);
    if (known == tokens->end()) {
      tokens->push_back(token);
      continue;
    }
    known->lstrip = token.lstrip;
    known->rstrip = token.rstrip;
    known->single_word = token.single_word;
    known->special = known->special || token.special;
  }
  for (size_t i = 0; i < tokens->size(); ++i) {
    AddedToken& token = (*tokens)[i];
    if (const std::optional<int32_t> id = vocabulary->Find(token.content)) {
      token.id = *id;
      continue;
    }
    if (i >= of_the_file && vocabulary->Piece(token.id) != nullptr) token.id = vocabulary->size();
    if (absl::Status status = vocabulary->AddBesideModel(token.content, token.id); !status.ok()) {
      return i < of_the_file ? status : InFile(config.path, status);
    }
  }
  for (AddedToken& token : SpecialTokens(config)) {
    if (find(token) != tokens->end()) continue;
    token.id = vocabulary->Find(token.content).value_or(vocabulary->size());
    if (absl::Status status = vocabulary->AddBesideModel(token.content, token.id); !status.ok()) {
      return InFile(config.path, status);
    }
    tokens->push_back(token);
  }
  for (const AddedToken& token : *tokens) {
    if (token.special) vocabulary->MarkSpecial(token.id);
  }
  return absl::OkStatus();
}

}  // namespace ziggurat

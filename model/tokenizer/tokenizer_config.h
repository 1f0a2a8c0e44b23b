// tokenizer_config.json and special_tokens_map.json: what stands beside a tokenizer.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/tokenizer/added_tokens.h"
#include "model/tokenizer/vocabulary.h"

namespace ziggurat {

struct TokenizerConfig {
  std::filesystem::path path;  ///< of tokenizer_config.json, for errors
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  std::optional<bool> add_prefix_space;
  /// A prefix space before every section, not only before the first. Concerns tokenizer.model only.
  std::optional<bool> legacy;

  /// Of transformers, which defaults depend on; empty: not named.
  std::string tokenizer_class;

  /// By their contents; the ids follow from the vocabulary.
  std::optional<AddedToken> bos, eos, unk, pad, sep, cls, mask;
  std::vector<AddedToken> additional_special_tokens;

  std::vector<AddedToken> added_tokens;  ///< "added_tokens_decoder", ascending in their ids
  bool has_added_tokens = false;         ///< whether it is there at all

  /// A class that puts BOS and EOS around a text as its flags say, whatever the post processor of
  /// tokenizer.json does: BOS and no EOS unless it is told otherwise. Its special tokens are <s>
  /// and </s> unless others are named. Of other classes tokenizer.json and the flags decide.
  bool is_llama() const;
  std::optional<bool> adds_bos() const;
  std::optional<bool> adds_eos() const;

  /// Either file may be absent. special_tokens_map.json is read, and overrules what
  /// tokenizer_config.json says, where that has no "added_tokens_decoder", as in transformers.
  /// Errors name the file.
  static absl::StatusOr<TokenizerConfig> Read(const std::filesystem::path& model_dir);
  /// Beside a tokenizer.model of before "added_tokens_decoder": added_tokens.json, contents and
  /// ids.
  absl::Status ReadAddedTokensFile(const std::filesystem::path& model_dir);
};

/// Reads "content", "special", "lstrip", ... of one added token; no id.
absl::StatusOr<AddedToken> ParseAddedToken(const nlohmann::json& object);

/// Completes the added tokens of a tokenizer file by those that `config` names, whose flags
/// overrule the file's as in transformers (but for `normalized`, which stays), and gives all of
/// them ids: that of the vocabulary where the token is in it, else the one the file gives, which is
/// then added to the vocabulary beside the model. Tokens of `config` that have no id, or that of
/// another token, get the next one. Errors name the file where it is `config`'s.
absl::Status CompleteAddedTokens(const TokenizerConfig& config, Vocabulary* vocabulary,
                                 std::vector<AddedToken>* tokens);

}  // namespace ziggurat

// tokenizer.json of Hugging Face's tokenizers, with a BPE or unigram model.

#include <charconv>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "model/tokenizer/bpe_model.h"
#include "model/tokenizer/json_reader.h"
#include "model/tokenizer/metaspace.h"
#include "model/tokenizer/normalizer.h"
#include "model/tokenizer/pre_tokenizer.h"
#include "model/tokenizer/section_encoder.h"
#include "model/tokenizer/unigram_model.h"

namespace ziggurat {
namespace {

/// Normalizes, splits into words, and has the model split these.
class WordEncoder : public SectionEncoder {
 public:
  WordEncoder(std::unique_ptr<Normalizer> normalizer, AddedTokenMatcher normalized_tokens,
              std::unique_ptr<PreTokenizer> pre_tokenizer, std::unique_ptr<WordModel> model)
      : normalizer_(std::move(normalizer)),
        normalized_tokens_(std::move(normalized_tokens)),
        pre_tokenizer_(std::move(pre_tokenizer)),
        model_(std::move(model)) {}

  absl::Status Encode(std::string_view section, bool begins_the_input, bool parse_special,
                      std::vector<int32_t>* ids) const override {
    std::string text(section);
    if (normalizer_ != nullptr) {
      if (absl::Status status = normalizer_->Normalize(&text); !status.ok()) return status;
    }
    const absl::StatusOr<std::vector<TextSection>> parts =
        normalized_tokens_.Split(text, parse_special);
    if (!parts.ok()) return parts.status();
    for (const TextSection& part : *parts) {
      if (part.id >= 0) {
        ids->push_back(part.id);
        continue;
      }
      std::vector<Word> words;
      words.push_back({text.substr(part.range.begin, part.range.end - part.range.begin),
                       begins_the_input && part.range.begin == 0});
      if (pre_tokenizer_ != nullptr) {
        if (absl::Status status = pre_tokenizer_->Split(&words); !status.ok()) return status;
      }
      for (const Word& word : words) {
        const absl::Status status = model_->Tokenize(word.text, parse_special, ids);
        if (!status.ok()) return status;
      }
    }
    return absl::OkStatus();
  }

  const Vocabulary& vocabulary() const override { return model_->vocabulary(); }

 private:
  std::unique_ptr<Normalizer> normalizer_;
  AddedTokenMatcher normalized_tokens_;
  std::unique_ptr<PreTokenizer> pre_tokenizer_;
  std::unique_ptr<WordModel> model_;
};

absl::StatusOr<BpeOptions> ParseBpeOptions(const nlohmann::json& model) {
  BpeOptions options;
  const std::pair<absl::string_view, bool*> flags[] = {{"byte_fallback", &options.byte_fallback},
                                                       {"fuse_unk", &options.fuse_unk},
                                                       {"ignore_merges", &options.ignore_merges}};
  for (const auto& [key, flag] : flags) {
    const absl::StatusOr<bool> value = BoolMember(model, key, false, "model");
    if (!value.ok()) return value.status();
    *flag = *value;
  }
  for (const absl::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const absl::StatusOr<std::string> value = StringMember(model, key, "", "model");
    if (!value.ok()) return value.status();
    if (!value->empty()) {
      return absl::UnimplementedError(
          absl::StrCat("\"", key, "\" of the BPE model is '", *value, "'; only none is supported"));
    }
  }
  const nlohmann::json& dropout = Member(model, "dropout");
  if (!dropout.is_null() && !(dropout.is_number() && dropout.get<double>() == 0)) {
    return absl::UnimplementedError(
        "\"dropout\" of the BPE model is not supported: it must be absent, null or 0");
  }
  const absl::StatusOr<std::string> unk = StringMember(model, "unk_token", "", "model");
  if (!unk.ok()) return unk.status();
  if (!unk->empty()) options.unk_token = *unk;
  return options;
}

absl::StatusOr<Vocabulary> ParseVocabulary(const nlohmann::json& model) {
  const nlohmann::json& pieces = Member(model, "vocab");
  if (!pieces.is_object()) {
    return absl::InvalidArgumentError("\"vocab\" of model must be an object of tokens and ids");
  }
  Vocabulary vocabulary;
  vocabulary.Reserve(pieces.size());
  for (auto entry = pieces.begin(); entry != pieces.end(); ++entry) {
    if (!entry->is_number_unsigned()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the id of the token '", entry.key(), "' is ",
                       entry->is_primitive() ? entry->dump() : std::string(entry->type_name()),
                       ", which is no unsigned integer"));
    }
    constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
    const auto id = static_cast<int64_t>(std::min(entry->get<uint64_t>(), kMost));
    if (absl::Status status = vocabulary.Add(entry.key(), id); !status.ok()) return status;
  }
  return vocabulary;
}

/// The first line of merges.txt, which some files took over into their list.
bool IsVersion(const nlohmann::json& merge) {
  return merge.is_string() && absl::StartsWith(merge.get_ref<const std::string&>(), "#version");
}

/// A merge is written "left right" or ["left", "right"].
absl::Status AddMerge(const nlohmann::json& merge, size_t index, BpeModel* model) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return model->AddMerge(merge[0].get_ref<const std::string&>(),
                           merge[1].get_ref<const std::string&>());
  }
  if (merge.is_string()) {
    const std::string_view text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos) {
      return model->AddMerge(text.substr(0, space), text.substr(space + 1));
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("merge number ", index,
                   " must be two tokens with a space between them, or a "
                   "list of two tokens"));
}

using ParsedModel = absl::StatusOr<std::unique_ptr<WordModel>>;

ParsedModel ParseBpe(const nlohmann::json& model) {
  const absl::StatusOr<BpeOptions> options = ParseBpeOptions(model);
  if (!options.ok()) return options.status();
  absl::StatusOr<Vocabulary> vocabulary = ParseVocabulary(model);
  if (!vocabulary.ok()) return vocabulary.status();
  const nlohmann::json& merges = Member(model, "merges");
  if (!merges.is_array()) return absl::InvalidArgumentError("\"merges\" of model must be a list");
  auto bpe = std::make_unique<BpeModel>(*options, *std::move(vocabulary));
  bpe->ReserveMerges(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    if (IsVersion(merges[i])) continue;
    if (absl::Status status = AddMerge(merges[i], i, bpe.get()); !status.ok()) return status;
  }
  return bpe;
}

/// A score as the original has it, whose JSON reader takes the digits for an integer, rounds that,
/// and divides: that is not always the nearest number, and decides which of two splits of "======"
/// is the more probable. Its own writer writes the fewest digits, so these are known.
double ScoreOf(const nlohmann::json& number) {
  const double nearest = number.get<double>();
  char buffer[32];
  const char* const end = std::to_chars(buffer, buffer + sizeof(buffer), std::abs(nearest),
                                        std::chars_format::scientific)
                              .ptr;
  // "1.25e-01" -> 125 and -3
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(absl::string_view(buffer, static_cast<size_t>(end - buffer)), 'e');
  const std::string digits = absl::StrReplaceAll(parts.first, {{".", ""}});
  uint64_t integer = 0;
  int exponent = 0;
  const bool is_read =
      absl::SimpleAtoi(digits, &integer) && absl::SimpleAtoi(parts.second, &exponent);
  exponent -= static_cast<int>(digits.size()) - 1;
  // Powers of ten up to 10^22 are exact; scores of that size or smallness are none.
  if (!is_read || std::abs(exponent) > 22) return nearest;
  const auto rounded = static_cast<double>(integer);
  const double power = std::pow(10, std::abs(exponent));
  return std::copysign(exponent < 0 ? rounded / power : rounded * power, nearest);
}

ParsedModel ParseUnigram(const nlohmann::json& model) {
  const nlohmann::json& pieces = Member(model, "vocab");
  if (!pieces.is_array()) {
    return absl::InvalidArgumentError("\"vocab\" of model must be a list of tokens and scores");
  }
  Vocabulary vocabulary;
  vocabulary.Reserve(pieces.size());
  std::vector<double> scores;
  for (const nlohmann::json& piece : pieces) {
    const auto id = static_cast<int64_t>(scores.size());
    if (!piece.is_array() || piece.size() != 2 || !piece[0].is_string() || !piece[1].is_number()) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", id, " of vocab must be a list of its text and its score"));
    }
    absl::Status status = vocabulary.Add(piece[0].get_ref<const std::string&>(), id);
    if (!status.ok()) return status;
    scores.push_back(ScoreOf(piece[1]));
  }
  if (scores.empty()) return absl::InvalidArgumentError("\"vocab\" of model is empty");
  const absl::StatusOr<int64_t> unk_id = IntegerMember(model, "unk_id", -1, "model");
  if (!unk_id.ok()) return unk_id.status();
  if (!Member(model, "unk_id").is_null() && vocabulary.Piece(*unk_id) == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("\"unk_id\" of model is ", *unk_id,
                                                   ", but the ids of vocab are 0 to ",
                                                   vocabulary.size() - 1));
  }
  const absl::StatusOr<bool> bytes = BoolMember(model, "byte_fallback", false, "model");
  if (!bytes.ok()) return bytes.status();
  return std::make_unique<UnigramModel>(
      std::move(vocabulary), std::move(scores),
      *unk_id < 0 ? std::nullopt : std::optional(static_cast<int32_t>(*unk_id)), *bytes);
}

ParsedModel ParseModel(const nlohmann::json& model) {
  if (!model.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"model\" must be an object, not ", model.type_name()));
  }
  // Old files name no type, and only of a unigram model the vocabulary is a list.
  const char* const old_type = Member(model, "vocab").is_array() ? "Unigram" : "BPE";
  const absl::StatusOr<std::string> type = StringMember(model, "type", old_type, "model");
  if (!type.ok()) return type.status();
  if (*type == "BPE") return ParseBpe(model);
  if (*type == "Unigram") return ParseUnigram(model);
  return UnsupportedComponent("model", *type, "BPE, Unigram");
}

absl::StatusOr<std::vector<AddedToken>> ParseAddedTokens(const nlohmann::json& root) {
  std::vector<AddedToken> tokens;
  const nlohmann::json& list = Member(root, "added_tokens");
  if (list.is_null()) return tokens;
  if (!list.is_array()) return absl::InvalidArgumentError("\"added_tokens\" must be a list");
  for (const nlohmann::json& element : list) {
    absl::StatusOr<AddedToken> token = ParseAddedToken(element);
    if (!token.ok()) return token.status();
    const absl::StatusOr<int64_t> id = IntegerMember(element, "id", -1, "an added token");
    if (!id.ok()) return id.status();
    if (*id < 0 || *id > Vocabulary::kMaxTokenId) {
      return absl::InvalidArgumentError(
          absl::StrCat("the added token '", token->content, "' has no valid \"id\""));
    }
    token->id = static_cast<int32_t>(*id);
    tokens.push_back(*std::move(token));
  }
  return tokens;
}

absl::Status CheckIds(const PostProcessor& processor, const Vocabulary& vocabulary) {
  for (const std::vector<int32_t>* ids : {&processor.prefix_ids, &processor.suffix_ids}) {
    for (const int32_t id : *ids) {
      if (vocabulary.Piece(id) == nullptr) {
        return absl::InvalidArgumentError(
            absl::StrCat("post_processor uses the id ", id, ", which no token has"));
      }
    }
  }
  return absl::OkStatus();
}

/// Sorts the tokens into those looked for in the text as given, and those in the normalized text.
/// Special ones go first: of two that are normalized to the same, the first is found.
absl::Status FillMatchers(const std::vector<AddedToken>& tokens, const Normalizer* normalizer,
                          AddedTokenMatcher* as_given, AddedTokenMatcher* normalized) {
  for (const bool special : {true, false}) {
    for (const AddedToken& token : tokens) {
      if (token.special != special) continue;
      std::string pattern = token.content;
      if (token.normalized && normalizer != nullptr) {
        if (absl::Status status = normalizer->Normalize(&pattern); !status.ok()) return status;
        if (pattern.empty()) {
          return absl::UnimplementedError(absl::StrCat(
              "the added token '", token.content,
              "' is \"normalized\", and nothing is left of it: that is not supported"));
        }
      }
      (token.normalized ? normalized : as_given)->Add(token, pattern);
    }
  }
  return absl::OkStatus();
}

/// The components of a tree of Sequences, in their order. They have been parsed: each has a type.
void Flatten(const nlohmann::json& component, const char* list,
             std::vector<const nlohmann::json*>* components) {
  if (component.is_null()) return;
  if (component["type"] != "Sequence") {
    components->push_back(&component);
    return;
  }
  for (const nlohmann::json& element : component[list]) Flatten(element, list, components);
}

/// add_prefix_space of tokenizer_config.json overrules a ByteLevel that is the whole pre-tokenizer,
/// as in transformers.
void ApplyPrefixSpace(const TokenizerConfig& config, nlohmann::json* root) {
  if (!config.add_prefix_space || Member(Member(*root, "pre_tokenizer"), "type") != "ByteLevel") {
    return;
  }
  (*root)["pre_tokenizer"]["add_prefix_space"] = *config.add_prefix_space;
}

/// Metaspace's "first" means the word that begins the text as it was given. We know the one that
/// begins the normalized text: where these may differ, it is refused.
absl::Status CheckPrependFirst(const nlohmann::json& normalizer,
                               const nlohmann::json& pre_tokenizer) {
  std::vector<const nlohmann::json*> normalizers, stages;
  Flatten(normalizer, "normalizers", &normalizers);
  Flatten(pre_tokenizer, "pretokenizers", &stages);
  const bool moves = absl::c_any_of(normalizers, [](const nlohmann::json* stage) {
    const std::string type = (*stage)["type"];
    return type != "NFC" && type != "NFD" && type != "NFKC" && type != "NFKD" &&
           type != "Lowercase";
  });
  bool is_behind_another = false, inserts = false;
  for (const nlohmann::json* stage : stages) {
    if ((*stage)["type"] == "Metaspace") {
      const absl::StatusOr<Metaspace> metaspace = ParseMetaspace(*stage);
      if (!metaspace.ok()) return metaspace.status();
      const bool splits_what_is_normalized = is_behind_another && !normalizers.empty();
      if (metaspace->prepend == Metaspace::Prepend::kFirst &&
          (moves || inserts || splits_what_is_normalized)) {
        return absl::UnimplementedError(
            "Metaspace with the prepend_scheme \"first\" is supported only as the first "
            "pre-tokenizer, behind no normalizer that moves or removes text");
      }
    }
    is_behind_another = true;
    inserts = inserts || (*stage)["type"] == "Metaspace";
    if ((*stage)["type"] == "ByteLevel") {
      const absl::StatusOr<bool> prefix = BoolMember(*stage, "add_prefix_space", true, "ByteLevel");
      if (!prefix.ok()) return prefix.status();
      inserts = inserts || *prefix;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LoadedTokenizer> LoadTokenizerJson(const std::filesystem::path& path,
                                                  const TokenizerConfig& config) {
  absl::StatusOr<nlohmann::json> root = ReadJsonObject(path);
  if (!root.ok()) return root.status();
  ApplyPrefixSpace(config, &*root);
  LoadedTokenizer loaded;

  absl::StatusOr<std::unique_ptr<Normalizer>> normalizer =
      ParseNormalizer(Member(*root, "normalizer"));
  if (!normalizer.ok()) return normalizer.status();
  absl::StatusOr<std::unique_ptr<PreTokenizer>> pre_tokenizer =
      ParsePreTokenizer(Member(*root, "pre_tokenizer"));
  if (!pre_tokenizer.ok()) return pre_tokenizer.status();
  absl::Status status =
      CheckPrependFirst(Member(*root, "normalizer"), Member(*root, "pre_tokenizer"));
  if (!status.ok()) return status;
  absl::StatusOr<PostProcessor> post_processor =
      ParsePostProcessor(Member(*root, "post_processor"));
  if (!post_processor.ok()) return post_processor.status();
  loaded.post_processor = *std::move(post_processor);
  absl::StatusOr<Decoder> decoder = Decoder::Parse(Member(*root, "decoder"));
  if (!decoder.ok()) return decoder.status();
  loaded.decoder = *std::move(decoder);

  absl::StatusOr<std::vector<AddedToken>> tokens = ParseAddedTokens(*root);
  if (!tokens.ok()) return tokens.status();
  loaded.added_tokens = *std::move(tokens);
  ParsedModel parsed_model = ParseModel(Member(*root, "model"));
  if (!parsed_model.ok()) return parsed_model.status();
  std::unique_ptr<WordModel> model = *std::move(parsed_model);
  status = CompleteAddedTokens(config, &model->mutable_vocabulary(), &loaded.added_tokens);
  if (!status.ok()) return status;
  status = CheckIds(loaded.post_processor, model->vocabulary());
  if (!status.ok()) return status;
  loaded.unk_id = model->unk_id();

  absl::StatusOr<AddedTokenMatcher> as_given = AddedTokenMatcher::Create();
  if (!as_given.ok()) return as_given.status();
  absl::StatusOr<AddedTokenMatcher> normalized = AddedTokenMatcher::Create();
  if (!normalized.ok()) return normalized.status();
  status = FillMatchers(loaded.added_tokens, normalizer->get(), &*as_given, &*normalized);
  if (!status.ok()) return status;
  loaded.matcher = std::make_unique<AddedTokenMatcher>(*std::move(as_given));
  loaded.encoder = std::make_unique<WordEncoder>(*std::move(normalizer), *std::move(normalized),
                                                 *std::move(pre_tokenizer), std::move(model));
  return loaded;
}

}  // namespace ziggurat

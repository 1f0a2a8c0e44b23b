// tokenizer.model: a SentencePiece model, BPE or unigram.

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "model/tokenizer/json_reader.h"
#include "model/tokenizer/section_encoder.h"
#include "model/tokenizer/sentence_piece_model.h"
#include "model/tokenizer/utf8.h"

namespace ziggurat {
namespace {

/// When the space is put before a section.
enum class PrefixSpace { kEverySection, kFirstSection, kNever };

class SentencePieceEncoder : public SectionEncoder {
 public:
  ///   plain  where special tokens are to stay ordinary text; null: `model` never finds any
  SentencePieceEncoder(std::unique_ptr<SentencePieceModel> model,
                       std::unique_ptr<SentencePieceModel> plain, PrefixSpace prefix,
                       Vocabulary vocabulary)
      : model_(std::move(model)),
        plain_(std::move(plain)),
        prefix_(prefix),
        vocabulary_(std::move(vocabulary)) {}

  absl::Status Encode(std::string_view section, bool begins_the_input, bool parse_special,
                      std::vector<int32_t>* ids) const override {
    const bool may_add_space = prefix_ == PrefixSpace::kEverySection ||
                               (prefix_ == PrefixSpace::kFirstSection && begins_the_input);
    const SentencePieceModel& model = parse_special || plain_ == nullptr ? *model_ : *plain_;
    std::string error;
    if (!model.Encode(section, may_add_space, ids, &error)) {
      return absl::InternalError(absl::StrCat("SentencePiece: ", error));
    }
    return absl::OkStatus();
  }

  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  std::unique_ptr<SentencePieceModel> model_, plain_;
  PrefixSpace prefix_;
  Vocabulary vocabulary_;
};

PrefixSpace ChoosePrefix(const TokenizerConfig& config) {
  if (!config.add_prefix_space.value_or(true)) return PrefixSpace::kNever;
  return config.legacy.value_or(true) ? PrefixSpace::kEverySection : PrefixSpace::kFirstSection;
}

/// Whether the model itself puts a space before the text.
absl::StatusOr<bool> AddsPrefixSpace(const SentencePieceModel& model) {
  std::vector<int32_t> ids;
  std::string error;
  if (!model.Encode("a", /*may_add_space=*/true, &ids, &error)) {
    return absl::InvalidArgumentError(absl::StrCat("the model cannot encode: ", error));
  }
  return !ids.empty() && absl::StartsWith(model.Piece(ids[0]), "\u2581");
}

/// Reads all pieces; control tokens also go to `control_tokens`.
absl::StatusOr<Vocabulary> ReadVocabulary(const SentencePieceModel& model,
                                          std::vector<AddedToken>* control_tokens) {
  Vocabulary vocabulary;
  vocabulary.Reserve(static_cast<size_t>(model.size()));
  for (int id = 0; id < model.size(); ++id) {
    const std::string& piece = model.Piece(id);
    absl::Status status = ValidateUtf8(piece);
    if (status.ok()) status = vocabulary.Add(piece, id);
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("token ", id, ": ", status.message()));
    }
    if (!model.IsSpecial(id)) continue;
    AddedToken token;
    token.id = id;
    token.content = piece;
    token.special = true;
    control_tokens->push_back(std::move(token));
  }
  return vocabulary;
}

/// Fills all of `loaded` but its encoder.
absl::Status Describe(const SentencePieceModel& model, const TokenizerConfig& config,
                      PrefixSpace prefix, const Vocabulary& vocabulary, LoadedTokenizer* loaded) {
  absl::StatusOr<AddedTokenMatcher> matcher = AddedTokenMatcher::Create();
  if (!matcher.ok()) return matcher.status();
  for (const AddedToken& token : loaded->added_tokens) matcher->Add(token, token.content);
  loaded->matcher = std::make_unique<AddedTokenMatcher>(*std::move(matcher));

  const absl::StatusOr<bool> adds_prefix = AddsPrefixSpace(model);
  if (!adds_prefix.ok()) return adds_prefix.status();
  // The space that was put before the text; and where the model drops those of a text, all of them.
  int64_t strips_spaces = *adds_prefix && prefix != PrefixSpace::kNever ? 1 : 0;
  if (model.removes_extra_whitespaces()) strips_spaces = std::numeric_limits<int64_t>::max();
  absl::StatusOr<Decoder> decoder =
      Decoder::SentencePiece(model.falls_back_to_bytes(), strips_spaces);
  if (!decoder.ok()) return decoder.status();
  loaded->decoder = *std::move(decoder);

  loaded->bos_id = model.bos_id();
  loaded->eos_id = model.eos_id();
  loaded->unk_id = model.unk_id();
  // Llama's tokenizer begins every text with BOS unless its configuration says otherwise.
  const std::optional<int32_t> bos_id =
      config.bos.has_value() ? vocabulary.Find(config.bos->content) : loaded->bos_id;
  if (bos_id.has_value() && config.add_bos_token.value_or(true)) {
    loaded->post_processor.prefix_ids.push_back(*bos_id);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SentencePieceModel>> LoadModel(
    std::string_view serialized, const std::vector<int32_t>& never_found = {}) {
  std::string error;
  std::unique_ptr<SentencePieceModel> model =
      SentencePieceModel::Load(serialized, &error, never_found);
  if (model == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("not a SentencePiece model: ", error));
  }
  return model;
}

/// Special tokens that are ordinary pieces: the model finds them in a text by itself, where nobody
/// looks for special tokens too.
std::vector<int32_t> SpecialPieces(const SentencePieceModel& model,
                                   const std::vector<AddedToken>& tokens) {
  std::vector<int32_t> ids;
  for (const AddedToken& token : tokens) {
    if (token.special && token.id < model.size() && model.IsOrdinary(token.id)) {
      ids.push_back(token.id);
    }
  }
  return ids;
}

}  // namespace

absl::StatusOr<LoadedTokenizer> LoadSentencePiece(const std::filesystem::path& path,
                                                  const TokenizerConfig& config) {
  const absl::StatusOr<std::string> serialized = ReadTokenizerFile(path);
  if (!serialized.ok()) return serialized.status();
  absl::StatusOr<std::unique_ptr<SentencePieceModel>> loaded_model = LoadModel(*serialized);
  if (!loaded_model.ok()) return loaded_model.status();
  const SentencePieceModel& model = **loaded_model;

  LoadedTokenizer loaded;
  absl::StatusOr<Vocabulary> vocabulary = ReadVocabulary(model, &loaded.added_tokens);
  if (!vocabulary.ok()) return vocabulary.status();
  absl::Status status = CompleteAddedTokens(config, &*vocabulary, &loaded.added_tokens);
  if (!status.ok()) return status;
  const PrefixSpace prefix = ChoosePrefix(config);
  status = Describe(model, config, prefix, *vocabulary, &loaded);
  if (!status.ok()) return status;
  std::unique_ptr<SentencePieceModel> plain;
  if (const auto special = SpecialPieces(model, loaded.added_tokens); !special.empty()) {
    absl::StatusOr<std::unique_ptr<SentencePieceModel>> without = LoadModel(*serialized, special);
    if (!without.ok()) return without.status();
    plain = *std::move(without);
  }
  loaded.encoder = std::make_unique<SentencePieceEncoder>(
      *std::move(loaded_model), std::move(plain), prefix, *std::move(vocabulary));
  return loaded;
}

}  // namespace ziggurat

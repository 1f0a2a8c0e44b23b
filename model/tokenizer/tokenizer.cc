#include "model/tokenizer/tokenizer.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "model/input_file.h"
#include "model/tokenizer/section_encoder.h"
#include "model/tokenizer/utf8.h"

namespace ziggurat {

struct Tokenizer::Parts {
  std::filesystem::path path;
  LoadedTokenizer loaded;
  std::optional<int32_t> bos_id, eos_id, unk_id, pad_id;
};

namespace {

constexpr const char* kTokenizerJson = "tokenizer.json";
constexpr const char* kTokenizerModel = "tokenizer.model";

/// Messages always name a file: the tokenizer's where none from deeper down knew that it or its
/// configuration is meant.
absl::Status NameFile(const absl::Status& status, const std::filesystem::path& path,
                      const std::filesystem::path& config) {
  for (const std::filesystem::path& named : {path, config}) {
    if (absl::StartsWith(status.message(), named.string())) return status;
  }
  return InFile(path, status);
}

absl::StatusOr<std::filesystem::path> FindTokenizerFile(const std::filesystem::path& model_dir) {
  const absl::StatusOr<bool> is_there = IsThere(model_dir);
  if (!is_there.ok()) return is_there.status();
  if (!*is_there) {
    return absl::NotFoundError(absl::StrCat(model_dir.string(), ": no such file or directory"));
  }
  std::error_code error;
  if (!std::filesystem::is_directory(model_dir, error)) return model_dir;
  // Whatever bears the name is meant to be the tokenizer: what cannot be read is an error, and no
  // reason to take the other one.
  for (const char* name : {kTokenizerJson, kTokenizerModel}) {
    const absl::StatusOr<bool> has_file = IsThere(model_dir / name);
    if (!has_file.ok()) return has_file.status();
    if (*has_file) return model_dir / name;
  }
  std::string others;
  for (const char* name : {"vocab.json", "vocab.txt", "tekken.json"}) {
    if (!std::filesystem::exists(model_dir / name, error)) continue;
    absl::StrAppend(&others, "; ", name, " is of a kind that is not read");
  }
  return absl::NotFoundError(absl::StrCat(model_dir.string(), ": no tokenizer here: neither ",
                                          kTokenizerJson, " nor ", kTokenizerModel, others));
}

/// The id of a special token that the configuration names, else of the one that its class has by
/// default, else what the tokenizer file says.
std::optional<int32_t> SpecialId(const std::optional<AddedToken>& named,
                                 std::string_view by_default, const Vocabulary& vocabulary,
                                 std::optional<int32_t> of_the_file) {
  if (named.has_value()) return vocabulary.Find(named->content);
  if (by_default.empty()) return of_the_file;
  const std::optional<int32_t> id = vocabulary.Find(by_default);
  return id ? id : of_the_file;
}

/// add_bos_token and add_eos_token overrule the post processor, as in transformers.
void ApplyFlags(const TokenizerConfig& config, std::optional<int32_t> bos_id,
                std::optional<int32_t> eos_id, PostProcessor* processor) {
  if (config.is_llama()) *processor = {};  // whose BOS may be another
  std::vector<int32_t>& prefix = processor->prefix_ids;
  if (const std::optional<bool> adds = config.adds_bos(); adds && bos_id) {
    const bool has_bos = !prefix.empty() && prefix.front() == *bos_id;
    if (*adds && !has_bos) prefix.insert(prefix.begin(), *bos_id);
    if (!*adds && has_bos) prefix.erase(prefix.begin());
  }
  std::vector<int32_t>& suffix = processor->suffix_ids;
  if (const std::optional<bool> adds = config.adds_eos(); adds && eos_id) {
    const bool has_eos = !suffix.empty() && suffix.back() == *eos_id;
    if (*adds && !has_eos) suffix.push_back(*eos_id);
    if (!*adds && has_eos) suffix.pop_back();
  }
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::filesystem::path& model_dir) {
  const absl::StatusOr<std::filesystem::path> path = FindTokenizerFile(model_dir);
  if (!path.ok()) return path.status();
  absl::StatusOr<TokenizerConfig> config = TokenizerConfig::Read(path->parent_path());
  if (!config.ok()) return config.status();
  const bool is_json = path->extension() == ".json";
  if (!is_json && config->added_tokens.empty()) {
    absl::Status status = config->ReadAddedTokensFile(path->parent_path());
    if (!status.ok()) return status;
  }
  absl::StatusOr<LoadedTokenizer> loaded =
      is_json ? LoadTokenizerJson(*path, *config) : LoadSentencePiece(*path, *config);
  if (!loaded.ok()) return NameFile(loaded.status(), *path, config->path);

  auto parts = std::make_unique<Parts>();
  parts->path = *path;
  parts->loaded = *std::move(loaded);
  LoadedTokenizer& file = parts->loaded;
  const Vocabulary& vocabulary = file.encoder->vocabulary();
  // Where nothing names BOS, it is the one token that is put before every text.
  const std::vector<int32_t>& prefix = file.post_processor.prefix_ids;
  if (!file.bos_id && prefix.size() == 1) file.bos_id = prefix[0];
  const bool is_llama = config->is_llama();
  parts->bos_id = SpecialId(config->bos, is_llama ? "<s>" : "", vocabulary, file.bos_id);
  parts->eos_id = SpecialId(config->eos, is_llama ? "</s>" : "", vocabulary, file.eos_id);
  parts->unk_id = SpecialId(config->unk, is_llama ? "<unk>" : "", vocabulary, file.unk_id);
  parts->pad_id = SpecialId(config->pad, "", vocabulary, std::nullopt);
  ApplyFlags(*config, parts->bos_id, parts->eos_id, &file.post_processor);
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(parts)));
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text,
                                                       const EncodeOptions& options) const {
  if (absl::Status status = ValidateUtf8(text); !status.ok()) return status;
  const LoadedTokenizer& file = parts_->loaded;
  std::vector<int32_t> ids;
  if (options.add_special_tokens) ids = file.post_processor.prefix_ids;
  const absl::StatusOr<std::vector<TextSection>> sections =
      file.matcher->Split(text, options.parse_special);
  if (!sections.ok()) return sections.status();
  for (const TextSection& section : *sections) {
    if (section.id >= 0) {
      ids.push_back(section.id);
      continue;
    }
    const std::string_view part =
        text.substr(section.range.begin, section.range.end - section.range.begin);
    const absl::Status status =
        file.encoder->Encode(part, section.range.begin == 0, options.parse_special, &ids);
    if (!status.ok()) return status;
  }
  if (options.add_special_tokens) {
    const std::vector<int32_t>& suffix = file.post_processor.suffix_ids;
    ids.insert(ids.end(), suffix.begin(), suffix.end());
  }
  return ids;
}

absl::StatusOr<std::string> Tokenizer::Decode(absl::Span<const int32_t> ids,
                                              bool skip_special) const {
  DecoderStream stream = NewDecoderStream();
  std::string text;
  for (const int32_t id : ids) {
    const absl::StatusOr<std::string_view> piece = IdToPiece(id);
    if (!piece.ok()) return piece.status();
    if (skip_special && IsSpecial(id)) continue;
    if (absl::Status status = stream.Push(std::string(*piece), &text); !status.ok()) return status;
  }
  if (absl::Status status = stream.Finish(&text); !status.ok()) return status;
  return text;
}

absl::StatusOr<std::string_view> Tokenizer::IdToPiece(int32_t id) const {
  if (const std::string* piece = parts_->loaded.encoder->vocabulary().Piece(id)) {
    return std::string_view(*piece);
  }
  return absl::OutOfRangeError(
      absl::StrCat("no token has the id ", id, " (the vocabulary has ", vocab_size(), ")"));
}

std::optional<int32_t> Tokenizer::PieceToId(std::string_view piece) const {
  return parts_->loaded.encoder->vocabulary().Find(piece);
}

int Tokenizer::vocab_size() const { return parts_->loaded.encoder->vocabulary().size(); }
bool Tokenizer::IsSpecial(int32_t id) const {
  return parts_->loaded.encoder->vocabulary().IsSpecial(id);
}
std::optional<int32_t> Tokenizer::bos_id() const { return parts_->bos_id; }
std::optional<int32_t> Tokenizer::eos_id() const { return parts_->eos_id; }
std::optional<int32_t> Tokenizer::unk_id() const { return parts_->unk_id; }
std::optional<int32_t> Tokenizer::pad_id() const { return parts_->pad_id; }

absl::Span<const int32_t> Tokenizer::prefix_ids() const {
  return parts_->loaded.post_processor.prefix_ids;
}
absl::Span<const int32_t> Tokenizer::suffix_ids() const {
  return parts_->loaded.post_processor.suffix_ids;
}
const std::filesystem::path& Tokenizer::path() const { return parts_->path; }

DecoderStream Tokenizer::NewDecoderStream() const { return parts_->loaded.decoder.NewStream(); }

}  // namespace ziggurat

// From text to token ids and back, as the tokenizer files of a Hugging Face model folder say.
//
//   auto tokenizer = Tokenizer::Load("models/needle-llama");
//   auto ids = (*tokenizer)->Encode("Hello world");     // with BOS, where the model wants it
//   auto text = (*tokenizer)->Decode(*ids);             // without special tokens
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace ziggurat {

class DecoderStream;

struct EncodeOptions {
  /// Put before and behind the text what the model was trained with: BOS, seldom EOS, as the post
  /// processor of tokenizer.json, or add_bos_token and add_eos_token of tokenizer_config.json, say.
  bool add_special_tokens = true;
  /// Special tokens that are written out in the text ("<|eot_id|>") become those tokens. Off, they
  /// are ordinary text, which is what text of untrusted users needs.
  bool parse_special = true;
};

/// A loaded tokenizer. Immutable: any number of threads may use it at once.
///
/// Behaves as Hugging Face's tokenizers do, including the order of things: added tokens are cut out
/// of the text first, each section between them is normalized for itself, then split into words,
/// and each word is split by the model. Whatever a file asks for beyond what is known here is
/// refused when it is loaded.
///
/// It is not theirs in five things. A text is an error for a unigram model without an unknown token
/// only where it needs one, not wherever a character has no piece. Added tokens have the ids that
/// the file gives them; they number such tokens anew where these ids leave holes. Classes of
/// patterns have the characters of the PCRE2 at hand: Unicode 14 on Debian 12, as theirs had
/// (tokenizers 0.14), before they took Unicode 16 (0.22); those of Punctuation and StripAccents are
/// of any age there. An added token is decoded as the file has it, and not (as since 0.23) as it is
/// normalized. And a run of byte pieces that is no UTF-8 keeps the characters in it (decoder.cc).
class Tokenizer {
 public:
  /// Reads tokenizer.json of `model_dir`, or else tokenizer.model (SentencePiece), BPE or unigram,
  /// with tokenizer_config.json and special_tokens_map.json where they are. `model_dir` may also be
  /// the path of one of these two files.
  ///
  /// NOT_FOUND if there is no tokenizer; INVALID_ARGUMENT if a file is broken; UNIMPLEMENTED for a
  /// component that is not supported. Every message names the file.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::filesystem::path& model_dir);

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// The ids of `text`. INVALID_ARGUMENT if it is not valid UTF-8, with the offset. Time and memory
  /// grow as n log n with its length. Truncation and padding that tokenizer.json asks for are
  /// ignored.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                              const EncodeOptions& options = {}) const;

  /// The text of `ids`, always valid UTF-8: bytes that form no character become U+FFFD. With
  /// `skip_special`, special tokens give no text. OUT_OF_RANGE names an id that no token has.
  ///
  /// Byte-level tokenizers give back exactly what was encoded (after normalization);
  /// SentencePiece's drop the space that they put before the text. "Cleaning up" spaces before
  /// punctuation, as transformers may do afterwards, is not done: it would change the text.
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids, bool skip_special = true) const;

  /// The token as it stands in the vocabulary ("▁the", "Ġthe"). OUT_OF_RANGE if no token has the
  /// id.
  absl::StatusOr<std::string_view> IdToPiece(int32_t id) const;
  std::optional<int32_t> PieceToId(std::string_view piece) const;

  /// One more than the largest id. The model's embedding may have more rows.
  int vocab_size() const;
  /// False for ids that no token has.
  bool IsSpecial(int32_t id) const;

  /// From tokenizer_config.json, special_tokens_map.json or tokenizer.model; absent where these do
  /// not say. (What ends a generation is a matter of generation_config.json and config.json; EOS
  /// does where these name nothing.)
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> unk_id() const;
  std::optional<int32_t> pad_id() const;

  /// What `add_special_tokens` puts before and behind a text.
  absl::Span<const int32_t> prefix_ids() const;
  absl::Span<const int32_t> suffix_ids() const;

  /// The file that the tokens come from.
  const std::filesystem::path& path() const;

  /// A new stream of pieces into text. For StreamingDetokenizer.
  DecoderStream NewDecoderStream() const;

 private:
  struct Parts;
  explicit Tokenizer(std::unique_ptr<const Parts> parts);

  std::unique_ptr<const Parts> parts_;
};

}  // namespace ziggurat

// Token ids -> text, as the tokens come.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/tokenizer/decoder_stream.h"
#include "model/tokenizer/tokenizer.h"

namespace ziggurat {

/// Gives the text of one sequence in increments. Put together, they are exactly what
/// `Tokenizer::Decode` makes of all ids at once, and each is valid UTF-8: a character whose bytes
/// are spread over several tokens comes with the last of them. Not thread-safe; one per sequence.
class StreamingDetokenizer {
 public:
  struct Options {
    bool skip_special = true;
    /// The text continues another (a completion that follows its prompt): the space before its
    /// first word is kept, which SentencePiece's tokenizers drop at the beginning of a text.
    bool continues_text = false;
  };
  /// So many tokens at the end of a text have all bytes of a character that is not complete.
  static constexpr size_t kLastTokens = 3;

  /// `tokenizer` must outlive this.
  explicit StreamingDetokenizer(const Tokenizer& tokenizer)
      : StreamingDetokenizer(tokenizer, Options()) {}
  ///   last_tokens  of the text that is continued: where they end within a character, that comes
  ///                with its last byte
  StreamingDetokenizer(const Tokenizer& tokenizer, const Options& options,
                       absl::Span<const int32_t> last_tokens = {});

  /// The text that the next token makes certain; often empty. OUT_OF_RANGE if no token has the id:
  /// then nothing has changed.
  absl::StatusOr<std::string> Push(int32_t id);

  /// The sequence has ended: the rest, with U+FFFD for bytes that never became a character.
  /// Afterwards `Push` must not be called.
  absl::StatusOr<std::string> Finish();

 private:
  const Tokenizer& tokenizer_;
  Options options_;
  DecoderStream stream_;
};

}  // namespace ziggurat

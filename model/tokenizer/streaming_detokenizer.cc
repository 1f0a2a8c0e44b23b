#include "model/tokenizer/streaming_detokenizer.h"

#include <string_view>

#include "absl/strings/match.h"

namespace ziggurat {
namespace {

bool EndsWithinCharacter(const Tokenizer& tokenizer, absl::Span<const int32_t> ids) {
  const absl::StatusOr<std::string> text = tokenizer.Decode(ids);
  return text.ok() && absl::EndsWith(*text, "\uFFFD");
}

}  // namespace

StreamingDetokenizer::StreamingDetokenizer(const Tokenizer& tokenizer, const Options& options,
                                           absl::Span<const int32_t> last_tokens)
    : tokenizer_(tokenizer), options_(options), stream_(tokenizer.NewDecoderStream()) {
  if (options_.continues_text) {
    // A letter brings every decoder past the beginning of its text; it needs no second token to be
    // certain, so nothing of it stays behind.
    std::string before;
    stream_.Push("a", &before).IgnoreError();
    if (EndsWithinCharacter(tokenizer, last_tokens)) {
      for (const int32_t id : last_tokens) Push(id).IgnoreError();
    }
  }
}

absl::StatusOr<std::string> StreamingDetokenizer::Push(int32_t id) {
  const absl::StatusOr<std::string_view> piece = tokenizer_.IdToPiece(id);
  if (!piece.ok()) return piece.status();
  std::string text;
  if (options_.skip_special && tokenizer_.IsSpecial(id)) return text;
  if (absl::Status status = stream_.Push(std::string(*piece), &text); !status.ok()) return status;
  return text;
}

absl::StatusOr<std::string> StreamingDetokenizer::Finish() {
  std::string text;
  if (absl::Status status = stream_.Finish(&text); !status.ok()) return status;
  return text;
}

}  // namespace ziggurat

#include "server/text_stream.h"

#include <utility>

namespace ziggurat {

TextStream::TextStream(const Tokenizer* tokenizer, const TextStreamOptions& options)
    : detokenizer_(*tokenizer,
                   {.skip_special = !options.include_special_tokens, .continues_text = true},
                   options.prompt_end),
      matcher_(options.stop_strings),
      tokens_until_stops_count_(options.min_tokens) {}

std::string TextStream::Append(int32_t token_id) {
  if (is_stopped()) return "";
  std::string text = detokenizer_.Push(token_id).value_or("");
  if (tokens_until_stops_count_ > 0) {
    --tokens_until_stops_count_;
    return text;
  }
  return matcher_.Push(text);
}

std::string TextStream::Flush() {
  if (is_stopped()) return "";
  std::string text = matcher_.Push(detokenizer_.Finish().value_or(""));
  text += matcher_.Finish();
  return text;
}

}  // namespace ziggurat

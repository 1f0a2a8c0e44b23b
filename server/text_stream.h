// The text of one request as its tokens come: detokenized, and ended by a stop string.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/tokenizer/stop_string_matcher.h"
#include "model/tokenizer/streaming_detokenizer.h"
#include "model/tokenizer/tokenizer.h"

namespace ziggurat {

struct TextStreamOptions {
  std::vector<std::string> stop_strings = {};  ///< none empty
  int min_tokens = 0;  ///< no stop string is looked for within so many tokens
  bool include_special_tokens = false;
  /// The last tokens of a prompt that may end within a character.
  std::vector<int32_t> prompt_end = {};
};

/// A token id that the tokenizer does not know (models may have more rows than tokens) gives no
/// text. Not thread-safe.
class TextStream {
 public:
  /// `tokenizer` must outlive the stream.
  TextStream(const Tokenizer* tokenizer, const TextStreamOptions& options);

  /// The text that is certain once `token_id` has come. It may be empty: text waits while it may be
  /// the beginning of a stop string, or half a character. After a stop string, nothing comes.
  std::string Append(int32_t token_id);
  /// The text that waited, once no more tokens come.
  std::string Flush();

  bool is_stopped() const { return matcher_.stopped(); }
  /// The stop string that was found; valid once stopped.
  std::string matched() const { return std::string(*matcher_.matched()); }

 private:
  StreamingDetokenizer detokenizer_;
  StopStringMatcher matcher_;
  int tokens_until_stops_count_;
};

}  // namespace ziggurat

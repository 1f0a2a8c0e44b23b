// Tokens that are found in the text as they stand, before the model sees what lies between them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/tokenizer/prefix_trie.h"
#include "model/tokenizer/regex.h"

namespace ziggurat {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;      ///< a control token, left out of decoded text
  bool lstrip = false;       ///< takes the white space before it
  bool rstrip = false;       ///< takes the white space behind it
  bool single_word = false;  ///< not inside a word
  bool normalized = false;   ///< looked for in the normalized text, itself normalized
};

/// A part of a text: one added token, or what lies between two.
struct TextSection {
  ByteRange range;  ///< of an added token: with the white space that it took
  int32_t id = -1;  ///< of the added token; -1: ordinary text
};

/// Finds added tokens in text: leftmost first, the longest of those that begin at the same place.
/// Immutable after the last `Add`; thread-safe.
class AddedTokenMatcher {
 public:
  static absl::StatusOr<AddedTokenMatcher> Create();

  /// `pattern` is what to look for: the token's content, or that content normalized. An empty
  /// pattern is never found.
  void Add(const AddedToken& token, std::string_view pattern);

  /// The sections of `text` (valid UTF-8) in order; none is empty. Special tokens stay ordinary
  /// text unless `parse_special`.
  absl::StatusOr<std::vector<TextSection>> Split(std::string_view text, bool parse_special) const;

  bool empty() const { return tokens_.empty(); }

 private:
  explicit AddedTokenMatcher(Regex word);

  absl::StatusOr<bool> IsInsideWord(std::string_view text, ByteRange range) const;

  PrefixTrie patterns_;  ///< index into tokens_
  std::vector<AddedToken> tokens_;
  Regex word_;  ///< one character of a word
};

}  // namespace ziggurat

// How SentencePiece prepares a text: rewrites characters by a compiled table, and shows spaces as
// U+2581.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "model/tokenizer/precompiled_charsmap.h"
#include "model/tokenizer/prefix_trie.h"
#include "model/tokenizer/sentence_piece_proto.h"

namespace ziggurat {

/// Immutable; thread-safe.
class SentencePieceNormalizer {
 public:
  /// INVALID_ARGUMENT if the compiled table is broken.
  static absl::StatusOr<SentencePieceNormalizer> Create(const SentencePieceProto& proto);

  /// `text` must be valid UTF-8.
  ///   may_add_space  false: no space comes before the text, whatever the model wants
  std::string Normalize(std::string_view text, bool may_add_space) const;
  /// Bytes of the longest user-defined piece that `text` begins with, or 0: it stays as it is.
  size_t LongestUserDefined(std::string_view text) const {
    return user_defined_.Longest(text).length;
  }

 private:
  SentencePieceNormalizer() = default;
  /// What the beginning of a text becomes.
  PrecompiledCharsmap::Rule RewriteFirst(std::string_view text) const;

  bool add_dummy_prefix_ = true;
  bool remove_extra_whitespaces_ = true;
  bool escape_whitespaces_ = true;
  PrefixTrie user_defined_;  ///< pieces that stay as they are
  PrecompiledCharsmap rules_;
};

}  // namespace ziggurat

// SentencePiece's compiled rules of what characters become, "precompiled_charsmap".
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace ziggurat {

/// Texts, each of which is to be replaced by another one. Immutable; thread-safe.
class PrecompiledCharsmap {
 public:
  /// Without rules.
  PrecompiledCharsmap() = default;
  /// From the bytes of the table. INVALID_ARGUMENT if it is broken.
  static absl::StatusOr<PrecompiledCharsmap> Parse(std::string_view table);

  struct Rule {
    std::string_view to;  ///< valid UTF-8
    size_t length = 0;    ///< bytes of the text that it stands for; 0: no rule
  };
  /// The rules for what `text` begins with: the one for most of it, and for least.
  Rule Longest(std::string_view text) const { return Find(text, /*takes_longest=*/true); }
  Rule Shortest(std::string_view text) const { return Find(text, /*takes_longest=*/false); }

 private:
  Rule Find(std::string_view text, bool takes_longest) const;

  std::vector<uint32_t> trie_;  ///< a double array (Aoe 1989)
  std::string replacements_;    ///< each ends with a NUL
};

}  // namespace ziggurat

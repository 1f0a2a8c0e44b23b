// Oniguruma's regular expressions in the words of PCRE2.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace ziggurat {

/// Rewrites an Oniguruma pattern (of its own syntax, without options) so that PCRE2, with UTF, UCP,
/// MULTILINE and line feeds as newlines, finds the same matches. A construct that is not known to
/// mean the same, and that has no other words in PCRE2, is refused: UNIMPLEMENTED names it. Where
/// the pattern is broken, so is the one that comes back.
absl::StatusOr<std::string> TranslatePattern(std::string_view pattern);

}  // namespace ziggurat

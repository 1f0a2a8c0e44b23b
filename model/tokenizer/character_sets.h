// Sets of characters by the names that Oniguruma has for them, written for a class of PCRE2.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace ziggurat {

inline constexpr absl::string_view kHexDigitMembers = "0-9A-Fa-f";

/// \w inside a class. PCRE2's \w lacks marks and most connecting punctuation.
inline constexpr absl::string_view kWordMembers = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";

/// \w and \b outside classes have these as well: Oniguruma looks a character below U+0100 up in a
/// table of its own there, in which the superscripts and fractions of Latin-1 are parts of words.
inline constexpr absl::string_view kWordMembersOutside = "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";

/// [:name:]. Nothing where it is not known.
std::optional<std::string> PosixSetMembers(absl::string_view name);

/// \p{name}. Nothing where it is not known.
std::optional<std::string> PropertyMembers(absl::string_view name);

/// Whether the members are those of one property, as \p{L}, which \P{L} negates inside a class.
bool IsOneProperty(absl::string_view members);

}  // namespace ziggurat

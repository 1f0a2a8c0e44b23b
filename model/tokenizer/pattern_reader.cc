#include "model/tokenizer/pattern_reader.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "model/absl_view.h"
#include "model/tokenizer/character_sets.h"
#include "model/tokenizer/utf8.h"

namespace ziggurat {

PatternReader::PatternReader(std::string_view pattern) : pattern_(AbslView(pattern)) {}

absl::Status PatternReader::Refuse(absl::string_view what) const {
  return absl::UnimplementedError(absl::StrCat("the regular expression '", pattern_, "' uses ",
                                               what, ", which is not supported"));
}

bool PatternReader::Take(absl::string_view text) {
  if (Rest().substr(0, text.size()) != text) return false;
  position_ += text.size();
  return true;
}

absl::string_view PatternReader::TakeBytes(size_t length) {
  const absl::string_view bytes = Rest().substr(0, length);
  position_ += bytes.size();
  return bytes;
}

char32_t PatternReader::TakeCharacter() {
  return ReadUtf8(std::string_view(pattern_.data(), pattern_.size()), &position_);
}

std::optional<absl::StatusOr<char32_t>> PatternReader::TakeEscapedCharacter() {
  constexpr absl::string_view kLetters = "tnrfaev";
  constexpr absl::string_view kCharacters = "\t\n\r\f\a\x1b\v";
  if (position_ + 1 == pattern_.size()) return Refuse("a backslash at its end");
  const char c = Peek(1);
  if (c == 'x' || c == 'u') return TakeCode();
  if (const size_t letter = kLetters.find(c); letter != absl::string_view::npos) {
    position_ += 2;
    return static_cast<char32_t>(kCharacters[letter]);
  }
  if (absl::ascii_isalnum(static_cast<unsigned char>(c))) return std::nullopt;
  ++position_;
  return TakeCharacter();
}

absl::StatusOr<char32_t> PatternReader::TakeCode() {
  const absl::string_view rest = Rest();
  absl::string_view digits = rest.substr(2, rest[1] == 'u' ? 4 : 2);
  size_t length = 2 + digits.size();
  bool is_whole = digits.size() == (rest[1] == 'u' ? 4u : 2u);
  if (rest.substr(1, 2) == "x{") {
    const size_t end = std::min(rest.find('}'), rest.size());
    digits = rest.substr(3, end - std::min<size_t>(end, 3));
    length = end + 1;
    is_whole = end < rest.size();
  }
  uint32_t code = 0;
  const bool is_hexadecimal = std::all_of(digits.begin(), digits.end(), absl::ascii_isxdigit) &&
                              absl::SimpleHexAtoi(digits, &code);
  const bool is_character = code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
  // \xHH is a byte, which above 0x7F is no character of UTF-8.
  const bool is_byte = rest[1] == 'x' && rest.substr(2, 1) != "{" && code > 0x7F;
  if (!is_whole || !is_hexadecimal || !is_character || is_byte) {
    return Refuse(absl::StrCat("the escape '", rest.substr(0, length), "' (no character)"));
  }
  position_ += length;
  return static_cast<char32_t>(code);
}

absl::StatusOr<CharacterSet> PatternReader::TakeSet(bool is_caseless) {
  const char c = Peek(1);
  if (c == 'p' || c == 'P') return TakeProperty(is_caseless);
  const bool is_negated = absl::ascii_isupper(static_cast<unsigned char>(c));
  CharacterSet set{"", is_negated};
  switch (c) {
    case 's':  // PCRE2's \s also matches U+180E, which is no white space since Unicode 6.3.
    case 'S':
      set.members = "\\p{White_Space}";
      break;
    case 'd':
    case 'D':
      set.members = "\\p{Nd}";
      break;
    case 'h':
    case 'H':
      set.members = std::string(kHexDigitMembers);
      break;
    default:
      return Refuse(absl::StrCat("the escape '", Rest().substr(0, 2), "'"));
  }
  position_ += 2;
  return set;
}

absl::StatusOr<CharacterSet> PatternReader::TakeProperty(bool is_caseless) {
  const absl::string_view rest = Rest();
  const size_t end = rest.find('}');
  if (rest.substr(2, 1) != "{" || end == absl::string_view::npos) {
    return Refuse(absl::StrCat("'", rest.substr(0, 2), "' without braces"));
  }
  if (is_caseless) return Refuse("a property without regard to case");
  absl::string_view name = rest.substr(3, end - 3);
  CharacterSet set{"", rest[1] == 'P'};
  if (name.substr(0, 1) == "^") {
    name.remove_prefix(1);
    set.is_negated = !set.is_negated;
  }
  const std::optional<std::string> members = PropertyMembers(name);
  if (!members.has_value()) return Refuse(absl::StrCat("the property '", name, "'"));
  set.members = *members;
  position_ += end + 1;
  return set;
}

absl::StatusOr<CharacterSet> PatternReader::TakePosixSet() {
  const size_t end = Rest().find(":]");
  absl::string_view name = Rest().substr(2, end - 2);
  CharacterSet set{"", name.substr(0, 1) == "^"};
  if (set.is_negated) name.remove_prefix(1);
  const std::optional<std::string> members = PosixSetMembers(name);
  if (!members.has_value()) return Refuse(absl::StrCat("the class '[:", name, ":]'"));
  set.members = *members;
  position_ += end + 2;
  return set;
}

absl::string_view PatternReader::TakeDigits() {
  const size_t begin = position_;
  while (absl::ascii_isdigit(static_cast<unsigned char>(Peek()))) ++position_;
  return pattern_.substr(begin, position_ - begin);
}

}  // namespace ziggurat

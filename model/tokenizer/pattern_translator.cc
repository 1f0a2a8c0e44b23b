#include "model/tokenizer/pattern_translator.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "model/absl_view.h"
#include "model/tokenizer/character_sets.h"
#include "model/tokenizer/utf8.h"

namespace ziggurat {
namespace {

/// Whether a character beyond ASCII stands for itself alone without regard to case.
bool HasNoCase(char32_t character) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(character))) {
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
    case UTF8PROC_CATEGORY_ZS:
      return true;
    default:
      return false;
  }
}

/// Reads a pattern from left to right, element by element, and writes the same for PCRE2.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(AbslView(pattern)) {}

  absl::StatusOr<std::string> Run() {
    while (position_ < pattern_.size()) {
      if (absl::Status status = Element(); !status.ok()) return status;
    }
    return std::move(out_);
  }

 private:
  struct Group {
    size_t out_begin = 0;
    bool is_caseless = false;
  };
  enum class Last { kNothing, kAtom, kRepetition };

  static absl::Status Ok() { return absl::OkStatus(); }
  absl::Status Refuse(absl::string_view what) const {
    return absl::UnimplementedError(absl::StrCat("the regular expression '", pattern_, "' uses ",
                                                 what, ", which is not supported"));
  }

  absl::string_view Rest() const { return pattern_.substr(position_); }
  char Peek(size_t ahead = 0) const {
    return position_ + ahead < pattern_.size() ? pattern_[position_ + ahead] : '\0';
  }
  bool Take(absl::string_view text) {
    if (Rest().substr(0, text.size()) != text) return false;
    position_ += text.size();
    return true;
  }
  bool is_caseless() const { return groups_.back().is_caseless; }

  absl::Status Element() {
    switch (Peek()) {
      case '\\':
        return Escape();
      case '[':
        return Class();
      case '(':
        return OpenGroup();
      case ')':
        return CloseGroup();
      case '|':
        return BeginBranch();
      case '*':
      case '+':
      case '?':
        return Repetition();
      case '{':
        return IntervalOrBrace();
      case '.':
      case '^':
      case '$':
        AppendAtom(pattern_.substr(position_++, 1));
        return Ok();
      default:
        return Literal(TakeCharacter());
    }
  }

  char32_t TakeCharacter() {
    return ReadUtf8(std::string_view(pattern_.data(), pattern_.size()), &position_);
  }

  /// Something that can be repeated, and that is no literal character.
  void AppendAtom(absl::string_view text) {
    atom_begin_ = out_.size();
    absl::StrAppend(&out_, text);
    last_ = Last::kAtom;
    begins_branch_ = false;
    folding_ = '\0';
  }

  absl::Status Literal(char32_t character) {
    const char before = std::exchange(folding_, '\0');
    if (is_caseless()) {
      if (absl::Status status = CheckFolding(character); !status.ok()) return status;
      if (character < 0x80) {
        const char folded = absl::ascii_tolower(static_cast<unsigned char>(character));
        // "ß" matches "ss", and each ligature what it is made of.
        for (const absl::string_view pair : {"ff", "fi", "fl", "ss", "st"}) {
          if (pair[0] == before && pair[1] == folded) {
            return Refuse(absl::StrCat("'", pair, "' without regard to case"));
          }
        }
        AppendAtom(Escaped(character));
        folding_ = folded;
        return Ok();
      }
    }
    AppendAtom(Escaped(character));
    return Ok();
  }

  absl::Status CheckFolding(char32_t character) const {
    if (character < 0x80 || HasNoCase(character)) return Ok();
    return Refuse("a character beyond ASCII without regard to case");
  }

  /// The character as it can stand in a pattern and in a class.
  static std::string Escaped(char32_t character) {
    std::string text;
    if (character < 0x80 && absl::ascii_ispunct(static_cast<unsigned char>(character))) {
      text.push_back('\\');
    }
    AppendUtf8(character, &text);
    return text;
  }

  absl::Status OpenGroup() {
    if (Rest().substr(0, 2) == "(*") return Refuse("a callout '(*'");
    const Group group{out_.size(), is_caseless()};
    for (const absl::string_view opening : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "("}) {
      if (opening == "(" && Peek(1) == '?') return Options(group);
      if (!Take(opening)) continue;
      BeginGroup(group, opening);
      return Ok();
    }
    return Ok();
  }

  void BeginGroup(const Group& group, absl::string_view opening) {
    groups_.push_back(group);
    absl::StrAppend(&out_, opening);
    last_ = Last::kNothing;
    begins_branch_ = true;
  }

  /// (?i-mx:...) or (?i)...
  absl::Status Options(Group group) {
    const absl::string_view opening = Rest().substr(0, 4);
    std::array<std::string, 2> letters;  // those switched on, those switched off
    bool is_off = false;
    for (position_ += 2; Peek() != ')' && Peek() != ':'; ++position_) {
      const char letter = Peek();
      if (letter == '-' && !is_off) {
        is_off = true;
      } else if (letter == 'i') {
        group.is_caseless = !is_off;
        letters[is_off].push_back('i');
      } else if (letter == 'm') {  // "." takes line feeds
        letters[is_off].push_back('s');
      } else if (letter != 'x' || !is_off) {
        return Refuse(absl::StrCat("a group that begins with '", opening, "'"));
      }
    }
    const std::string options =
        absl::StrCat("(?", letters[0], letters[1].empty() ? "" : "-", letters[1]);
    if (Take(":")) {
      BeginGroup(group, absl::StrCat(options, ":"));
      return Ok();
    }
    // Oniguruma takes all alternatives that follow into the scope of the option, and so into the
    // branch in which it stands.
    if (!begins_branch_) return Refuse("an option in the middle of a branch");
    ++position_;
    groups_.back().is_caseless = group.is_caseless;
    absl::StrAppend(&out_, options, ")");
    return Ok();
  }

  absl::Status CloseGroup() {
    ++position_;
    absl::StrAppend(&out_, ")");
    if (groups_.size() > 1) {
      atom_begin_ = groups_.back().out_begin;
      groups_.pop_back();
    }
    last_ = Last::kAtom;
    begins_branch_ = false;
    return Ok();
  }

  absl::Status BeginBranch() {
    ++position_;
    absl::StrAppend(&out_, "|");
    last_ = Last::kNothing;
    begins_branch_ = true;
    folding_ = '\0';
    return Ok();
  }

  absl::Status Repetition() {
    if (last_ == Last::kRepetition) return Refuse("a repetition of a repetition");
    size_t length = 1;
    if (Peek(1) == '?' || Peek(1) == '+') ++length;  // lazy, possessive
    AppendRepetition(Rest().substr(0, length));
    position_ += length;
    return Ok();
  }

  void AppendRepetition(absl::string_view text) {
    absl::StrAppend(&out_, text);
    last_ = Last::kRepetition;
    begins_branch_ = false;
    folding_ = '\0';
  }

  absl::string_view TakeDigits() {
    const size_t begin = position_;
    while (absl::ascii_isdigit(static_cast<unsigned char>(Peek()))) ++position_;
    return pattern_.substr(begin, position_ - begin);
  }

  /// {n}, {n,}, {,m} and {n,m}; a brace that begins none of them stands for itself.
  absl::Status IntervalOrBrace() {
    const size_t begin = position_++;
    const absl::string_view low = TakeDigits();
    const bool has_comma = Take(",");
    const absl::string_view high = has_comma ? TakeDigits() : absl::string_view();
    if ((low.empty() && high.empty()) || !Take("}")) {
      position_ = begin + 1;
      return Literal('{');
    }
    if (last_ == Last::kRepetition) return Refuse("a repetition of a repetition");
    const std::string interval =
        absl::StrCat("{", low.empty() ? "0" : low, has_comma ? "," : "", high, "}");
    if (has_comma && Take("?")) {
      AppendRepetition(absl::StrCat(interval, "?"));
    } else if (last_ == Last::kAtom && absl::StrContains("*+?{", Peek())) {
      // Here "+" does not make the interval possessive, nor "?" a fixed one lazy: they repeat it.
      out_.insert(atom_begin_, "(?:");
      absl::StrAppend(&out_, interval, ")");
    } else {
      AppendRepetition(interval);
    }
    return Ok();
  }

  absl::Status Escape() {
    if (const std::optional<absl::StatusOr<char32_t>> character = TakeEscapedCharacter()) {
      return character->ok() ? Literal(**character) : character->status();
    }
    const char c = Peek(1);
    const std::string word = absl::StrCat("[", kWordMembers, kWordMembersOutside, "]");
    switch (c) {
      case 'A':
      case 'Z':
      case 'z':
        AppendAtom(Rest().substr(0, 2));
        break;
      case 'b':
        AppendAtom(absl::StrCat("(?:(?<=", word, ")(?!", word, ")|(?<!", word, ")(?=", word, "))"));
        break;
      case 'B':
        AppendAtom(absl::StrCat("(?:(?<=", word, ")(?=", word, ")|(?<!", word, ")(?!", word, "))"));
        break;
      case 'w':
        AppendAtom(word);
        break;
      case 'W':
        AppendAtom(absl::StrCat("[^", kWordMembers, kWordMembersOutside, "]"));
        break;
      default: {
        absl::StatusOr<Set> set = TakeSet();
        if (!set.ok()) return set.status();
        AppendAtom(IsOneProperty(set->members)
                       ? Negated(*set)
                       : absl::StrCat(set->is_negated ? "[^" : "[", set->members, "]"));
        return Ok();
      }
    }
    position_ += 2;
    return Ok();
  }

  /// The character that an escape stands for, in and outside classes. Nothing, and the position as
  /// it was, where it stands for something else.
  std::optional<absl::StatusOr<char32_t>> TakeEscapedCharacter() {
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

  /// \uHHHH, \x{H...}, \xHH
  absl::StatusOr<char32_t> TakeCode() {
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

  /// Members of a class, and whether the others are meant.
  struct Set {
    std::string members;
    bool is_negated = false;
  };
  static std::string Negated(const Set& set) {
    std::string members = set.members;
    if (set.is_negated) members[1] = 'P';
    return members;
  }

  /// \s, \d, \h, \p{...} and their opposites.
  absl::StatusOr<Set> TakeSet() {
    const char c = Peek(1);
    if (c == 'p' || c == 'P') return TakeProperty();
    const bool is_negated = absl::ascii_isupper(static_cast<unsigned char>(c));
    Set set{"", is_negated};
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

  absl::StatusOr<Set> TakeProperty() {
    const absl::string_view rest = Rest();
    const size_t end = rest.find('}');
    if (rest.substr(2, 1) != "{" || end == absl::string_view::npos) {
      return Refuse(absl::StrCat("'", rest.substr(0, 2), "' without braces"));
    }
    if (is_caseless()) return Refuse("a property without regard to case");
    absl::string_view name = rest.substr(3, end - 3);
    Set set{"", rest[1] == 'P'};
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

  absl::Status Class() {
    ++position_;
    std::string text = Take("^") ? "[^" : "[";
    if (is_caseless() && text.size() > 1) return Refuse("a negated class without regard to case");
    // A bracket that closes at once would be an empty class: it stands for itself.
    if (Take("]")) text.append("\\]");
    while (Peek() != ']') {
      if (position_ == pattern_.size()) return Refuse("a class that does not end");
      if (absl::Status status = Members(&text); !status.ok()) return status;
    }
    ++position_;
    AppendAtom(absl::StrCat(text, "]"));
    return Ok();
  }

  bool IsAtRange() const { return Peek() == '-' && Peek(1) != ']'; }

  /// One character, range or set of a class.
  absl::Status Members(std::string* text) {
    if (Rest().substr(0, 2) == "&&") return Refuse("the intersection of classes");
    if (Rest().substr(0, 2) == "--") return Refuse("'--' in a class");
    const absl::StatusOr<std::optional<char32_t>> first = TakeMember(text);
    if (!first.ok()) return first.status();
    bool may_begin_range = first->has_value();
    if (may_begin_range) {
      text->append(Escaped(**first));
      if (IsAtRange()) {
        ++position_;
        if (Peek() == '-') return Refuse("'--' in a class");
        const absl::StatusOr<std::optional<char32_t>> last = TakeMember(text);
        if (!last.ok()) return last.status();
        if (!last->has_value()) return Refuse("a range that ends in a class");
        if (is_caseless() && **last >= 0x80) return Refuse("a range without regard to case");
        absl::StrAppend(text, "-", Escaped(**last));
        may_begin_range = false;
      }
    }
    if (!may_begin_range && IsAtRange()) return Refuse("a range that begins in a class or range");
    return Ok();
  }

  /// A character, or nothing where a set was appended instead.
  absl::StatusOr<std::optional<char32_t>> TakeMember(std::string* text) {
    absl::StatusOr<Set> set = Set();
    if (Peek() == '[') {
      set = TakePosixSet();
    } else if (Peek() != '\\') {
      return TakenMember(TakeCharacter());
    } else if (const auto character = TakeEscapedCharacter()) {
      return character->ok() ? TakenMember(**character) : character->status();
    } else if (Take("\\b")) {
      return TakenMember('\b');
    } else if (Peek(1) == 'w' || Peek(1) == 'W') {
      set = Set{std::string(kWordMembers), Peek(1) == 'W'};
      position_ += 2;
    } else {
      set = TakeSet();
    }
    if (!set.ok()) return set.status();
    if (is_caseless()) return Refuse("a class inside a class without regard to case");
    if (set->is_negated && !IsOneProperty(set->members)) {
      return Refuse("the opposite of several sets (as \\W) inside a class");
    }
    text->append(Negated(*set));
    return std::optional<char32_t>();
  }

  absl::StatusOr<std::optional<char32_t>> TakenMember(char32_t character) const {
    if (is_caseless()) {
      if (absl::Status status = CheckFolding(character); !status.ok()) return status;
    }
    return std::optional<char32_t>(character);
  }

  /// [:name:] or [:^name:]
  absl::StatusOr<Set> TakePosixSet() {
    const size_t end = Rest().find(":]");
    if (Peek(1) != ':' || end == absl::string_view::npos) return Refuse("a class inside a class");
    absl::string_view name = Rest().substr(2, end - 2);
    Set set{"", name.substr(0, 1) == "^"};
    if (set.is_negated) name.remove_prefix(1);
    const std::optional<std::string> members = PosixSetMembers(name);
    if (!members.has_value()) return Refuse(absl::StrCat("the class '[:", name, ":]'"));
    set.members = *members;
    position_ += end + 2;
    return set;
  }

  absl::string_view pattern_;
  size_t position_ = 0;
  std::string out_;
  std::vector<Group> groups_ = {Group()};  ///< the whole pattern, then those that are open
  size_t atom_begin_ = 0;                  ///< in out_, of what a repetition would repeat
  Last last_ = Last::kNothing;
  bool begins_branch_ = true;
  char folding_ = '\0';  ///< the last literal character, where case does not matter; in lower case
};

}  // namespace

absl::StatusOr<std::string> TranslatePattern(std::string_view pattern) {
  return Translator(pattern).Run();
}

}  // namespace ziggurat

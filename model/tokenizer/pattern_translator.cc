#include "model/tokenizer/pattern_translator.h"

#include <utf8proc.h>

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "model/tokenizer/character_sets.h"
#include "model/tokenizer/pattern_reader.h"
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

/// What stands in a class for the set: one that is negated must be of one property.
std::string MembersOf(const CharacterSet& set) {
  std::string members = set.members;
  if (set.is_negated) members[1] = 'P';
  return members;
}

/// Reads a pattern from left to right, element by element, and writes the same for PCRE2.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : reader_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (!reader_.is_at_end()) {
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
  bool is_caseless() const { return groups_.back().is_caseless; }

  absl::Status Element() {
    switch (reader_.Peek()) {
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
        AppendAtom(reader_.TakeBytes(1));
        return Ok();
      default:
        return Literal(reader_.TakeCharacter());
    }
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
            return reader_.Refuse(absl::StrCat("'", pair, "' without regard to case"));
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
    return reader_.Refuse("a character beyond ASCII without regard to case");
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
    if (reader_.Rest().substr(0, 2) == "(*") return reader_.Refuse("a callout '(*'");
    const Group group{out_.size(), is_caseless()};
    for (const absl::string_view opening : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "("}) {
      if (opening == "(" && reader_.Peek(1) == '?') return Options(group);
      if (!reader_.Take(opening)) continue;
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
    const absl::string_view opening = reader_.Rest().substr(0, 4);
    std::array<std::string, 2> letters;  // those switched on, those switched off
    bool is_off = false;
    for (reader_.Skip(2); reader_.Peek() != ')' && reader_.Peek() != ':'; reader_.Skip(1)) {
      const char letter = reader_.Peek();
      if (letter == '-' && !is_off) {
        is_off = true;
      } else if (letter == 'i') {
        group.is_caseless = !is_off;
        letters[is_off].push_back('i');
      } else if (letter == 'm') {  // "." takes line feeds
        letters[is_off].push_back('s');
      } else if (letter != 'x' || !is_off) {
        return reader_.Refuse(absl::StrCat("a group that begins with '", opening, "'"));
      }
    }
    const std::string options =
        absl::StrCat("(?", letters[0], letters[1].empty() ? "" : "-", letters[1]);
    if (reader_.Take(":")) {
      BeginGroup(group, absl::StrCat(options, ":"));
      return Ok();
    }
    // Oniguruma takes all alternatives that follow into the scope of the option, and so into the
    // branch in which it stands.
    if (!begins_branch_) return reader_.Refuse("an option in the middle of a branch");
    reader_.Skip(1);
    groups_.back().is_caseless = group.is_caseless;
    absl::StrAppend(&out_, options, ")");
    return Ok();
  }

  absl::Status CloseGroup() {
    reader_.Skip(1);
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
    reader_.Skip(1);
    absl::StrAppend(&out_, "|");
    last_ = Last::kNothing;
    begins_branch_ = true;
    folding_ = '\0';
    return Ok();
  }

  absl::Status Repetition() {
    if (last_ == Last::kRepetition) return reader_.Refuse("a repetition of a repetition");
    size_t length = 1;
    if (reader_.Peek(1) == '?' || reader_.Peek(1) == '+') ++length;  // lazy, possessive
    AppendRepetition(reader_.TakeBytes(length));
    return Ok();
  }

  void AppendRepetition(absl::string_view text) {
    absl::StrAppend(&out_, text);
    last_ = Last::kRepetition;
    begins_branch_ = false;
    folding_ = '\0';
  }

  /// {n}, {n,}, {,m} and {n,m}; a brace that begins none of them stands for itself.
  absl::Status IntervalOrBrace() {
    const size_t begin = reader_.position();
    reader_.Skip(1);
    const absl::string_view low = reader_.TakeDigits();
    const bool has_comma = reader_.Take(",");
    const absl::string_view high = has_comma ? reader_.TakeDigits() : absl::string_view();
    if ((low.empty() && high.empty()) || !reader_.Take("}")) {
      reader_.MoveTo(begin + 1);
      return Literal('{');
    }
    if (last_ == Last::kRepetition) return reader_.Refuse("a repetition of a repetition");
    const std::string interval =
        absl::StrCat("{", low.empty() ? "0" : low, has_comma ? "," : "", high, "}");
    if (has_comma && reader_.Take("?")) {
      AppendRepetition(absl::StrCat(interval, "?"));
    } else if (last_ == Last::kAtom && absl::StrContains("*+?{", reader_.Peek())) {
      // Here "+" does not make the interval possessive, nor "?" a fixed one lazy: they repeat it.
      out_.insert(atom_begin_, "(?:");
      absl::StrAppend(&out_, interval, ")");
    } else {
      AppendRepetition(interval);
    }
    return Ok();
  }

  absl::Status Escape() {
    if (const std::optional<absl::StatusOr<char32_t>> character = reader_.TakeEscapedCharacter()) {
      return character->ok() ? Literal(**character) : character->status();
    }
    const char c = reader_.Peek(1);
    const std::string word = absl::StrCat("[", kWordMembers, kWordMembersOutside, "]");
    switch (c) {
      case 'A':
      case 'Z':
      case 'z':
        AppendAtom(reader_.Rest().substr(0, 2));
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
        absl::StatusOr<CharacterSet> set = reader_.TakeSet(is_caseless());
        if (!set.ok()) return set.status();
        AppendAtom(IsOneProperty(set->members)
                       ? MembersOf(*set)
                       : absl::StrCat(set->is_negated ? "[^" : "[", set->members, "]"));
        return Ok();
      }
    }
    reader_.Skip(2);
    return Ok();
  }

  absl::Status Class() {
    reader_.Skip(1);
    std::string text = reader_.Take("^") ? "[^" : "[";
    if (is_caseless() && text.size() > 1) {
      return reader_.Refuse("a negated class without regard to case");
    }
    if (absl::Status status = ClassBody(&text); !status.ok()) return status;
    AppendAtom(absl::StrCat(text, "]"));
    return Ok();
  }

  /// What stands between the brackets of a class, and the one that closes it.
  absl::Status ClassBody(std::string* text) {
    // A bracket that closes at once would be an empty class: it stands for itself.
    if (reader_.Take("]")) text->append("\\]");
    while (reader_.Peek() != ']') {
      if (reader_.is_at_end()) return reader_.Refuse("a class that does not end");
      if (absl::Status status = Members(text); !status.ok()) return status;
    }
    reader_.Skip(1);
    return Ok();
  }

  /// A class inside a class, whose members become the outer one's.
  absl::Status InnerClass(std::string* text) {
    if (is_caseless()) return reader_.Refuse("a class inside a class without regard to case");
    if (reader_.Peek(1) == '^') return reader_.Refuse("a negated class inside a class");
    if (class_depth_ == kMaxClassDepth) return reader_.Refuse("classes that lie too deep");
    ++class_depth_;
    reader_.Skip(1);
    absl::Status status = ClassBody(text);
    --class_depth_;
    return status;
  }

  bool IsAtRange() const { return reader_.Peek() == '-' && reader_.Peek(1) != ']'; }

  /// One character, range or set of a class.
  absl::Status Members(std::string* text) {
    if (reader_.Rest().substr(0, 2) == "&&") return reader_.Refuse("the intersection of classes");
    if (reader_.Rest().substr(0, 2) == "--") return reader_.Refuse("'--' in a class");
    const absl::StatusOr<std::optional<char32_t>> first = TakeMember(text);
    if (!first.ok()) return first.status();
    bool may_begin_range = first->has_value();
    if (may_begin_range) {
      text->append(Escaped(**first));
      if (IsAtRange()) {
        reader_.Skip(1);
        if (reader_.Peek() == '-') return reader_.Refuse("'--' in a class");
        const absl::StatusOr<std::optional<char32_t>> last = TakeMember(text);
        if (!last.ok()) return last.status();
        if (!last->has_value()) return reader_.Refuse("a range that ends in a class");
        if (is_caseless() && **last >= 0x80) {
          return reader_.Refuse("a range without regard to case");
        }
        absl::StrAppend(text, "-", Escaped(**last));
        may_begin_range = false;
      }
    }
    if (!may_begin_range && IsAtRange()) {
      return reader_.Refuse("a range that begins in a class or range");
    }
    return Ok();
  }

  /// A character, or nothing where a set was appended instead.
  absl::StatusOr<std::optional<char32_t>> TakeMember(std::string* text) {
    absl::StatusOr<CharacterSet> set = CharacterSet();
    if (reader_.IsAtPosixSet()) {
      set = reader_.TakePosixSet();
    } else if (reader_.Peek() == '[') {
      if (absl::Status status = InnerClass(text); !status.ok()) return status;
      return std::optional<char32_t>();
    } else if (reader_.Peek() != '\\') {
      return TakenMember(reader_.TakeCharacter());
    } else if (const auto character = reader_.TakeEscapedCharacter()) {
      return character->ok() ? TakenMember(**character) : character->status();
    } else if (reader_.Take("\\b")) {
      return TakenMember('\b');
    } else if (reader_.Peek(1) == 'w' || reader_.Peek(1) == 'W') {
      set = CharacterSet{std::string(kWordMembers), reader_.Peek(1) == 'W'};
      reader_.Skip(2);
    } else {
      set = reader_.TakeSet(is_caseless());
    }
    if (!set.ok()) return set.status();
    if (is_caseless()) return reader_.Refuse("a class inside a class without regard to case");
    if (set->is_negated && !IsOneProperty(set->members)) {
      return reader_.Refuse("the opposite of several sets (as \\W) inside a class");
    }
    text->append(MembersOf(*set));
    return std::optional<char32_t>();
  }

  absl::StatusOr<std::optional<char32_t>> TakenMember(char32_t character) const {
    if (is_caseless()) {
      if (absl::Status status = CheckFolding(character); !status.ok()) return status;
    }
    return std::optional<char32_t>(character);
  }

  static constexpr int kMaxClassDepth = 16;
  PatternReader reader_;
  std::string out_;
  int class_depth_ = 0;                    ///< of classes inside a class
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

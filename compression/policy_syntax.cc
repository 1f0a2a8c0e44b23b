#include "compression/policy_syntax.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"

namespace ziggurat {
namespace {

constexpr size_t kShownBytes = 72;   // of the text, around the column
constexpr size_t kQuotedBytes = 40;  // of one word

std::string MakePrintable(std::string_view text) {
  std::string printable(text);
  for (char& c : printable) {
    if (absl::ascii_isspace(static_cast<unsigned char>(c))) c = ' ';
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  return printable;
}

bool IsNameStart(char c) { return absl::ascii_isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool IsNameByte(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_'; }
bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool IsValueByte(char c) { return !IsSpace(c) && c != '(' && c != ')' && c != ',' && c != '='; }

/// Recursive descent over one text; every Read... starts by skipping space.
class SyntaxParser {
 public:
  explicit SyntaxParser(std::string_view text) : text_(text) {}

  absl::StatusOr<std::vector<TermSyntax>> ReadText() {
    std::vector<TermSyntax> terms;
    do {
      absl::StatusOr<TermSyntax> term = ReadTerm();
      if (!term.ok()) return term.status();
      terms.push_back(*std::move(term));
    } while (Take('+'));
    SkipSpace();
    if (position_ < text_.size()) {
      return Fail(terms.back().has_parentheses ? "'+' or the end of the text"
                                               : "'(', '+' or the end of the text");
    }
    return terms;
  }

 private:
  absl::StatusOr<TermSyntax> ReadTerm() {
    TermSyntax term;
    if (!ReadName(&term.name, &term.column)) return Fail("the name of a policy");
    if (!Take('(')) return term;
    term.has_parentheses = true;
    const size_t open_column = position_;
    if (Take(')')) return term;
    do {
      absl::StatusOr<ArgumentSyntax> argument = ReadArgument(term.name);
      if (!argument.ok()) return argument.status();
      term.arguments.push_back(*argument);
    } while (Take(','));
    if (!Take(')')) {
      return Fail(fmt::format("',' or the ')' that closes the '(' of column {}", open_column));
    }
    return term;
  }

  absl::StatusOr<ArgumentSyntax> ReadArgument(std::string_view policy) {
    ArgumentSyntax argument;
    if (!ReadName(&argument.name, &argument.name_column)) {
      return Fail(fmt::format("the name of a parameter of {}", QuoteForMessage(policy)));
    }
    if (!Take('=')) return Fail(fmt::format("'=' after {}", QuoteForMessage(argument.name)));
    SkipSpace();
    const size_t begin = position_;
    while (position_ < text_.size() && IsValueByte(text_[position_])) ++position_;
    if (position_ == begin)
      return Fail(fmt::format("a value of {}", QuoteForMessage(argument.name)));
    argument.value = text_.substr(begin, position_ - begin);
    argument.value_column = begin + 1;
    return argument;
  }

  bool ReadName(std::string_view* name, size_t* column) {
    SkipSpace();
    const size_t begin = position_;
    if (begin == text_.size() || !IsNameStart(text_[begin])) return false;
    while (position_ < text_.size() && IsNameByte(text_[position_])) ++position_;
    *name = text_.substr(begin, position_ - begin);
    *column = begin + 1;
    return true;
  }

  bool Take(char c) {
    SkipSpace();
    if (position_ == text_.size() || text_[position_] != c) return false;
    ++position_;
    return true;
  }

  void SkipSpace() {
    while (position_ < text_.size() && IsSpace(text_[position_])) ++position_;
  }

  std::string DescribeByte() const {
    if (position_ == text_.size()) return "the end of the text";
    const auto byte = static_cast<unsigned char>(text_[position_]);
    if (!absl::ascii_isprint(byte)) return fmt::format("byte 0x{:02x}", byte);
    return QuoteForMessage(text_.substr(position_, 1));
  }

  absl::Status Fail(std::string_view expected) const {
    const std::string found = DescribeByte();
    return PolicyTextError(text_, position_ + 1,
                           fmt::format("found {}, expected {}", found, expected));
  }

  std::string_view text_;
  size_t position_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<TermSyntax>> ParsePolicySyntax(std::string_view text) {
  if (text.size() > kMaxPolicyTextBytes) {
    return PolicyTextError(text, kMaxPolicyTextBytes + 1,
                           fmt::format("the text has {} bytes, at most {} are allowed", text.size(),
                                       kMaxPolicyTextBytes));
  }
  return SyntaxParser(text).ReadText();
}

absl::Status PolicyTextError(std::string_view text, size_t column, std::string_view message) {
  const size_t at = std::min(column - 1, text.size());
  const size_t begin = at > kShownBytes / 2 ? at - kShownBytes / 2 : 0;
  const std::string_view shown = text.substr(begin, kShownBytes);
  const std::string_view before = begin > 0 ? "..." : "";
  const std::string_view after = begin + shown.size() < text.size() ? "..." : "";
  return absl::InvalidArgumentError(
      fmt::format("compression policy, column {}: {}\n  {}{}{}\n  {}^", column, message, before,
                  MakePrintable(shown), after, std::string(before.size() + at - begin, ' ')));
}

std::string QuoteForMessage(std::string_view text) {
  return fmt::format("'{}{}'", MakePrintable(text.substr(0, kQuotedBytes)),
                     text.size() > kQuotedBytes ? "..." : "");
}

}  // namespace ziggurat

#include "model/tokenizer/replacement.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "model/tokenizer/json_reader.h"
#include "model/tokenizer/utf8.h"

namespace ziggurat {

absl::StatusOr<Regex> ParsePattern(const nlohmann::json& component, absl::string_view where) {
  const nlohmann::json& pattern = Member(component, "pattern");
  const nlohmann::json& literal = Member(pattern, "String");
  const nlohmann::json& regex = Member(pattern, "Regex");
  const nlohmann::json& text = literal.is_string() ? literal : regex;
  if (!text.is_string() || text.get_ref<const std::string&>().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"pattern\" of ", where, " must be {\"String\": ...} or {\"Regex\": ...}, not empty"));
  }
  const std::string& content = text.get_ref<const std::string&>();
  return literal.is_string() ? Regex::Literal(content) : Regex::Compile(content);
}

namespace {

/// Whether a pattern is one character that stands for itself.
bool IsSingleCharacter(const nlohmann::json& pattern) {
  const nlohmann::json& literal = Member(pattern, "String");
  const nlohmann::json& text = literal.is_string() ? literal : Member(pattern, "Regex");
  const std::string& content = text.get_ref<const std::string&>();
  size_t end = 0;
  ReadUtf8(content, &end);
  constexpr std::string_view kOperators = ".^$*+?()[]{}|\\";
  return end == content.size() &&
         (literal.is_string() || kOperators.find(content[0]) == std::string_view::npos);
}

}  // namespace

Replacement::Replacement(Regex pattern, std::string content, bool is_single_character)
    : pattern_(std::move(pattern)),
      content_(std::move(content)),
      is_single_character_(is_single_character) {}

absl::StatusOr<Replacement> Replacement::Parse(const nlohmann::json& component) {
  absl::StatusOr<Regex> pattern = ParsePattern(component, "Replace");
  if (!pattern.ok()) return pattern.status();
  absl::StatusOr<std::string> content = StringMember(component, "content", "", "Replace");
  if (!content.ok()) return content.status();
  return Replacement(*std::move(pattern), *std::move(content),
                     IsSingleCharacter(Member(component, "pattern")));
}

absl::Status Replacement::Apply(std::string* text) const {
  std::vector<ByteRange> matches;
  if (absl::Status status = pattern_.FindAll(*text, &matches); !status.ok()) return status;
  if (matches.empty()) return absl::OkStatus();
  // A few that follow each other, "a" by "aa", make of one letter more than any memory holds.
  constexpr size_t kMostBytes = size_t{1} << 28;
  if (text->size() + matches.size() * content_.size() > kMostBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("Replace makes more than ", kMostBytes, " bytes of a text"));
  }
  std::string replaced;
  replaced.reserve(text->size());
  size_t done = 0;
  for (const ByteRange& match : matches) {
    replaced.append(*text, done, match.begin - done).append(content_);
    done = match.end;
  }
  replaced.append(*text, done);
  *text = std::move(replaced);
  return absl::OkStatus();
}

}  // namespace ziggurat

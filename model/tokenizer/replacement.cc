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

Replacement::Replacement(Regex pattern, std::string content, bool is_single_character)
    : pattern_(std::move(pattern)),
      content_(std::move(content)),
      is_single_character_(is_single_character) {}

absl::StatusOr<Replacement> Replacement::Parse(const nlohmann::json& component) {
  absl::StatusOr<Regex> pattern = ParsePattern(component, "Replace");
  if (!pattern.ok()) return pattern.status();
  absl::StatusOr<std::string> content = StringMember(component, "content", "", "Replace");
  if (!content.ok()) return content.status();
  const nlohmann::json& literal = Member(Member(component, "pattern"), "String");
  bool is_single_character = false;
  if (literal.is_string()) {
    size_t end = 0;
    ReadUtf8(literal.get_ref<const std::string&>(), &end);
    is_single_character = end == literal.get_ref<const std::string&>().size();
  }
  return Replacement(*std::move(pattern), *std::move(content), is_single_character);
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

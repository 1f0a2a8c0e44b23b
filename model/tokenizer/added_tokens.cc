#include "model/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "model/tokenizer/utf8.h"

namespace ziggurat {
namespace {

/// The character that begins at `begin`, or ends at `end`; empty at the borders of the text.
std::string_view CharacterFrom(std::string_view text, size_t begin) {
  size_t end = begin;
  if (end < text.size()) ++end;
  while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
  return text.substr(begin, end - begin);
}

std::string_view CharacterBefore(std::string_view text, size_t end) {
  const size_t begin = end == 0 ? 0 : CharacterBegin(text, end - 1);
  return text.substr(begin, end - begin);
}

/// White_Space of Unicode.
bool IsWhiteSpace(std::string_view character) {
  size_t position = 0;
  const char32_t c = character.empty() ? 0 : ReadUtf8(character, &position);
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

/// Where the white space directly before `end` begins, no earlier than `first`.
size_t SpacesBefore(std::string_view text, size_t first, size_t end) {
  while (end > first) {
    const std::string_view character = CharacterBefore(text, end);
    if (!IsWhiteSpace(character)) break;
    end -= character.size();
  }
  return std::max(end, first);
}

/// Where the white space directly behind `begin` ends.
size_t SpacesBehind(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    const std::string_view character = CharacterFrom(text, begin);
    if (!IsWhiteSpace(character)) break;
    begin += character.size();
  }
  return begin;
}

absl::StatusOr<bool> Matches(const Regex& regex, std::string_view character) {
  std::vector<ByteRange> matches;
  if (absl::Status status = regex.FindAll(character, &matches); !status.ok()) return status;
  return !matches.empty();
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(Regex word) : word_(std::move(word)) {}

absl::StatusOr<AddedTokenMatcher> AddedTokenMatcher::Create() {
  absl::StatusOr<Regex> word = Regex::Compile("[\\w\\p{Join_Control}]");
  if (!word.ok()) return word.status();
  return AddedTokenMatcher(*std::move(word));
}

void AddedTokenMatcher::Add(const AddedToken& token, std::string_view pattern) {
  // The first of two equal patterns is the one found.
  if (patterns_.Add(pattern, static_cast<int32_t>(tokens_.size()))) tokens_.push_back(token);
}

absl::StatusOr<bool> AddedTokenMatcher::IsInsideWord(std::string_view text, ByteRange range) const {
  absl::StatusOr<bool> before = Matches(word_, CharacterBefore(text, range.begin));
  if (!before.ok() || *before) return before;
  return Matches(word_, CharacterFrom(text, range.end));
}

absl::StatusOr<std::vector<TextSection>> AddedTokenMatcher::Split(std::string_view text,
                                                                  bool parse_special) const {
  std::vector<TextSection> sections;
  size_t done = 0;  // what lies before belongs to a section already
  size_t position = 0;
  size_t spaces_end = 0;  // of the run of white space that was looked at last
  while (!tokens_.empty() && position < text.size()) {
    const PrefixTrie::Match match = patterns_.Longest(text.substr(position));
    if (match.value == PrefixTrie::kNone) {
      ++position;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(match.value)];
    ByteRange range{position, position + match.length};
    position = range.end;  // even a match that is dropped below is not searched again
    if (token.special && !parse_special) continue;
    if (token.single_word) {
      const absl::StatusOr<bool> inside = IsInsideWord(text, range);
      if (!inside.ok()) return inside.status();
      if (*inside) continue;
    }
    if (token.lstrip) range.begin = SpacesBefore(text, done, range.begin);
    if (token.rstrip) {
      // Tokens may be of white space themselves: a run of it is walked through once.
      if (range.end >= spaces_end) spaces_end = SpacesBehind(text, range.end);
      range.end = spaces_end;
    }
    if (done < range.begin) sections.push_back({{done, range.begin}});
    // White space that the token before took may be a token of its own: nothing is left of it, and
    // what it took itself begins anew where it ends, as in Hugging Face's library.
    if (range.begin < range.end) sections.push_back({range, token.id});
    done = range.end;
  }
  if (done < text.size()) sections.push_back({{done, text.size()}});
  return sections;
}

}  // namespace ziggurat

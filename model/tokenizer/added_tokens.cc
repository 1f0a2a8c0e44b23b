#include "model/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

namespace ziggurat {
namespace {

uint64_t EdgeKey(int32_t node, char byte) {
  return (uint64_t{static_cast<uint32_t>(node)} << 8) | static_cast<unsigned char>(byte);
}

/// The character that begins at `begin`, or ends at `end`; empty at the borders of the text.
std::string_view CharacterFrom(std::string_view text, size_t begin) {
  size_t end = begin;
  if (end < text.size()) ++end;
  while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
  return text.substr(begin, end - begin);
}

std::string_view CharacterBefore(std::string_view text, size_t end) {
  size_t begin = end;
  if (begin > 0) --begin;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return text.substr(begin, end - begin);
}

absl::StatusOr<bool> Matches(const Regex& regex, std::string_view character) {
  std::vector<ByteRange> matches;
  if (absl::Status status = regex.FindAll(character, &matches); !status.ok()) return status;
  return !matches.empty();
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(Regex word, Regex spaces)
    : token_at_node_(1, -1),
      begins_pattern_(256, false),
      word_(std::move(word)),
      space_(std::move(spaces)) {}

absl::StatusOr<AddedTokenMatcher> AddedTokenMatcher::Create() {
  absl::StatusOr<Regex> word = Regex::Compile("[\\w\\p{Join_Control}]");
  if (!word.ok()) return word.status();
  absl::StatusOr<Regex> space = Regex::Compile("\\s");
  if (!space.ok()) return space.status();
  return AddedTokenMatcher(*std::move(word), *std::move(space));
}

void AddedTokenMatcher::Add(const AddedToken& token, std::string_view pattern) {
  if (pattern.empty()) return;
  int32_t node = 0;
  for (const char byte : pattern) {
    const int32_t next = static_cast<int32_t>(token_at_node_.size());
    const auto [edge, is_new] = edges_.try_emplace(EdgeKey(node, byte), next);
    if (is_new) token_at_node_.push_back(-1);
    node = edge->second;
  }
  int32_t& token_index = token_at_node_[static_cast<size_t>(node)];
  if (token_index >= 0) return;  // the first of two equal patterns is the one found
  token_index = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
  begins_pattern_[static_cast<unsigned char>(pattern[0])] = true;
}

int AddedTokenMatcher::LongestAt(std::string_view text, size_t position, size_t* length) const {
  int longest = -1;
  int32_t node = 0;
  for (size_t i = position; i < text.size(); ++i) {
    const auto edge = edges_.find(EdgeKey(node, text[i]));
    if (edge == edges_.end()) break;
    node = edge->second;
    if (token_at_node_[static_cast<size_t>(node)] >= 0) {
      longest = token_at_node_[static_cast<size_t>(node)];
      *length = i + 1 - position;
    }
  }
  return longest;
}

absl::StatusOr<bool> AddedTokenMatcher::IsInsideWord(std::string_view text, ByteRange range) const {
  absl::StatusOr<bool> before = Matches(word_, CharacterBefore(text, range.begin));
  if (!before.ok() || *before) return before;
  return Matches(word_, CharacterFrom(text, range.end));
}

absl::StatusOr<size_t> AddedTokenMatcher::SpacesBefore(std::string_view text, size_t end) const {
  size_t begin = end;
  while (begin > 0) {
    const std::string_view character = CharacterBefore(text, begin);
    const absl::StatusOr<bool> is_space = Matches(space_, character);
    if (!is_space.ok()) return is_space.status();
    if (!*is_space) break;
    begin -= character.size();
  }
  return end - begin;
}

absl::StatusOr<size_t> AddedTokenMatcher::SpacesBehind(std::string_view text, size_t begin) const {
  size_t end = begin;
  while (end < text.size()) {
    const std::string_view character = CharacterFrom(text, end);
    const absl::StatusOr<bool> is_space = Matches(space_, character);
    if (!is_space.ok()) return is_space.status();
    if (!*is_space) break;
    end += character.size();
  }
  return end - begin;
}

absl::StatusOr<std::vector<TextSection>> AddedTokenMatcher::Split(std::string_view text,
                                                                  bool parse_special) const {
  std::vector<TextSection> sections;
  size_t done = 0;  // what lies before belongs to a section already
  size_t position = 0;
  while (!tokens_.empty() && position < text.size()) {
    size_t length = 0;
    const int index = begins_pattern_[static_cast<unsigned char>(text[position])]
                          ? LongestAt(text, position, &length)
                          : -1;
    if (index < 0) {
      ++position;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    ByteRange range{position, position + length};
    position = range.end;  // even a match that is dropped below is not searched again
    if (token.special && !parse_special) continue;
    if (token.single_word) {
      const absl::StatusOr<bool> inside = IsInsideWord(text, range);
      if (!inside.ok()) return inside.status();
      if (*inside) continue;
    }
    if (token.lstrip) {
      const absl::StatusOr<size_t> spaces = SpacesBefore(text, range.begin);
      if (!spaces.ok()) return spaces.status();
      range.begin = std::max(range.begin - *spaces, done);
    }
    if (token.rstrip) {
      const absl::StatusOr<size_t> spaces = SpacesBehind(text, range.end);
      if (!spaces.ok()) return spaces.status();
      range.end += *spaces;
    }
    if (done < range.begin) sections.push_back({{done, range.begin}});
    sections.push_back({range, token.id});
    done = std::max(done, range.end);
  }
  if (done < text.size()) sections.push_back({{done, text.size()}});
  return sections;
}

}  // namespace ziggurat

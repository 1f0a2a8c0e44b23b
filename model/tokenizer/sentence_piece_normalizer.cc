#include "model/tokenizer/sentence_piece_normalizer.h"

#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "model/tokenizer/utf8.h"

namespace ziggurat {
namespace {

constexpr std::string_view kSpaceSymbol = "\u2581";

// A unit of the double array: a label, the offset of its children, or the value of a leaf.
bool HasLeaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t Value(uint32_t unit) { return unit & 0x7FFFFFFFu; }
uint32_t Label(uint32_t unit) { return unit & 0x800000FFu; }
uint32_t Offset(uint32_t unit) { return unit >> 10 << ((unit & 0x200u) >> 6); }

}  // namespace

absl::StatusOr<SentencePieceNormalizer> SentencePieceNormalizer::Create(
    const SentencePieceProto& proto) {
  SentencePieceNormalizer normalizer;
  normalizer.add_dummy_prefix_ = proto.add_dummy_prefix;
  normalizer.remove_extra_whitespaces_ = proto.remove_extra_whitespaces;
  normalizer.escape_whitespaces_ = proto.escape_whitespaces;
  for (const SentencePieceProto::Piece& piece : proto.pieces) {
    if (piece.type == PieceType::kUserDefined) normalizer.user_defined_.Add(piece.text, 0);
  }

  // The table: bytes of the trie as u32, the trie, the replacements.
  const std::string_view table = proto.precompiled_charsmap;
  if (table.empty()) return normalizer;
  uint32_t trie_bytes = 0;
  if (table.size() > sizeof(trie_bytes)) std::memcpy(&trie_bytes, table.data(), sizeof(trie_bytes));
  if (trie_bytes == 0 || trie_bytes % sizeof(uint32_t) != 0 ||
      trie_bytes > table.size() - sizeof(trie_bytes) || table.back() != '\0') {
    return absl::InvalidArgumentError("the table of its normalizer is broken");
  }
  normalizer.trie_.resize(trie_bytes / sizeof(uint32_t));
  std::memcpy(normalizer.trie_.data(), table.data() + sizeof(trie_bytes), trie_bytes);
  normalizer.replacements_ = table.substr(sizeof(trie_bytes) + trie_bytes);
  return normalizer;
}

SentencePieceNormalizer::Rewrite SentencePieceNormalizer::LongestRule(std::string_view text) const {
  Rewrite longest;
  if (trie_.empty()) return longest;
  size_t node = Offset(trie_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const uint8_t byte = static_cast<uint8_t>(text[i]);
    node ^= byte;
    if (node >= trie_.size() || Label(trie_[node]) != byte) break;
    const uint32_t unit = trie_[node];
    node ^= Offset(unit);
    if (!HasLeaf(unit)) continue;
    if (node >= trie_.size() || Value(trie_[node]) >= replacements_.size()) break;
    longest = {replacements_.c_str() + Value(trie_[node]), i + 1};
  }
  return longest;
}

SentencePieceNormalizer::Rewrite SentencePieceNormalizer::RewriteFirst(
    std::string_view text) const {
  if (const size_t length = LongestUserDefined(text); length > 0) {
    return {text.substr(0, length), length};
  }
  if (const Rewrite rule = LongestRule(text); rule.length > 0) return rule;
  const size_t bytes = NextUtf8(text).length;
  return {text.substr(0, bytes), bytes};
}

std::string SentencePieceNormalizer::Normalize(std::string_view text, bool may_add_space) const {
  if (remove_extra_whitespaces_) {
    while (!text.empty()) {
      const Rewrite first = RewriteFirst(text);
      if (first.to != " ") break;
      text.remove_prefix(first.length);
    }
  }
  std::string normalized;
  if (text.empty()) return normalized;
  const std::string_view space = escape_whitespaces_ ? kSpaceSymbol : " ";
  if (add_dummy_prefix_ && may_add_space) normalized += space;
  bool after_space = remove_extra_whitespaces_;
  while (!text.empty()) {
    Rewrite rewrite = RewriteFirst(text);
    text.remove_prefix(rewrite.length);
    while (after_space && rewrite.to.starts_with(' ')) rewrite.to.remove_prefix(1);
    if (rewrite.to.empty()) continue;
    for (const char c : rewrite.to) {
      if (c == ' ') {
        normalized += space;
      } else {
        normalized += c;
      }
    }
    after_space = remove_extra_whitespaces_ && rewrite.to.ends_with(' ');
  }
  while (remove_extra_whitespaces_ && normalized.ends_with(space)) {
    normalized.erase(normalized.size() - space.size());
  }
  return normalized;
}

}  // namespace ziggurat

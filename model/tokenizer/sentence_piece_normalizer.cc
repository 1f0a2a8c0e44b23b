#include "model/tokenizer/sentence_piece_normalizer.h"

#include <utility>

#include "model/tokenizer/utf8.h"

namespace ziggurat {
namespace {

constexpr std::string_view kSpaceSymbol = "\u2581";

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

  if (proto.precompiled_charsmap.empty()) return normalizer;
  absl::StatusOr<PrecompiledCharsmap> rules =
      PrecompiledCharsmap::Parse(proto.precompiled_charsmap);
  if (!rules.ok()) return rules.status();
  normalizer.rules_ = *std::move(rules);
  return normalizer;
}

PrecompiledCharsmap::Rule SentencePieceNormalizer::RewriteFirst(std::string_view text) const {
  if (const size_t length = LongestUserDefined(text); length > 0) {
    return {text.substr(0, length), length};
  }
  if (const auto rule = rules_.Longest(text); rule.length > 0) return rule;
  const size_t bytes = NextUtf8(text).length;
  return {text.substr(0, bytes), bytes};
}

std::string SentencePieceNormalizer::Normalize(std::string_view text, bool may_add_space) const {
  if (remove_extra_whitespaces_) {
    while (!text.empty()) {
      const PrecompiledCharsmap::Rule first = RewriteFirst(text);
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
    PrecompiledCharsmap::Rule rewrite = RewriteFirst(text);
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

#include "model/tokenizer/precompiled_charsmap.h"

#include <cstring>

#include "absl/status/status.h"
#include "model/tokenizer/utf8.h"

namespace ziggurat {
namespace {

// A unit of the double array: a label, the offset of its children, or the value of a leaf.
bool HasLeaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t Value(uint32_t unit) { return unit & 0x7FFFFFFFu; }
uint32_t Label(uint32_t unit) { return unit & 0x800000FFu; }
uint32_t Offset(uint32_t unit) { return unit >> 10 << ((unit & 0x200u) >> 6); }

}  // namespace

absl::StatusOr<PrecompiledCharsmap> PrecompiledCharsmap::Parse(std::string_view table) {
  // The table: bytes of the trie as u32, the trie, the replacements.
  PrecompiledCharsmap map;
  uint32_t trie_bytes = 0;
  if (table.size() > sizeof(trie_bytes)) std::memcpy(&trie_bytes, table.data(), sizeof(trie_bytes));
  if (trie_bytes == 0 || trie_bytes % sizeof(uint32_t) != 0 ||
      trie_bytes > table.size() - sizeof(trie_bytes) || table.back() != '\0') {
    return absl::InvalidArgumentError("the table of its normalizer is broken");
  }
  map.trie_.resize(trie_bytes / sizeof(uint32_t));
  std::memcpy(map.trie_.data(), table.data() + sizeof(trie_bytes), trie_bytes);
  map.replacements_ = table.substr(sizeof(trie_bytes) + trie_bytes);
  if (!ValidateUtf8(map.replacements_).ok()) {
    return absl::InvalidArgumentError("the table of its normalizer has texts that are not UTF-8");
  }
  return map;
}

/// Calls `visit(rule)` for the rules that fit, shortest first, until it returns false.
template <typename Visit>
void PrecompiledCharsmap::ForEach(std::string_view text, const Visit& visit) const {
  if (trie_.empty()) return;
  size_t node = Offset(trie_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const uint8_t byte = static_cast<uint8_t>(text[i]);
    node ^= byte;
    if (node >= trie_.size() || Label(trie_[node]) != byte) return;
    const uint32_t unit = trie_[node];
    node ^= Offset(unit);
    if (!HasLeaf(unit)) continue;
    if (node >= trie_.size() || Value(trie_[node]) >= replacements_.size()) return;
    const uint32_t begin = Value(trie_[node]);
    if (CharacterBegin(replacements_, begin) != begin) return;  // a broken table
    if (!visit(Rule{replacements_.c_str() + begin, i + 1})) return;
  }
}

PrecompiledCharsmap::Rule PrecompiledCharsmap::Longest(std::string_view text) const {
  Rule longest;
  ForEach(text, [&](const Rule& rule) {
    longest = rule;
    return true;
  });
  return longest;
}

PrecompiledCharsmap::Rule PrecompiledCharsmap::Shortest(std::string_view text) const {
  Rule shortest;
  ForEach(text, [&](const Rule& rule) {
    shortest = rule;
    return false;
  });
  return shortest;
}

}  // namespace ziggurat

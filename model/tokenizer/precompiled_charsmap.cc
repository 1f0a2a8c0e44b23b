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

PrecompiledCharsmap::Rule PrecompiledCharsmap::Find(std::string_view text,
                                                    bool takes_longest) const {
  Rule found;
  if (trie_.empty()) return found;
  size_t node = Offset(trie_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const uint8_t byte = static_cast<uint8_t>(text[i]);
    node ^= byte;
    if (node >= trie_.size() || Label(trie_[node]) != byte) break;
    const uint32_t unit = trie_[node];
    node ^= Offset(unit);
    if (!HasLeaf(unit)) continue;
    if (node >= trie_.size() || Value(trie_[node]) >= replacements_.size()) break;
    const uint32_t begin = Value(trie_[node]);
    if (CharacterBegin(replacements_, begin) != begin) break;  // a broken table
    found = {replacements_.c_str() + begin, i + 1};
    if (!takes_longest) break;
  }
  return found;
}

}  // namespace ziggurat

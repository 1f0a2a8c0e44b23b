#include "model/tokenizer/prefix_trie.h"

namespace ziggurat {
namespace {

uint64_t EdgeKey(int32_t node, char byte) {
  return (uint64_t{static_cast<uint32_t>(node)} << 8) | static_cast<unsigned char>(byte);
}

}  // namespace

PrefixTrie::PrefixTrie() : values_(1, kNone) { first_.fill(kNone); }

int32_t PrefixTrie::Step(int32_t node, char byte) const {
  if (node == kRoot) return first_[static_cast<unsigned char>(byte)];
  const auto edge = edges_.find(EdgeKey(node, byte));
  return edge == edges_.end() ? kNone : edge->second;
}

bool PrefixTrie::Add(std::string_view text, int32_t value) {
  if (text.empty()) return false;
  int32_t node = kRoot;
  for (const char byte : text) {
    int32_t& next = node == kRoot ? first_[static_cast<unsigned char>(byte)]
                                  : edges_.try_emplace(EdgeKey(node, byte), kNone).first->second;
    if (next == kNone) {
      next = static_cast<int32_t>(values_.size());
      values_.push_back(kNone);
    }
    node = next;
  }
  int32_t& at = values_[static_cast<size_t>(node)];
  if (at != kNone) return false;
  at = value;
  return true;
}

PrefixTrie::Match PrefixTrie::Longest(std::string_view text) const {
  Match longest;
  int32_t node = kRoot;
  for (size_t i = 0; i < text.size(); ++i) {
    node = Step(node, text[i]);
    if (node == kNone) break;
    if (ValueAt(node) != kNone) longest = {ValueAt(node), i + 1};
  }
  return longest;
}

}  // namespace ziggurat

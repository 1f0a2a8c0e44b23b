// Which of many texts a text begins with.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace ziggurat {

/// Texts with a value each, in a trie over bytes, so that it costs what matches, not how many there
/// are. Thread-safe after the last Add.
class PrefixTrie {
 public:
  static constexpr int32_t kRoot = 0;
  static constexpr int32_t kNone = -1;

  PrefixTrie();
  /// False, and nothing changes, where `text` is empty or here already. `value` is not negative.
  bool Add(std::string_view text, int32_t value);

  struct Match {
    int32_t value = kNone;
    size_t length = 0;
  };
  /// The longest of the texts that `text` begins with.
  Match Longest(std::string_view text) const;

  /// For those who want all of them: from kRoot byte by byte, until no text goes on (kNone).
  int32_t Step(int32_t node, char byte) const;
  /// Of the text that ends at `node`, or kNone.
  int32_t ValueAt(int32_t node) const { return values_[static_cast<size_t>(node)]; }

 private:
  std::array<int32_t, 256> first_;                ///< from the root; where most steps end
  absl::flat_hash_map<uint64_t, int32_t> edges_;  ///< (node, byte) -> node, from all others
  std::vector<int32_t> values_;                   ///< [nodes]
};

}  // namespace ziggurat

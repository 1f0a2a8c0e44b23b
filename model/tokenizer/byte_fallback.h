// The pieces <0x00>..<0xFF>, which stand for the bytes of a character that has no piece.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "model/tokenizer/vocabulary.h"

namespace ziggurat {

/// Immutable; thread-safe.
class ByteFallback {
 public:
  explicit ByteFallback(const Vocabulary& vocabulary);

  /// Appends an id for each byte. False, and nothing is appended, where one of them has none.
  bool Append(std::string_view text, std::vector<int32_t>* ids) const;

 private:
  std::array<int32_t, 256> ids_{};  ///< -1: no such piece
};

}  // namespace ziggurat

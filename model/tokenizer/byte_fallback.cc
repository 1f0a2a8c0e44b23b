#include "model/tokenizer/byte_fallback.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace ziggurat {

ByteFallback::ByteFallback(const Vocabulary& vocabulary) {
  for (size_t byte = 0; byte < ids_.size(); ++byte) {
    ids_[byte] = vocabulary.FindModelPiece(absl::StrFormat("<0x%02X>", byte)).value_or(-1);
  }
}

bool ByteFallback::Append(std::string_view text, std::vector<int32_t>* ids) const {
  const auto id_of = [this](char byte) { return ids_[static_cast<unsigned char>(byte)]; };
  if (std::any_of(text.begin(), text.end(), [&](char c) { return id_of(c) < 0; })) return false;
  for (const char byte : text) ids->push_back(id_of(byte));
  return true;
}

}  // namespace ziggurat

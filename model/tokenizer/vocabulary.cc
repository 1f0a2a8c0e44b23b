#include "model/tokenizer/vocabulary.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "model/absl_view.h"

namespace ziggurat {

absl::Status Vocabulary::Add(std::string_view piece, int64_t id) { return AddTo(&ids_, piece, id); }

absl::Status Vocabulary::AddBesideModel(std::string_view token, int64_t id) {
  return AddTo(&ids_beside_model_, token, id);
}

absl::Status Vocabulary::AddTo(Ids* ids, std::string_view piece, int64_t id) {
  const absl::string_view name = AbslView(piece);
  if (id < 0 || id > kMaxTokenId) {
    return absl::InvalidArgumentError(
        absl::StrCat("the id ", id, " of the token '", name, "' is not in [0, ", kMaxTokenId, "]"));
  }
  if (const std::optional<int32_t> known = Find(piece)) {
    if (*known == id) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("the token '", name, "' has two ids: ", *known, " and ", id));
  }
  const size_t index = static_cast<size_t>(id);
  if (index >= pieces_.size()) pieces_.resize(index + 1);
  if (pieces_[index].has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("two tokens, '", *pieces_[index], "' and '", name, "', have the id ", id));
  }
  pieces_[index].emplace(piece);
  ids->emplace(piece, static_cast<int32_t>(id));
  return absl::OkStatus();
}

const std::string* Vocabulary::Piece(int64_t id) const {
  if (id < 0 || id >= static_cast<int64_t>(pieces_.size())) return nullptr;
  const std::optional<std::string>& piece = pieces_[static_cast<size_t>(id)];
  return piece.has_value() ? &*piece : nullptr;
}

void Vocabulary::MarkSpecial(int32_t id) {
  is_special_.resize(std::max(is_special_.size(), static_cast<size_t>(id) + 1));
  is_special_[static_cast<size_t>(id)] = true;
}

void Vocabulary::Reserve(size_t pieces) {
  ids_.reserve(pieces);
  pieces_.reserve(pieces);
}

}  // namespace ziggurat

// Pieces and their ids.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "model/absl_view.h"

namespace ziggurat {

/// Both ways between pieces and ids: the pieces of a model, and the tokens added beside them. Ids
/// may have holes. Immutable once filled.
class Vocabulary {
 public:
  /// Larger ids than this are taken for a corrupted file.
  static constexpr int64_t kMaxTokenId = (int64_t{1} << 22) - 1;

  /// INVALID_ARGUMENT if the id is out of [0, kMaxTokenId] or belongs to another piece, or if the
  /// piece has another id.
  absl::Status Add(std::string_view piece, int64_t id);
  /// The same for a token that no splitting of text by the model may yield.
  absl::Status AddBesideModel(std::string_view token, int64_t id);

  /// A piece of the model or a token beside it.
  std::optional<int32_t> Find(std::string_view piece) const {
    const std::optional<int32_t> id = FindModelPiece(piece);
    return id.has_value() ? id : FindIn(ids_beside_model_, piece);
  }
  /// What models look up in the text: a token beside the model, found here, would come back into a
  /// text from which it was to be kept.
  std::optional<int32_t> FindModelPiece(std::string_view piece) const {
    return FindIn(ids_, piece);
  }
  /// The same, but no special token unless `finds_special`.
  std::optional<int32_t> FindPieceOfText(std::string_view piece, bool finds_special) const {
    const std::optional<int32_t> id = FindModelPiece(piece);
    return id.has_value() && !finds_special && IsSpecial(*id) ? std::nullopt : id;
  }
  /// The token is special: it stands for no text. `id` is in [0, size()).
  void MarkSpecial(int32_t id);
  bool IsSpecial(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < is_special_.size() &&
           is_special_[static_cast<size_t>(id)];
  }
  /// Null where no piece has this id.
  const std::string* Piece(int64_t id) const;

  /// One more than the largest id.
  int size() const { return static_cast<int>(pieces_.size()); }
  void Reserve(size_t pieces);

 private:
  using Ids = absl::flat_hash_map<std::string, int32_t>;

  static std::optional<int32_t> FindIn(const Ids& ids, std::string_view piece) {
    const auto found = ids.find(AbslView(piece));
    if (found == ids.end()) return std::nullopt;
    return found->second;
  }
  absl::Status AddTo(Ids* ids, std::string_view piece, int64_t id);

  Ids ids_;
  Ids ids_beside_model_;
  std::vector<std::optional<std::string>> pieces_;  ///< [size()]
  std::vector<bool> is_special_;                    ///< by id; those behind its end are not
};

}  // namespace ziggurat

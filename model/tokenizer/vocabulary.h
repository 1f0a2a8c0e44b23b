// Pieces and their ids.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "model/tokenizer/absl_view.h"

namespace ziggurat {

/// Both ways between pieces and ids. Ids may have holes. Immutable once filled.
class Vocabulary {
 public:
  /// Larger ids than this are taken for a corrupted file.
  static constexpr int64_t kMaxTokenId = (int64_t{1} << 22) - 1;

  /// INVALID_ARGUMENT if the id is out of [0, kMaxTokenId] or belongs to another piece, or if the
  /// piece has another id.
  absl::Status Add(std::string_view piece, int64_t id);

  std::optional<int32_t> Find(std::string_view piece) const {
    const auto found = ids_.find(AbslView(piece));
    if (found == ids_.end()) return std::nullopt;
    return found->second;
  }
  /// Null where no piece has this id.
  const std::string* Piece(int64_t id) const;

  /// One more than the largest id.
  int size() const { return static_cast<int>(pieces_.size()); }
  void Reserve(size_t pieces);

 private:
  absl::flat_hash_map<std::string, int32_t> ids_;
  std::vector<std::optional<std::string>> pieces_;  ///< [size()]
};

}  // namespace ziggurat

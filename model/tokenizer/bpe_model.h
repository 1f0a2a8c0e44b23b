// Byte pair encoding (Sennrich et al., 2016) as Hugging Face's tokenizers do it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/tokenizer/byte_fallback.h"
#include "model/tokenizer/word_model.h"

namespace ziggurat {

struct BpeOptions {
  bool byte_fallback = false;  ///< a character without a piece becomes pieces <0x00>..<0xFF>
  bool fuse_unk = false;       ///< unknown characters in a row are one unknown token
  bool ignore_merges = false;  ///< a word that is a piece itself needs no merging
  std::optional<std::string> unk_token;
};

/// Splits words into pieces: starts from characters and applies merges, always the one that was
/// learnt first, leftmost first, until none applies.
class BpeModel : public WordModel {
 public:
  BpeModel(const BpeOptions& options, Vocabulary vocabulary);

  /// The next merge, in the order learnt. INVALID_ARGUMENT if `left`, `right` or both joined are
  /// no pieces.
  absl::Status AddMerge(std::string_view left, std::string_view right);
  void ReserveMerges(size_t merges) { merges_.reserve(merges); }

  /// O(n log n) for n characters. A character that has no piece, where there is neither byte
  /// fallback nor an unknown token, is dropped. INVALID_ARGUMENT if it would become an unknown
  /// token that is no piece itself.
  absl::Status Tokenize(std::string_view word, bool finds_special,
                        std::vector<int32_t>* ids) const override;
  std::optional<int32_t> unk_id() const override { return unk_id_; }

 private:
  struct Merge {
    int32_t rank = 0;
    int32_t id = 0;  ///< of the merged piece
  };
  struct Symbol;
  struct Candidate;

  static uint64_t PairKey(int32_t left, int32_t right) {
    return (uint64_t{static_cast<uint32_t>(left)} << 32) | static_cast<uint32_t>(right);
  }
  const Merge* FindMerge(int32_t left, int32_t right, bool finds_special) const;
  /// The characters of `word` as symbols, before any merge.
  absl::StatusOr<std::vector<Symbol>> Characters(std::string_view word, bool finds_special) const;
  void ApplyMerges(bool finds_special, std::vector<Symbol>* symbols) const;

  BpeOptions options_;
  absl::flat_hash_map<uint64_t, Merge> merges_;  ///< by the ids of the pair
  int32_t next_rank_ = 0;
  std::optional<ByteFallback> bytes_;
  std::optional<int32_t> unk_id_;
};

}  // namespace ziggurat

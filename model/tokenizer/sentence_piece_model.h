// A SentencePiece model (Kudo and Richardson, 2018): BPE or unigram.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "model/tokenizer/prefix_trie.h"
#include "model/tokenizer/sentence_piece_normalizer.h"
#include "model/tokenizer/sentence_piece_proto.h"
#include "model/tokenizer/unigram_split.h"

namespace ziggurat {

/// One loaded model. Immutable; thread-safe.
class SentencePieceModel {
 public:
  /// From the bytes of tokenizer.model. Null if they are no model that we run: then `*error` says
  /// why.
  ///   never_found  ids of pieces that no text becomes, as if they were control tokens
  static std::unique_ptr<SentencePieceModel> Load(std::string_view serialized, std::string* error,
                                                  absl::Span<const int32_t> never_found = {});

  /// Appends the ids of `text`, which must be valid UTF-8. False where a character has no id: then
  /// `*error` says which.
  ///   may_add_space  false: no space comes before the text, whatever the model wants
  bool Encode(std::string_view text, bool may_add_space, std::vector<int32_t>* ids,
              std::string* error) const;

  int size() const { return static_cast<int>(proto_.pieces.size()); }
  const std::string& Piece(int id) const { return proto_.pieces[id].text; }
  /// Control and unknown tokens: they never come from ordinary text, or stand for no text.
  bool IsSpecial(int id) const;
  /// A piece that text may become.
  bool IsOrdinary(int id) const;

  bool falls_back_to_bytes() const { return proto_.byte_fallback; }
  bool removes_extra_whitespaces() const { return proto_.remove_extra_whitespaces; }

  std::optional<int32_t> bos_id() const { return IdOfType(proto_.bos_piece, PieceType::kControl); }
  std::optional<int32_t> eos_id() const { return IdOfType(proto_.eos_piece, PieceType::kControl); }
  std::optional<int32_t> unk_id() const { return IdOfType(proto_.unk_piece, PieceType::kUnknown); }

 private:
  struct Symbol;
  struct Merge;
  using Span = PieceSpan;  ///< of the normalized text

  SentencePieceModel(SentencePieceProto proto, SentencePieceNormalizer normalizer);
  bool Index(std::string* error);
  std::optional<int32_t> IdOfType(const std::string& piece, PieceType type) const;

  /// Ordinary pieces only: -1 where `text` is none.
  int32_t Find(std::string_view text) const;
  std::vector<Symbol> Symbols(std::string_view text) const;
  std::vector<Span> SplitBpe(std::string_view text) const;
  /// Where pieces marked as unused were merged, by their text.
  using UnusedCuts = absl::flat_hash_map<std::string_view, size_t>;
  void AppendResegmented(std::string_view text, const UnusedCuts& cuts,
                         std::vector<Span>* spans) const;
  std::vector<Span> SplitUnigram(std::string_view text) const;
  /// Spans without a piece become bytes, or one unknown token for each run of them.
  bool AppendIds(const std::vector<Span>& spans, std::vector<int32_t>* ids,
                 std::string* error) const;

  SentencePieceProto proto_;
  SentencePieceNormalizer normalizer_;
  absl::flat_hash_map<std::string, int32_t> pieces_;  ///< that text may become
  PrefixTrie prefixes_;                               ///< unigram: the same, but unused ones
  std::vector<int32_t> byte_ids_;                     ///< [256]; -1: none
  int32_t unknown_ = -1;
  float min_score_ = 0;
  float max_score_ = 0;
};

}  // namespace ziggurat

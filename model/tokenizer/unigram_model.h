// Unigram language model (Kudo, 2018) as Hugging Face's tokenizers do it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "model/tokenizer/byte_fallback.h"
#include "model/tokenizer/prefix_trie.h"
#include "model/tokenizer/word_model.h"

namespace ziggurat {

/// Takes the most probable of all splits of a word into pieces. A character that is no piece costs
/// 10 more than the least probable one; unknown characters in a row are one piece, as bytes where
/// there is a fallback to them, else the unknown token.
class UnigramModel : public WordModel {
 public:
  /// `scores` are logarithms of probabilities, [ids], at least one. `unk_id` is one of the
  /// vocabulary's.
  UnigramModel(Vocabulary vocabulary, std::vector<double> scores, std::optional<int32_t> unk_id,
               bool falls_back_to_bytes);

  /// INVALID_ARGUMENT if a character is no piece and there is no unknown token.
  absl::Status Tokenize(std::string_view word, bool finds_special,
                        std::vector<int32_t>* ids) const override;
  std::optional<int32_t> unk_id() const override { return unk_id_; }

 private:
  void AppendUnknown(std::string_view text, bool finds_special, std::vector<int32_t>* ids) const;

  std::vector<double> scores_;
  double unknown_score_ = 0;
  std::optional<int32_t> unk_id_;
  PrefixTrie pieces_;
  std::optional<ByteFallback> bytes_;
};

}  // namespace ziggurat

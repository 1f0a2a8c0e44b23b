#include "model/tokenizer/unigram_model.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/absl_view.h"
#include "model/tokenizer/unigram_split.h"
#include "model/tokenizer/utf8.h"

namespace ziggurat {

UnigramModel::UnigramModel(Vocabulary vocabulary, std::vector<double> scores,
                           std::optional<int32_t> unk_id, bool falls_back_to_bytes)
    : WordModel(std::move(vocabulary)), scores_(std::move(scores)), unk_id_(unk_id) {
  constexpr double kUnknownPenalty = 10;
  unknown_score_ = *std::min_element(scores_.begin(), scores_.end()) - kUnknownPenalty;
  for (size_t id = 0; id < scores_.size(); ++id) {
    pieces_.Add(*this->vocabulary().Piece(static_cast<int64_t>(id)), static_cast<int32_t>(id));
  }
  if (falls_back_to_bytes) bytes_.emplace(this->vocabulary());
}

void UnigramModel::AppendUnknown(std::string_view text, bool finds_special,
                                 std::vector<int32_t>* ids) const {
  if (const auto id = vocabulary().FindPieceOfText(text, finds_special)) {
    ids->push_back(*id);  // only where it is the unknown token that is written there
  } else if (!bytes_.has_value() || !bytes_->Append(text, ids)) {
    ids->push_back(*unk_id_);
  }
}

absl::Status UnigramModel::Tokenize(std::string_view word, bool finds_special,
                                    std::vector<int32_t>* ids) const {
  const auto score_of = [&](int32_t id, size_t bytes) -> std::optional<double> {
    // A special token that is all there is for its character is text, too.
    const auto is_only_piece = [&] {
      return !bytes_.has_value() && NextUtf8(*vocabulary().Piece(id)).length == bytes;
    };
    if (!finds_special && vocabulary().IsSpecial(id) && !is_only_piece()) return std::nullopt;
    return scores_[static_cast<size_t>(id)];
  };
  std::string_view unknown;  // what has not been appended yet
  for (const PieceSpan& span : SplitByUnigrams(word, pieces_, score_of, unknown_score_)) {
    if (span.id < 0 && !unk_id_.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("no token is '", AbslView(span.text),
                                                     "', and the model has no unknown token"));
    }
    if (span.id < 0 || span.id == unk_id_) {
      const char* begin = unknown.empty() ? span.text.data() : unknown.data();
      unknown = {begin, unknown.size() + span.text.size()};
      continue;
    }
    if (!unknown.empty()) AppendUnknown(std::exchange(unknown, {}), finds_special, ids);
    ids->push_back(span.id);
  }
  if (!unknown.empty()) AppendUnknown(unknown, finds_special, ids);
  return absl::OkStatus();
}

}  // namespace ziggurat

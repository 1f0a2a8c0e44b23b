#include "model/tokenizer/bpe_model.h"

#include <algorithm>
#include <queue>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/absl_view.h"
#include "model/tokenizer/utf8.h"

namespace ziggurat {

/// A piece of the word so far, in a doubly linked list; -1 ends it.
struct BpeModel::Symbol {
  int32_t id = 0;
  int32_t previous = -1;
  int32_t next = -1;
  bool merged_away = false;
};

/// A merge that could be applied to the symbol at `position` and the one behind it. It may have
/// become stale by the time it is looked at.
struct BpeModel::Candidate {
  int32_t rank = 0;
  int32_t position = 0;
  int32_t id = 0;

  /// The queue gives the largest first: lowest rank, then leftmost.
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

BpeModel::BpeModel(const BpeOptions& options, Vocabulary vocabulary)
    : WordModel(std::move(vocabulary)), options_(options) {
  if (options_.byte_fallback) bytes_.emplace(this->vocabulary());
  // One that is no piece is no mistake where none is needed: GPT-2's files name one.
  if (options_.unk_token.has_value()) {
    unk_id_ = this->vocabulary().FindModelPiece(*options_.unk_token);
  }
}

absl::Status BpeModel::AddMerge(std::string_view left, std::string_view right) {
  const std::array<std::string, 3> pieces = {std::string(left), std::string(right),
                                             absl::StrCat(AbslView(left), AbslView(right))};
  std::array<int32_t, 3> ids{};
  for (size_t i = 0; i < pieces.size(); ++i) {
    const std::optional<int32_t> id = vocabulary().FindModelPiece(pieces[i]);
    if (!id) {
      return absl::InvalidArgumentError(absl::StrCat("the merge of '", pieces[0], "' and '",
                                                     pieces[1], "' needs the token '", pieces[i],
                                                     "', which is not in the vocabulary"));
    }
    ids[i] = *id;
  }
  merges_.insert_or_assign(PairKey(ids[0], ids[1]), Merge{next_rank_++, ids[2]});
  return absl::OkStatus();
}

const BpeModel::Merge* BpeModel::FindMerge(int32_t left, int32_t right, bool finds_special) const {
  const auto found = merges_.find(PairKey(left, right));
  if (found == merges_.end()) return nullptr;
  return finds_special || !vocabulary().IsSpecial(found->second.id) ? &found->second : nullptr;
}

absl::StatusOr<std::vector<BpeModel::Symbol>> BpeModel::Characters(std::string_view word,
                                                                   bool finds_special) const {
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  std::vector<int32_t> byte_ids;
  // An unknown token waits until the next known character, so that those in a row can be fused.
  // Pieces of byte fallback do not end the wait: so it is in the original.
  bool unknown_waits = false;
  for (size_t position = 0; position < word.size();) {
    const size_t begin = position;
    ReadUtf8(word, &position);
    const std::string_view character = word.substr(begin, position - begin);
    if (const auto id = vocabulary().FindPieceOfText(character, finds_special)) {
      if (unknown_waits) symbols.push_back({*unk_id_});
      unknown_waits = false;
      symbols.push_back({*id});
      continue;
    }
    if (bytes_.has_value() && bytes_->Append(character, &byte_ids)) {
      for (const int32_t id : byte_ids) symbols.push_back({id});
      byte_ids.clear();
      continue;
    }
    // A special token that is all there is for its character is text, too.
    if (const auto id = vocabulary().FindModelPiece(character)) {
      symbols.push_back({*id});
      continue;
    }
    if (!options_.unk_token.has_value()) continue;
    if (!unk_id_) {
      return absl::InvalidArgumentError(absl::StrCat("no token is '", AbslView(character),
                                                     "', nor is the unknown token '",
                                                     *options_.unk_token, "' in the vocabulary"));
    }
    if (unknown_waits && !options_.fuse_unk) symbols.push_back({*unk_id_});
    unknown_waits = true;
  }
  if (unknown_waits) symbols.push_back({*unk_id_});
  return symbols;
}

void BpeModel::ApplyMerges(bool finds_special, std::vector<Symbol>* symbols) const {
  const int32_t count = static_cast<int32_t>(symbols->size());
  const auto at = [symbols](int32_t i) -> Symbol& { return (*symbols)[static_cast<size_t>(i)]; };
  std::vector<Candidate> initial;
  initial.reserve(symbols->size());
  for (int32_t i = 0; i < count; ++i) {
    at(i).previous = i - 1;
    at(i).next = i + 1 < count ? i + 1 : -1;
    if (i + 1 == count) break;
    if (const Merge* merge = FindMerge(at(i).id, at(i + 1).id, finds_special)) {
      initial.push_back({merge->rank, i, merge->id});
    }
  }
  std::priority_queue<Candidate> queue(std::less<Candidate>(), std::move(initial));
  const auto consider = [&](int32_t left, int32_t right) {
    if (left < 0 || right < 0) return;
    if (const Merge* merge = FindMerge(at(left).id, at(right).id, finds_special)) {
      queue.push({merge->rank, left, merge->id});
    }
  };
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = at(best.position);
    if (left.merged_away || left.next < 0) continue;
    Symbol& right = at(left.next);
    const Merge* merge = FindMerge(left.id, right.id, finds_special);
    if (merge == nullptr || merge->id != best.id) continue;  // a neighbour has changed since
    left.id = best.id;
    left.next = right.next;
    right.merged_away = true;
    if (left.next >= 0) at(left.next).previous = best.position;
    consider(left.previous, best.position);
    consider(best.position, left.next);
  }
}

absl::Status BpeModel::Tokenize(std::string_view word, bool finds_special,
                                std::vector<int32_t>* ids) const {
  if (word.empty()) return absl::OkStatus();
  if (options_.ignore_merges) {
    if (const auto id = vocabulary().FindPieceOfText(word, finds_special)) {
      ids->push_back(*id);
      return absl::OkStatus();
    }
  }
  absl::StatusOr<std::vector<Symbol>> symbols = Characters(word, finds_special);
  if (!symbols.ok()) return symbols.status();
  ApplyMerges(finds_special, &*symbols);
  for (const Symbol& symbol : *symbols) {
    if (!symbol.merged_away) ids->push_back(symbol.id);
  }
  return absl::OkStatus();
}

}  // namespace ziggurat

#include "model/tokenizer/sentence_piece_model.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/tokenizer/utf8.h"

namespace ziggurat {
namespace {

// A character that is no piece costs this much more than the worst piece (unigram).
constexpr float kUnknownPenalty = 10;

bool IsOrdinary(PieceType type) {
  return type == PieceType::kNormal || type == PieceType::kUserDefined ||
         type == PieceType::kUnused;
}

}  // namespace

/// Neighbouring stretches of the text, as a list that shrinks while they are merged.
struct SentencePieceModel::Symbol {
  int previous = -1;
  int next = -1;
  bool is_frozen = false;  ///< user-defined: never merged
  std::string_view text;   ///< empty: merged into its left neighbour
};

struct SentencePieceModel::Merge {
  float score = 0;
  int left = 0;
  int right = 0;
  size_t bytes = 0;  ///< of both; differs from theirs once one of them has been merged

  /// Highest score first, then leftmost.
  bool operator<(const Merge& other) const {
    return score < other.score || (score == other.score && left > other.left);
  }
};

SentencePieceModel::SentencePieceModel(SentencePieceProto proto, SentencePieceNormalizer normalizer)
    : proto_(std::move(proto)), normalizer_(std::move(normalizer)), byte_ids_(256, -1) {}

std::unique_ptr<SentencePieceModel> SentencePieceModel::Load(
    std::string_view serialized, std::string* error, absl::Span<const int32_t> never_found) {
  absl::StatusOr<SentencePieceProto> proto = ParseSentencePieceProto(serialized);
  if (!proto.ok()) {
    *error = std::string(proto.status().message());
    return nullptr;
  }
  for (const int32_t id : never_found) proto->pieces[id].type = PieceType::kControl;
  absl::StatusOr<SentencePieceNormalizer> normalizer = SentencePieceNormalizer::Create(*proto);
  if (!normalizer.ok()) {
    *error = std::string(normalizer.status().message());
    return nullptr;
  }
  std::unique_ptr<SentencePieceModel> model(
      new SentencePieceModel(*std::move(proto), *std::move(normalizer)));
  return model->Index(error) ? std::move(model) : nullptr;
}

bool SentencePieceModel::Index(std::string* error) {
  const auto refuse = [error](const std::string& why) {
    *error = why;
    return false;
  };
  if (proto_.pieces.empty()) return refuse("it has no pieces");
  if (proto_.algorithm != SentencePieceAlgorithm::kBpe &&
      proto_.algorithm != SentencePieceAlgorithm::kUnigram) {
    return refuse("it splits into words or characters: only BPE and unigram are supported");
  }
  if (proto_.treat_whitespace_as_suffix) return refuse("treat_whitespace_as_suffix is unsupported");
  if (proto_.denormalizes) return refuse("a denormalizer_spec with rules is unsupported");
  min_score_ = std::numeric_limits<float>::max();
  max_score_ = std::numeric_limits<float>::min();  // the library's: the smallest positive number
  for (int32_t id = 0; id < size(); ++id) {
    const SentencePieceProto::Piece& piece = proto_.pieces[id];
    if (piece.text.empty()) return refuse(absl::StrCat("piece ", id, " is empty"));
    if (piece.type == PieceType::kUnknown) unknown_ = id;
    if (piece.type == PieceType::kNormal) {
      min_score_ = std::min(min_score_, piece.score);
      max_score_ = std::max(max_score_, piece.score);
    }
    if (piece.type == PieceType::kByte) {
      unsigned byte = 256;
      for (unsigned b = 0; b < 256 && byte == 256; ++b) {
        if (piece.text == absl::StrFormat("<0x%02X>", b)) byte = b;
      }
      if (byte == 256) return refuse(absl::StrCat("byte piece ", id, " is no byte"));
      byte_ids_[byte] = id;
    }
    if (!ziggurat::IsOrdinary(piece.type)) continue;
    if (!pieces_.emplace(piece.text, id).second) {
      return refuse(absl::StrCat("piece ", id, " comes twice"));
    }
    if (proto_.algorithm == SentencePieceAlgorithm::kUnigram && piece.type != PieceType::kUnused) {
      prefixes_.Add(piece.text, id);
    }
  }
  if (proto_.byte_fallback && std::count(byte_ids_.begin(), byte_ids_.end(), -1) > 0) {
    return refuse("it falls back to bytes, but lacks some of them");
  }
  return true;
}

bool SentencePieceModel::IsSpecial(int id) const {
  const PieceType type = proto_.pieces[id].type;
  return type == PieceType::kControl || type == PieceType::kUnknown;
}

bool SentencePieceModel::IsOrdinary(int id) const {
  return ziggurat::IsOrdinary(proto_.pieces[id].type);
}

std::optional<int32_t> SentencePieceModel::IdOfType(const std::string& piece,
                                                    PieceType type) const {
  for (int32_t id = 0; id < size(); ++id) {
    if (proto_.pieces[id].type == type && proto_.pieces[id].text == piece) return id;
  }
  return std::nullopt;
}

int32_t SentencePieceModel::Find(std::string_view text) const {
  const auto found = pieces_.find(absl::string_view(text.data(), text.size()));
  return found == pieces_.end() ? -1 : found->second;
}

bool SentencePieceModel::Encode(std::string_view text, bool may_add_space,
                                std::vector<int32_t>* ids, std::string* error) const {
  const std::string normalized = normalizer_.Normalize(text, may_add_space);
  return AppendIds(proto_.algorithm == SentencePieceAlgorithm::kBpe ? SplitBpe(normalized)
                                                                    : SplitUnigram(normalized),
                   ids, error);
}

std::vector<SentencePieceModel::Symbol> SentencePieceModel::Symbols(std::string_view text) const {
  std::vector<Symbol> symbols;
  while (!text.empty()) {
    const size_t user_defined = normalizer_.LongestUserDefined(text);
    const bool is_frozen = user_defined > 0;
    const size_t bytes = is_frozen ? user_defined : NextUtf8(text).length;
    const int index = static_cast<int>(symbols.size());
    symbols.push_back({index - 1, index + 1, is_frozen, text.substr(0, bytes)});
    text.remove_prefix(bytes);
  }
  if (!symbols.empty()) symbols.back().next = -1;
  return symbols;
}

// O(n log n): a heap of possible merges, of which those that came too late are skipped.
std::vector<SentencePieceModel::Span> SentencePieceModel::SplitBpe(std::string_view text) const {
  std::vector<Symbol> symbols = Symbols(text);
  std::priority_queue<Merge> merges;
  UnusedCuts cuts;
  const auto propose = [&](int left, int right) {
    if (left < 0 || right < 0 || symbols[left].is_frozen || symbols[right].is_frozen) return;
    const size_t bytes = symbols[left].text.size() + symbols[right].text.size();
    const int32_t id = Find({symbols[left].text.data(), bytes});
    if (id < 0) return;
    merges.push({proto_.pieces[id].score, left, right, bytes});
    if (proto_.pieces[id].type == PieceType::kUnused) {
      cuts[{symbols[left].text.data(), bytes}] = symbols[left].text.size();
    }
  };
  for (int i = 1; i < static_cast<int>(symbols.size()); ++i) propose(i - 1, i);
  while (!merges.empty()) {
    const Merge merge = merges.top();
    merges.pop();
    Symbol& left = symbols[merge.left];
    Symbol& right = symbols[merge.right];
    if (left.text.empty() || right.text.empty() ||
        left.text.size() + right.text.size() != merge.bytes) {
      continue;
    }
    left.text = {left.text.data(), merge.bytes};
    left.next = right.next;
    if (right.next >= 0) symbols[right.next].previous = merge.left;
    right.text = {};
    propose(left.previous, merge.left);
    propose(merge.left, left.next);
  }
  std::vector<Span> spans;
  for (int i = symbols.empty() ? -1 : 0; i >= 0; i = symbols[i].next) {
    AppendResegmented(symbols[i].text, cuts, &spans);
  }
  return spans;
}

// A piece marked as unused helps to merge, and is then split again where it was merged.
void SentencePieceModel::AppendResegmented(std::string_view text, const UnusedCuts& cuts,
                                           std::vector<Span>* spans) const {
  const int32_t id = Find(text);
  const auto cut = cuts.find(text);
  if (id < 0 || proto_.pieces[id].type != PieceType::kUnused || cut == cuts.end()) {
    spans->push_back({text, id});
    return;
  }
  AppendResegmented(text.substr(0, cut->second), cuts, spans);
  AppendResegmented(text.substr(cut->second), cuts, spans);
}

std::vector<SentencePieceModel::Span> SentencePieceModel::SplitUnigram(
    std::string_view text) const {
  const auto score_of = [this](int32_t id, size_t bytes) -> std::optional<double> {
    const SentencePieceProto::Piece& piece = proto_.pieces[id];
    const bool is_user_defined = piece.type == PieceType::kUserDefined;
    return is_user_defined ? static_cast<float>(bytes) * max_score_ - 0.1 : piece.score;
  };
  // So the library breaks near-ties: scores of pieces are added in double, and rounded to float
  // only when kept; that of an unknown character is added in float.
  return SplitByUnigrams<float>(text, prefixes_, score_of, min_score_ - kUnknownPenalty);
}

bool SentencePieceModel::AppendIds(const std::vector<Span>& spans, std::vector<int32_t>* ids,
                                   std::string* error) const {
  bool after_unknown = false;
  for (const Span& span : spans) {
    if (span.id >= 0) {
      ids->push_back(span.id);
    } else if (proto_.byte_fallback) {
      for (const char c : span.text) ids->push_back(byte_ids_[static_cast<uint8_t>(c)]);
    } else if (unknown_ < 0) {
      *error = absl::StrCat("no token for '", std::string(span.text), "'");
      return false;
    } else if (!after_unknown) {
      ids->push_back(unknown_);
    }
    after_unknown = span.id < 0;
  }
  return true;
}

}  // namespace ziggurat

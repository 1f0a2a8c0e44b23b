// The most probable split of a text into pieces (Kudo, 2018, section 3.2), found as Viterbi did.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "model/tokenizer/prefix_trie.h"
#include "model/tokenizer/utf8.h"

namespace ziggurat {

/// A stretch of a text; -1: no piece.
struct PieceSpan {
  std::string_view text;
  int32_t id = -1;
};

/// O(n × length of the longest piece). Of splits with the same score the one found first stays.
///   text           valid UTF-8, less than 2 GiB
///   pieces         their ids
///   score_of       (id, bytes) -> the logarithm of its probability, or nothing: it is not to be
///                  found
///   unknown_score  of a character that is no piece, where none begins that is just this character
/// `Score` is what sums are kept in. Libraries differ in it, and so in which of two splits that are
/// nearly alike they take.
template <typename Score, typename ScoreOf>
std::vector<PieceSpan> SplitByUnigrams(std::string_view text, const PrefixTrie& pieces,
                                       const ScoreOf& score_of, Score unknown_score) {
  struct Best {
    int32_t id = -1;
    Score score = 0;
    int32_t begin = -1;  // of the last piece of the best split that ends here; -1: none yet
  };
  std::vector<Best> best(text.size() + 1);
  for (size_t begin = 0; begin < text.size();) {
    const Score so_far = best[begin].score;
    const auto offer = [&](size_t bytes, int32_t id, double total) {
      Best& at = best[begin + bytes];
      if (at.begin < 0 || total > at.score) {
        at = {id, static_cast<Score>(total), static_cast<int32_t>(begin)};
      }
    };
    const size_t character = NextUtf8(text.substr(begin)).length;
    bool has_character = false;
    int32_t node = PrefixTrie::kRoot;
    for (size_t bytes = 1; bytes <= text.size() - begin; ++bytes) {
      node = pieces.Step(node, text[begin + bytes - 1]);
      if (node == PrefixTrie::kNone) break;
      const int32_t id = pieces.ValueAt(node);
      if (id == PrefixTrie::kNone) continue;
      const std::optional<double> score = score_of(id, bytes);
      if (!score.has_value()) continue;
      offer(bytes, id, *score + so_far);
      has_character |= bytes == character;
    }
    if (!has_character) offer(character, -1, unknown_score + so_far);
    begin += character;
  }
  std::vector<PieceSpan> spans;
  for (size_t end = text.size(); end > 0;) {
    const size_t begin = static_cast<size_t>(best[end].begin);
    spans.push_back({text.substr(begin, end - begin), best[end].id});
    end = begin;
  }
  std::reverse(spans.begin(), spans.end());
  return spans;
}

}  // namespace ziggurat

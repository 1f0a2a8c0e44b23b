// How far a name is from one that is known, for messages.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace ziggurat {

/// Levenshtein distance, letters in either case alike.
size_t EditDistance(std::string_view a, std::string_view b);

/// The first of the names nearest to `word`, if no more than `most` letters must change and fewer
/// than the name has.
template <class Names>
std::optional<std::string> NearestName(std::string_view word, const Names& names, size_t most) {
  std::optional<std::string> nearest;
  size_t distance = most + 1;
  for (const std::string_view name : names) {
    const size_t d = EditDistance(word, name);
    if (d >= distance || d >= name.size()) continue;
    nearest = name;
    distance = d;
  }
  return nearest;
}

/// " (did you mean 'snapkv'?)" where a name is near enough to be a slip, else "".
template <class Names>
std::string SuggestName(std::string_view word, const Names& names) {
  const std::optional<std::string> nearest =
      NearestName(word, names, std::max<size_t>(2, word.size() / 3));
  return nearest ? " (did you mean '" + *nearest + "'?)" : "";
}

}  // namespace ziggurat

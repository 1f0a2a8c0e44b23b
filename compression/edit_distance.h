// How far a name is from one that is known, for messages.
#pragma once

#include <cstddef>
#include <string_view>

namespace ziggurat {

/// Levenshtein distance, letters in either case alike.
size_t EditDistance(std::string_view a, std::string_view b);

}  // namespace ziggurat

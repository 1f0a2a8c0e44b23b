// Needle in a haystack as pictures: exact match over length and depth.
#pragma once

#include <cstddef>
#include <string>

#include "server/cli/eval/summary.h"

namespace ziggurat::eval {

/// The maps of one policy, side by side, with the share in every cell. There is at least one map.
std::string DrawHeatMaps(const Summary& summary, size_t policy);

/// All policies below one another, for each task and length a strip of all depths.
std::string DrawHeatMapOverview(const Summary& summary);

}  // namespace ziggurat::eval

// What a PoD calibration found, in text.
#pragma once

#include <string>

#include "compression/pod_calibration.h"

namespace ziggurat {

/// For each KV head, or once where all of them are grouped alike, a triangle with the similarity of
/// every two layers in tenths, the last layer on top, and beside it the group that each layer is
/// in. Heads stand side by side as far as `columns` allow. UTF-8.
std::string DrawSimilarity(const LayerSimilarity& similarity, const PodGroups& groups,
                           bool same_for_all_heads, int columns);

/// "KV head 0: 0-2, 5-6; KV head 1: none": the groups of two or more layers.
std::string DescribeGroups(const PodGroups& groups);

}  // namespace ziggurat

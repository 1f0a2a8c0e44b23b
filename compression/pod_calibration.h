// From similarities between layers to PoD's groups (arXiv:2412.02252).
#pragma once

#include <cstddef>
#include <vector>

#include "compression/pod_groups.h"

namespace ziggurat {

/// How alike two layers attend, head by head: from 0, nothing in common, to 1, the same.
struct LayerSimilarity {
  int num_layers = 0;
  int num_kv_heads = 0;
  std::vector<double> values;  ///< [num_kv_heads, num_layers, num_layers], symmetric

  double& At(int kv_head, int layer, int other) { return values[Index(kv_head, layer, other)]; }
  double At(int kv_head, int layer, int other) const {
    return values[Index(kv_head, layer, other)];
  }

 private:
  size_t Index(int kv_head, int layer, int other) const {
    return (static_cast<size_t>(kv_head) * num_layers + layer) * num_layers + other;
  }
};

/// The mean over heads, in place of every head's own.
LayerSimilarity MeanOverHeads(const LayerSimilarity& similarity);

/// Greedily from the bottom, head by head: a layer joins the group below it where it is at least
/// `delta` similar to every layer of that group, and otherwise begins a group. The result has no
/// name.
PodGroups GroupLayers(const LayerSimilarity& similarity, double delta);

/// The share of the cache that distant tokens do not need, if all tokens were distant: half a cell,
/// its keys, for each layer and head that is not the lowest of its group. From 0 to under 0.5.
double SavedShare(const PodGroups& groups);

}  // namespace ziggurat

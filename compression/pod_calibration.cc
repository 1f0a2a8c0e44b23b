#include "compression/pod_calibration.h"

#include <algorithm>

namespace ziggurat {
namespace {

bool Joins(const LayerSimilarity& similarity, int kv_head, int layer, int lowest, double delta) {
  for (int other = lowest; other < layer; ++other) {
    if (!(similarity.At(kv_head, layer, other) >= delta)) return false;
  }
  return true;
}

}  // namespace

LayerSimilarity MeanOverHeads(const LayerSimilarity& similarity) {
  LayerSimilarity mean = similarity;
  for (int layer = 0; layer < similarity.num_layers; ++layer) {
    for (int other = 0; other < similarity.num_layers; ++other) {
      double sum = 0;
      for (int head = 0; head < similarity.num_kv_heads; ++head) {
        sum += similarity.At(head, layer, other);
      }
      for (int head = 0; head < similarity.num_kv_heads; ++head) {
        mean.At(head, layer, other) = sum / similarity.num_kv_heads;
      }
    }
  }
  return mean;
}

PodGroups GroupLayers(const LayerSimilarity& similarity, double delta) {
  PodGroups groups;
  groups.num_layers = similarity.num_layers;
  groups.num_kv_heads = similarity.num_kv_heads;
  groups.lowest.resize(static_cast<size_t>(groups.num_layers) * groups.num_kv_heads);
  for (int head = 0; head < groups.num_kv_heads; ++head) {
    int lowest = 0;
    for (int layer = 0; layer < groups.num_layers; ++layer) {
      if (!Joins(similarity, head, layer, lowest, delta)) lowest = layer;
      groups.lowest[static_cast<size_t>(layer) * groups.num_kv_heads + head] = lowest;
    }
  }
  return groups;
}

double SavedShare(const PodGroups& groups) {
  int followers = 0;
  for (int layer = 0; layer < groups.num_layers; ++layer) {
    for (int head = 0; head < groups.num_kv_heads; ++head) {
      followers += groups.Lowest(layer, head) != layer;
    }
  }
  return followers / (2.0 * static_cast<double>(std::max<size_t>(groups.lowest.size(), 1)));
}

}  // namespace ziggurat

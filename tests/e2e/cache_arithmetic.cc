#include "tests/e2e/cache_arithmetic.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace ziggurat::e2e {

int CeilDiv(int tokens, int slots_per_block) {
  return (tokens + slots_per_block - 1) / slots_per_block;
}

std::vector<int> PyramidBudgets(int budget, int window, double beta, int layers, int tokens) {
  // T pairs in all; k[L-1] = T / (beta L), k[0] = 2T/L - k[L-1], linear in between.
  const int total = (budget - window) * layers;
  const double top = total / (beta * layers);
  const double bottom = 2.0 * total / layers - top;
  std::vector<int> pairs(layers);
  std::vector<double> remainder(layers);
  for (int l = 0; l < layers; ++l) {
    const double share =
        layers == 1 ? total : bottom + (top - bottom) * l / static_cast<double>(layers - 1);
    pairs[l] = static_cast<int>(std::floor(share + 1e-9));
    remainder[l] = share - pairs[l];
  }
  std::vector<int> order(layers);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return remainder[a] > remainder[b] + 1e-9; });
  const int missing = total - std::accumulate(pairs.begin(), pairs.end(), 0);
  for (int i = 0; i < missing; ++i) ++pairs[order[i % layers]];

  // A layer cannot keep more than the prompt has: the excess rises, then goes around.
  const int room = std::max(0, tokens - window);
  int excess = 0;
  for (int turn = 0; turn < 2; ++turn) {
    for (int& kept : pairs) {
      kept += excess;
      excess = std::max(0, kept - room);
      kept -= excess;
    }
  }
  for (int& kept : pairs) kept = std::min(kept + window, tokens);
  return pairs;
}

std::vector<int> WindowBudgets(int budget, int observe, int group, double lambda, int layers) {
  // The groups' tokens besides the observed ones: top = mean / lambda, bottom = 2 mean - top,
  // linear in between; whole numbers by largest remainder.
  const int groups = (layers + group - 1) / group;
  const int total = (budget - observe) * layers;
  const double mean = total / static_cast<double>(groups);
  const double top = mean / lambda, bottom = 2 * mean - top;
  std::vector<int> of_group(groups);
  std::vector<double> remainder(groups);
  for (int g = 0; g < groups; ++g) {
    const double share =
        groups == 1 ? total : bottom + (top - bottom) * g / static_cast<double>(groups - 1);
    of_group[g] = static_cast<int>(std::floor(share + 1e-9));
    remainder[g] = share - of_group[g];
  }
  std::vector<int> order(groups);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return remainder[a] > remainder[b] + 1e-9; });
  const int missing = total - std::accumulate(of_group.begin(), of_group.end(), 0);
  for (int i = 0; i < missing; ++i) ++of_group[order[i % groups]];
  std::vector<int> budgets;
  for (int layer = 0; layer < layers; ++layer) {
    const int members = std::min(group, layers - layer / group * group);
    budgets.push_back(observe + of_group[layer / group] / members);
  }
  return budgets;
}

int SegmentBlocks(const SegmentContent& content, int kv_heads, int head_dim, int block_bytes) {
  const int sides = content.values_only ? 1 : 2, channels = kv_heads * head_dim;
  const auto blocks = [&](int units, int unit_bytes) {
    return CeilDiv(units, block_bytes / unit_bytes);
  };
  int sum = blocks(content.tokens, sides * channels * content.bits / 8);
  // A scale in f32 for the keys and one for the values of a token and head.
  if (content.bits == 8) sum += blocks(content.tokens, sides * kv_heads * 4);
  // Scale and zero in bf16: of every channel of a group of tokens' keys, and of every token and
  // group of channels of their values, which comes to as many.
  if (content.bits < 8) sum += blocks(content.tokens / content.group, sides * channels * 4);
  if (content.merged) sum += blocks(content.tokens, 2 * 2 * kv_heads * 4);
  if (content.scored) sum += blocks(content.tokens, kv_heads * (4 + 4));
  return sum;
}

int TotalBlocks(const std::vector<int>& budgets, int more, int slots_per_block) {
  int blocks = 0;
  for (int budget : budgets) blocks += CeilDiv(budget + more, slots_per_block);
  return blocks;
}

}  // namespace ziggurat::e2e

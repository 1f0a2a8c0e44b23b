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

int TotalBlocks(const std::vector<int>& budgets, int more, int slots_per_block) {
  int blocks = 0;
  for (int budget : budgets) blocks += CeilDiv(budget + more, slots_per_block);
  return blocks;
}

}  // namespace ziggurat::e2e

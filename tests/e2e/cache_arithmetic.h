// What the definitions of the policies promise, worked out once more and apart from the product's
// code: budgets of every layer, and the blocks that hold them.
#pragma once

#include <vector>

namespace ziggurat::e2e {

/// Blocks that hold `tokens` slots of `slots_per_block` each.
int CeilDiv(int tokens, int slots_per_block);

/// KV pairs per KV head that pyramidkv(budget, window, beta) keeps of a prompt of `tokens` in each
/// of `layers` layers, window included (PyramidKV, arXiv:2406.02069; largest remainder, excess of
/// short prompts to the layers above).
std::vector<int> PyramidBudgets(int budget, int window, double beta, int layers, int tokens);

/// Sum over `budgets` of the blocks that hold each of them and `more` generated tokens.
int TotalBlocks(const std::vector<int>& budgets, int more, int slots_per_block);

}  // namespace ziggurat::e2e

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

/// KV pairs per KV head that windowkv(budget, observe, group, lambda) allows each of `layers`
/// layers of a prompt that is longer (WindowKV, arXiv:2503.17922), observed tokens included.
std::vector<int> WindowBudgets(int budget, int observe, int group, double lambda, int layers);

/// What stands in a segment, by docs/block_layout.md.
struct SegmentContent {
  int tokens = 0;
  int bits = 32;  ///< of a channel: 32 and 16 as they are, 8 with a scale per token, 4 and 2 by
                  ///< groups
  int group = 0;  ///< of 4 and 2 bits
  bool values_only = false;
  bool merged = false;  ///< with the norms of two layers
  bool scored = false;  ///< with scores and positions
};

/// Blocks of all planes of a segment that covers `kv_heads` heads.
int SegmentBlocks(const SegmentContent& content, int kv_heads, int head_dim, int block_bytes);

/// Sum over `budgets` of the blocks that hold each of them and `more` generated tokens.
int TotalBlocks(const std::vector<int>& budgets, int more, int slots_per_block);

}  // namespace ziggurat::e2e

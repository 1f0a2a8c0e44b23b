// A list of tokens that grows: one segment that takes single tokens, and where groups of tokens
// become codes a second one in front of it.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "block_manager/layer_block_table.h"
#include "model/model_runner.h"
#include "scheduler/store/leaving_tokens.h"
#include "scheduler/store/store_format.h"

namespace ziggurat {

/// The tokens of some KV heads of one layer in the order of their arrival. Does not own the table.
///
/// With a coded format, tokens become codes in whole groups as soon as residual + group of them are
/// open, so that at least the newest `residual` stay open. Flushing takes three calls, since blocks
/// must be there before tokens are copied and may go only afterwards: `Flush` allocates and orders
/// the copies, the engine has them done, `FinishFlush` gives back what is empty.
class TokenList {
 public:
  /// Most blocks that a list of up to `tokens` tokens holds, where at most `burst` tokens are put
  /// between two flushes.
  static size_t MaxBlocks(const CacheGeometry& geometry, const StoreFormat& format, int kv_heads,
                          size_t tokens, size_t burst = 1);

  TokenList(LayerBlockTable* table, const StoreFormat& format) : table_(table), format_(format) {}
  /// Adds the segments, empty; without a number of heads they cover all.
  void Open(int first_kv_head = 0, int num_kv_heads = 0);
  /// The list will grow to up to `tokens` tokens: no list of blocks is to move until then.
  void Reserve(size_t tokens);
  /// Adds segments that refer to those of `lower` in another layer.
  void Share(LayerBlockTable& lower_table, const TokenList& lower);
  /// Takes segment `segment` of the table, which holds all tokens, as the open one of this list.
  /// Only without a coded format.
  void Adopt(int segment) { open_ = segment; }

  /// Room for `tokens` tokens in the empty list: the first ones coded at once where there are
  /// enough. Adds where tokens [first_token, first_token + tokens) of the caller's list go.
  absl::Status Fill(int tokens, int first_token, std::vector<TokenRange>* ranges);
  /// Room for `tokens` more in the open segment; returns the slot of the first in `*first_slot`.
  absl::Status Extend(int tokens, int* first_slot);

  /// Orders the copies of whole groups, if residual + group tokens are open.
  absl::Status Flush(std::vector<CacheEdit>* edits);
  /// How many tokens may be appended before Flush has anything to order.
  int TokensBeforeFlush() const;
  /// After those copies are done.
  void FinishFlush();
  /// Follows the lower layer's list.
  void RefreshShared(const LayerBlockTable& lower_table, const TokenList& lower);

  /// The slot of the next token.
  absl::Status Append(TokenTarget* target);

  int open_segment() const { return open_; }
  int open_tokens() const { return table_->view()[open_].num_slots; }

 private:
  LayerBlockTable* table_;
  StoreFormat format_;
  int coded_ = -1;
  int open_ = -1;
  LeavingTokens flushed_;  ///< the open segment, for the coded one
};

}  // namespace ziggurat

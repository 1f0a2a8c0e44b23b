// From what a policy says about storage to the formats of segments.
#pragma once

#include <optional>

#include "block_manager/cache_format.h"
#include "compression/cache_plan.h"

namespace ziggurat {

/// The formats of a list of tokens: an *open* segment that takes single tokens, and for grouped
/// encodings a *coded* one that takes whole groups of them later.
struct StoreFormat {
  CacheFormat open;
  std::optional<CacheFormat> coded;
  int residual = 0;  ///< coded: the newest tokens, which stay open

  int group() const { return coded ? coded->group : 1; }
  /// Of a list of `tokens`, those that are codes: whole groups, once residual + group are there.
  int CodedTokens(int tokens) const {
    if (!coded || tokens < residual + group()) return 0;
    return (tokens - residual) / group() * group();
  }
};

/// Keys and values; with `merged` directions and norms.
StoreFormat MakeStoreFormat(ElementType element, const std::optional<Quantization>& quantization,
                            bool merged = false);

}  // namespace ziggurat

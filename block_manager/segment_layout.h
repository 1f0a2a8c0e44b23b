// What a segment is, and where its data lies in its blocks.
#pragma once

#include <optional>

#include "block_manager/cache_format.h"
#include "block_manager/segment_view.h"

namespace ziggurat {

/// A segment that overwrites: `sinks` slots that stay and a ring of `recent` slots behind them.
struct RingShape {
  int sinks = 0;
  int recent = 0;  ///< at least 1

  int slots() const { return sinks + recent; }
};

/// What a new segment is.
struct SegmentOptions {
  CacheFormat format = CacheFormat::kBf16;
  int first_kv_head = 0;
  int num_kv_heads = 0;                ///< 0: all heads of the model together
  std::optional<RingShape> ring = {};  ///< absent: grows without end
};

/// The view of a segment that has no blocks yet: strides and offsets of everything that its format
/// stores, per KV head contiguous, keys before values (docs/block_layout.md). Views of planes that
/// it lacks stay empty. `options.num_kv_heads` is not 0 here.
SegmentView EmptySegmentView(const SegmentOptions& options, const CacheGeometry& geometry);

}  // namespace ziggurat

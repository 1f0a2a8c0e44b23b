// What the tables of blocks really hold, as reports and metrics show it.
#pragma once

#include <cstddef>
#include <map>

#include "block_manager/cache_format.h"

namespace ziggurat {

/// What one layer of one sequence really holds, or a part of it; also, summed, what many do.
///
/// A block of a segment that two layers share counts in `blocks`, `live_bytes` and
/// `tail_waste_bytes` of each of them: it is what the layer attends to. Key blocks of another layer
/// that a values-only segment reads count there only, and here as `borrowed_blocks`.
struct LayerOccupancy {
  size_t blocks = 0;            ///< blocks of the layer's planes, shared ones included
  size_t owned_blocks = 0;      ///< the same, a shared block in the lower layer alone
  size_t borrowed_blocks = 0;   ///< references to other layers' key blocks
  size_t live_bytes = 0;        ///< bytes of `blocks` that hold live tokens
  size_t owned_live_bytes = 0;  ///< of `owned_blocks`
  size_t tail_waste_bytes = 0;  ///< blocks * block_bytes - live_bytes
  size_t head_slots = 0;        ///< slots of each KV head, shared ones included

  LayerOccupancy& operator+=(const LayerOccupancy& other);
};

/// Apart for each format that holds anything.
using OccupancyByFormat = std::map<CacheFormat, LayerOccupancy>;

}  // namespace ziggurat

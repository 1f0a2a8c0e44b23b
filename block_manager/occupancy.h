// What many sequences hold together, and the proof that nothing is lost between them and the pool.
#pragma once

#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "block_manager/block_pool.h"
#include "block_manager/cache_format.h"
#include "block_manager/sequence_cache.h"

namespace ziggurat {

/// Occupancy summed over sequences, per layer and per format. How shared blocks count is said at
/// LayerOccupancy; `tokens` here are slots summed over sequences (in `formats` and `total` also
/// over layers).
///
/// Computed on demand, not kept: one `Add` costs O(layers x segments), about 10 ns each, plus
/// O(blocks) of shared segments. What tests hold reports and metrics to; the engine adds its
/// snapshots up itself.
struct CacheOccupancy {
  explicit CacheOccupancy(int num_layers) : layers(num_layers) {}

  /// Adds what `sequence`, which has as many layers, holds now.
  void Add(const SequenceCache& sequence);

  std::vector<LayerOccupancy> layers;             ///< [num_layers]
  std::map<CacheFormat, LayerOccupancy> formats;  ///< those that hold something
  LayerOccupancy total;                           ///< sum of `layers`
};

/// Proves conservation: the pool's free list and counts agree, every table of every sequence is
/// sound, and each block has exactly as many references as tables name it; so `sequences` must be
/// all that live in `pool`. INTERNAL names what is wrong. O(pool blocks + references).
absl::Status CheckIntegrity(const BlockPool& pool,
                            absl::Span<const SequenceCache* const> sequences);

}  // namespace ziggurat

// What others are told of a sequence: of its cache at its end, of both in every snapshot.
#pragma once

#include "absl/types/span.h"
#include "block_manager/sequence_cache.h"
#include "scheduler/engine.h"
#include "scheduler/request.h"
#include "scheduler/sequence.h"

namespace ziggurat {

// Engine thread only; the tables must have been caught up (SequenceStore::CatchUp).

/// Empty layers where the prompt has not been prefilled.
CacheReport MakeCacheReport(const Sequence& sequence);
RequestSnapshot MakeRequestSnapshot(const Sequence& sequence);
/// Adds what a sequence holds to the sums of all of them.
///   layers  [num_layers]
void AddToLayers(const RequestSnapshot& request, const SequenceCache& cache,
                 absl::Span<LayerSnapshot> layers);

}  // namespace ziggurat

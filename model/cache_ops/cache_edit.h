// Edits of caches between steps, carried out by a backend.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "attention/backend.h"
#include "model/model_runner.h"

namespace ziggurat {

/// Memory that a MergeEdit of `count` tokens borrows of the backend (BackendMemory::Lend).
size_t MergeEditBytes(const AttentionShape& shape, int count);

/// In order. INTERNAL names an edit that does not fit its segments; those before it are done.
absl::Status RunCacheEdits(AttentionBackend& backend, const AttentionShape& shape, PoolView pool,
                           absl::Span<const CacheEdit> edits);

}  // namespace ziggurat

// Edits of caches between steps, carried out by a backend.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "attention/backend.h"
#include "model/model_runner.h"

namespace ziggurat {

/// As if in order. INTERNAL names an edit that does not fit its segments; those before it are done.
absl::Status RunCacheEdits(PromptBackend& backend, const AttentionShape& shape, PoolView pool,
                           absl::Span<const CacheEdit> edits);

}  // namespace ziggurat

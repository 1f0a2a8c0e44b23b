// Carries out what a policy asks of one layer of one prompt: measure, select, write into blocks.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "attention/backend.h"
#include "block_manager/segment_view.h"
#include "model/model_runner.h"

namespace ziggurat {

/// One prompt's part of the workspace, after attention of the layer at hand.
struct AttendedPrompt {
  int tokens = 0;
  int window_rows = 0;             ///< rows of `window_q`
  const void* window_q = nullptr;  ///< [window_rows, H, D]: the last queries, as they were rotated
  const float* lse = nullptr;      ///< [tokens, H]
  const void* k = nullptr;         ///< [tokens, G, D]
  const void* v = nullptr;         ///< [tokens, G, D]
  float* scores = nullptr;         ///< room for [G, tokens], where window_rows > 0
  int32_t* selection = nullptr;    ///< room for [G, tokens], where window_rows > 0
};

/// Writes the tokens that `write` keeps into its segments, in the order of their positions: slot i
/// holds the i-th oldest token kept (of each head). INTERNAL names an edit or a combination of
/// edit, statistic and segments that this cannot do; the segments are then unchanged.
absl::Status ApplyLayerEdit(AttentionBackend& backend, const AttentionShape& shape,
                            ElementType element, PoolView pool, const AttendedPrompt& prompt,
                            const LayerWrite& write);

}  // namespace ziggurat

// What one prompt needs in the prefill workspace besides its share of the batch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "compression/cache_plan.h"
#include "model/model_runner.h"

namespace ziggurat {

/// Pointers into the region of one prompt of n tokens; null where the plan needs no such part. With
/// w window rows, H query heads, G KV heads of size D, e element bytes:
struct PromptBuffers {
  int window_rows = 0;
  void* window_q = nullptr;        ///< [w, H, D] e: the last queries, as they were rotated
  float* scores = nullptr;         ///< [score heads, n]
  int32_t* selection = nullptr;    ///< [G, n]
  void* lower_k = nullptr;         ///< [n, G, D] e: MiniCache, of the lower layer of a pair
  void* lower_v = nullptr;         ///< [n, G, D] e
  void* low_q = nullptr;           ///< [n, H, D] e: PoD, of the lowest layer of each head's group
  void* low_k = nullptr;           ///< [n, G, D] e
  float* stored_scores = nullptr;  ///< [layers, G, n]
  float* recall_sums = nullptr;    ///< [G, n]
};

/// Lays the parts one behind the other from `base` on, each at a multiple of 64; `base` may be null
/// to count only. Returns the bytes in all.
size_t LayPromptNeeds(const ModelShape& shape, int tokens, const PrefillNeeds& needs,
                      std::byte* base, PromptBuffers* buffers);

}  // namespace ziggurat

// What a prompt is in one layer, before any of it lies in blocks: the contiguous workspace that
// attention, statistics and writes take. Rows are tokens; tensors of a device are aligned to 16
// bytes.
#pragma once

#include <cstdint>

#include "block_manager/cache_format.h"

namespace ziggurat {

/// The keys and values of a prompt, or of several packed ones.
struct KeyValues {
  ElementType element = ElementType::kF32;
  const void* k = nullptr;  ///< [tokens, num_kv_heads, head_dim]
  const void* v = nullptr;  ///< [tokens, num_kv_heads, head_dim]
};

/// All that attention takes and gives.
struct PromptTensors {
  ElementType element = ElementType::kF32;
  const void* q = nullptr;  ///< [tokens, num_q_heads, head_dim]
  const void* k = nullptr;  ///< [tokens, num_kv_heads, head_dim]
  const void* v = nullptr;  ///< [tokens, num_kv_heads, head_dim]
  void* out = nullptr;      ///< [tokens, num_q_heads, head_dim]; may be `q`, which is overwritten
  float* lse = nullptr;     ///< [tokens, num_q_heads]: log-sum-exp of the scaled scores

  KeyValues key_values() const { return {element, k, v}; }
};

/// The last queries of a prompt and all its keys, as statistics take them.
struct PromptTail {
  ElementType element = ElementType::kF32;
  const void* q_rows = nullptr;  ///< [rows, num_q_heads, head_dim]: rows n - rows .. n - 1
  const float* lse = nullptr;    ///< [rows, num_q_heads]: log-sum-exp of their scaled scores
  const void* k = nullptr;       ///< [n, num_kv_heads, head_dim]
  int n = 0;
  int rows = 0;
};

/// How window scores of neighbouring keys become one.
enum class WindowPooling : uint8_t { kAverage, kMax };

}  // namespace ziggurat

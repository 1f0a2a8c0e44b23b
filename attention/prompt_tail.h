// The last queries of a prompt and all its keys, as statistics take them.
#pragma once

#include <cstdint>

#include "block_manager/cache_format.h"

namespace ziggurat {

struct PromptTail {
  ElementType element = ElementType::kF32;
  // Tensors of a device are aligned to 16 bytes.
  const void* q_rows = nullptr;  ///< [rows, num_q_heads, head_dim]: rows n - rows .. n - 1
  const float* lse = nullptr;    ///< [rows, num_q_heads]: log-sum-exp of their scaled scores
  const void* k = nullptr;       ///< [n, num_kv_heads, head_dim]
  int n = 0;
  int rows = 0;
};

/// How window scores of neighbouring keys become one.
enum class WindowPooling : uint8_t { kAverage, kMax };

}  // namespace ziggurat

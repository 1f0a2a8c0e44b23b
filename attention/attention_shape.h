// The heads that attention is computed of; of hosts and devices.
#pragma once

#include "attention/host_device.h"
#include "block_manager/cache_format.h"

namespace ziggurat {

/// Heads of one layer. Query head h uses KV head h / (num_q_heads / num_kv_heads).
struct AttentionShape {
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  float scale = 0;  ///< 1 / sqrt(head_dim)
  /// The model's type. Where it is bf16, decode attention over codes (int8, int4, int2) need not
  /// compute in f32. Of a query times the keys' scales it keeps 16 bits, counted from the largest
  /// such number within 128 slots; a softmax weight, times the values' scales if these belong to
  /// groups of channels, it may round to bf16.
  ElementType element = ElementType::kF32;

  ZIGGURAT_HOST_DEVICE int group_size() const { return num_q_heads / num_kv_heads; }
};

}  // namespace ziggurat

// The rotary embedding, halves rotated: one channel of a head.
#pragma once

#include "attention/cuda/cells.cuh"

namespace ziggurat::cuda {

/// Channel c of a head that begins at element `from` of a packed projection.
///   cos, sin  [head_dim / 2] of the token
__device__ inline float Rotated(ElementType element, const void* qkv, size_t from, int c,
                                int head_dim, const float* cos, const float* sin) {
  const int half = head_dim / 2, angle = c % half;
  const float own = LoadElement(element, qkv, from + c);
  const float other = LoadElement(element, qkv, from + (c + half) % head_dim);
  return own * cos[angle] + (c < half ? -other : other) * sin[angle];
}

}  // namespace ziggurat::cuda

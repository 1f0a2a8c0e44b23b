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

/// A whole head, by one warp: store(c, values) for channels c and c + 1, c even. Half of a head is
/// a multiple of two.
template <class Store>
__device__ void RotateHead(ElementType element, const void* qkv, size_t from, int head_dim,
                           const float* cos, const float* sin, Store store) {
  const int half = head_dim / 2;
  for (int c = 2 * LaneOfThread(); c < half; c += 2 * kWarp) {
    const float2 low = LoadPair(element, qkv, from + c);
    const float2 high = LoadPair(element, qkv, from + half + c);
    const float2 cosines = *reinterpret_cast<const float2*>(cos + c);
    const float2 sines = *reinterpret_cast<const float2*>(sin + c);
    store(c,
          make_float2(low.x * cosines.x - high.x * sines.x, low.y * cosines.y - high.y * sines.y));
    store(half + c,
          make_float2(high.x * cosines.x + low.x * sines.x, high.y * cosines.y + low.y * sines.y));
  }
}

}  // namespace ziggurat::cuda

// Numbers that stand beside slots, one for each: scales per token, norms of a merged segment.
#pragma once

#include "attention/cpu/kernels.h"
#include "attention/cpu/vector_math.h"

namespace ziggurat::cpu {
namespace {

/// Calls body(t, run, address) for the runs of [0, count) that lie in one block each; `address` is
/// that of the area of head `head` in the block that holds slot begin + t.
template <class Body>
inline void ForEachRun(const HeadBlocks& plane, int head, int begin, int count, Body body) {
  const int slots = static_cast<int>(plane.slots_per_block);
  for (int t = 0; t < count;) {
    const int block = (begin + t) / slots, first = (begin + t) % slots;
    const int run = Smaller(count - t, slots - first);
    body(t, run, first,
         plane.base + plane.blocks[block] * plane.block_bytes + head * plane.head_stride);
    t += run;
  }
}

/// The factors of slots [begin, begin + count) of one head: the product of what the planes that
/// there are hold, and of `constant`. False: there is none, and the factor is `constant` for all.
///   factors  [kScoreStride]; what is behind `count` may be anything
inline bool LoadFactors(const HeadBlocks* first, const HeadBlocks* second, int head, int begin,
                        int count, float constant, float* factors) {
  const HeadBlocks* planes[] = {first, second};
  bool is_loaded = false;
  for (const HeadBlocks* plane : planes) {
    if (plane == nullptr || plane->blocks == nullptr) continue;
    ForEachRun(*plane, head, begin, count, [&](int t, int run, int slot, const std::byte* area) {
      const std::byte* from = area + static_cast<size_t>(slot) * sizeof(float);
      if (!is_loaded) {
        __builtin_memcpy(factors + t, from, sizeof(float) * run);
        return;
      }
      for (int i = 0; i < run; ++i) {
        float factor;
        __builtin_memcpy(&factor, from + sizeof(float) * i, sizeof(float));
        factors[t + i] *= factor;
      }
    });
    is_loaded = true;
  }
  if (is_loaded && constant != 1) {
    for (int t = 0; t < count; ++t) factors[t] *= constant;
  }
  return is_loaded;
}

/// rows[i][t] *= factors[t] for `queries` rows, kScoreStride apart. Whole vectors are touched.
template <class V>
inline void MultiplyRows(int queries, const float* factors, int count, float* rows) {
  for (int t = 0; t < count; t += V::kLanes) {
    const typename V::Float factor = V::Load(factors + t);
    for (int i = 0; i < queries; ++i) {
      float* row = rows + i * kScoreStride + t;
      V::Store(row, V::Mul(V::Load(row), factor));
    }
  }
}

}  // namespace
}  // namespace ziggurat::cpu

// Numbers that stand beside slots, one for each: scales per token, norms of a merged segment.
#pragma once

#include "attention/cpu/chunk.h"

namespace ziggurat::cpu {
namespace {

/// The factors of a step's slots: the product of what the planes that there are hold, and of
/// `constant`. False: there is none, and the factor is `constant` for all.
///   first, second  may be null
///   factors        [kScoreStride]; what is behind the last slot may be anything
inline bool LoadFactors(HeadBlocks DecodeJob::*first, HeadBlocks DecodeJob::*second,
                        const HeadStep& step, float constant, float* factors) {
  HeadBlocks DecodeJob::*const planes[] = {first, second};
  bool is_loaded = false;
  for (const auto plane : planes) {
    if (plane == nullptr || (step.here.job().*plane).blocks == nullptr) continue;
    step.ForEachRun(
        plane, [&](int t, int run, int slot, const std::byte* area, const std::byte* ahead) {
          const size_t at = static_cast<size_t>(slot) * sizeof(float), bytes = run * sizeof(float);
          Prefetch(ahead + at, bytes);
          if (!is_loaded) {
            __builtin_memcpy(factors + t, area + at, bytes);
            return;
          }
          for (int i = 0; i < run; ++i) {
            float factor;
            __builtin_memcpy(&factor, area + at + sizeof(float) * i, sizeof(float));
            factors[t + i] *= factor;
          }
        });
    is_loaded = true;
  }
  if (is_loaded && constant != 1) {
    for (int t = 0; t < step.here.count(); ++t) factors[t] *= constant;
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

/// rows[i][t] *= the factors of a step's slots, as LoadFactors has them, for all queries of its
/// head.
///   kRounded  what ought to be 0 in `rows` may not quite be: an infinite factor would make numbers
///             of it, of whichever sign, and is NaN instead
template <class V, bool kRounded = false>
inline void MultiplyByFactors(HeadBlocks DecodeJob::*first, HeadBlocks DecodeJob::*second,
                              const HeadStep& step, float constant, float* rows) {
  float factors[kScoreStride];
  if (!LoadFactors(first, second, step, constant, factors)) {
    if (constant == 1) return;
    for (float& one : factors) one = constant;
  }
  if constexpr (kRounded) {
    for (int t = 0; t < step.here.count(); ++t) factors[t] += factors[t] - factors[t];
  }
  MultiplyRows<V>(step.here.job().group_size, factors, step.here.count(), rows);
}

}  // namespace
}  // namespace ziggurat::cpu

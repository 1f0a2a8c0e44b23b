// Online softmax of a chunk of scores.
#pragma once

#include "attention/cpu/vector_math.h"

namespace ziggurat::cpu {
namespace {

/// Running maximum and sum of one query. Scores, times their scale, are in units of log2.
struct Running {
  float highest = -__builtin_inff();
  float sum = 0;

  float Lse() const { return (highest + __builtin_log2f(sum)) * kLn2; }
};

/// Raises the running maximum to the largest of `highest`. Returns the factor by which what was
/// accumulated before must shrink.
template <class V>
inline float RaiseHighest(typename V::Float highest, Running* running) {
  if (V::AllAtMost(highest, V::Set(running->highest))) return 1;
  const float before = running->highest;
  running->highest = V::Largest(highest);
  return V::First(Exp2<V>(V::Set(before - running->highest)));
}

/// Turns scores[0 .. count) into weights 2^(scale * score - highest), and those from `count` up to
/// `width`, whatever stands there, into 0. Returns as RaiseHighest.   scale  positive
template <class V>
inline float SoftmaxChunk(float* scores, float scale, int count, int width, Running* running) {
  constexpr float kLowest = -__builtin_inff();
  const int padded = (width + V::kLanes - 1) / V::kLanes * V::kLanes;
  for (int t = count; t < padded; ++t) scores[t] = kLowest;
  typename V::Float highest = V::Set(kLowest);
  for (int t = 0; t < padded; t += V::kLanes) highest = V::Max(highest, V::Load(scores + t));
  const typename V::Float factor = V::Set(scale);
  const float shrink = RaiseHighest<V>(V::Mul(highest, factor), running);
  const typename V::Float shift = V::Set(-running->highest);
  typename V::Float sum = V::Zero();
  for (int t = 0; t < padded; t += V::kLanes) {
    const typename V::Float weight = Exp2<V>(V::Fma(V::Load(scores + t), factor, shift));
    V::Store(scores + t, weight);
    sum = V::Add(sum, weight);
  }
  running->sum = running->sum * shrink + V::Sum(sum);
  return shrink;
}

/// SoftmaxChunk of scores[begin .. end) alone, of which there may be none: the rest of [0, width)
/// is weighted 0.
template <class V>
inline float SoftmaxInterval(float* scores, float scale, int begin, int end, int width,
                             Running* running) {
  if (begin >= end) {
    __builtin_memset(scores, 0, sizeof(float) * width);
    return 1;
  }
  for (int t = 0; t < begin; ++t) scores[t] = -__builtin_inff();
  return SoftmaxChunk<V>(scores, scale, end, width, running);
}

/// sums[t] += 2^(scale * scores[t] - log2(e^lse)), t < count; up to the end of a vector more is
/// touched.
template <class V>
inline void AddWeights(const float* scores, float scale, float lse, int count, float* sums) {
  const typename V::Float factor = V::Set(scale), shift = V::Set(-lse * kLog2E);
  for (int t = 0; t < count; t += V::kLanes) {
    const typename V::Float weight = Exp2<V>(V::Fma(V::Load(scores + t), factor, shift));
    V::Store(sums + t, V::Add(V::Load(sums + t), weight));
  }
}

}  // namespace
}  // namespace ziggurat::cpu

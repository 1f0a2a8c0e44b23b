// Online softmax of a chunk of scores.
#pragma once

#include <immintrin.h>

#include "attention/cpu/kernels.h"
#include "attention/cpu/score_tiles.h"
#include "attention/cpu/vector_math.h"

namespace ziggurat::cpu {
namespace {

/// What the weights of one query are relative to, and their sum. Scores, times their scale, are in
/// units of log2.
struct Running {
  /// The largest score so far or, of SoftmaxRows, at most kSlack less.
  float highest = -__builtin_inff();
  float sum = 0;

  /// A few weights may be larger than 1, so that most chunks need not wait for the maximum of their
  /// scores, and what was accumulated before need not shrink (FlashAttention-4's rescaling above a
  /// threshold, with the same 8).
  static constexpr float kSlack = 8;

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

/// Turns scores[0 .. count) into weights 2^(score - highest), and those from `count` up to `width`,
/// whatever stands there, into 0. Returns as RaiseHighest.
template <class V>
inline float SoftmaxChunk(float* scores, int count, int width, Running* running) {
  constexpr float kLowest = -__builtin_inff();
  const int padded = (width + V::kLanes - 1) / V::kLanes * V::kLanes;
  for (int t = count; t < padded; ++t) scores[t] = kLowest;
  typename V::Float highest = V::Set(kLowest);
  for (int t = 0; t < padded; t += V::kLanes) highest = V::Max(highest, V::Load(scores + t));
  const float shrink = RaiseHighest<V>(highest, running);
  const typename V::Float shift = V::Set(-running->highest);
  typename V::Float sum = V::Zero();
  for (int t = 0; t < padded; t += V::kLanes) {
    const typename V::Float weight = Exp2<V>(V::Add(V::Load(scores + t), shift));
    V::Store(scores + t, weight);
    sum = V::Add(sum, weight);
  }
  running->sum = running->sum * shrink + V::Sum(sum);
  return shrink;
}

/// Raises running[i].highest to largest[i] of N <= 4 queries, where that is larger, and their sums
/// and shrink[i] accordingly.
template <class V, int N>
__attribute__((noinline)) void RaiseFew(__m128 largest, Running* running, float* shrink) {
  alignas(16) float before[4], highest[4], factor[4];
  for (int i = 0; i < 4; ++i) before[i] = running[Smaller(i, N - 1)].highest;
  const __m128 old = _mm_load_ps(before), raised = _mm_max_ps(largest, old);
  _mm_store_ps(highest, raised);
  _mm_store_ps(factor, V::Quad(Exp2<V>(V::OfQuad(_mm_sub_ps(old, raised)))));
  for (int i = 0; i < N; ++i) {
    running[i] = {highest[i], running[i].sum * factor[i]};
    shrink[i] = factor[i];
  }
}

/// Of N <= 4 rows of scores, side by side: the maxima, and the sums, of all are one register. What
/// weights are relative to is seldom raised, so that they are computed, by the branch that is
/// foreseen, while the maxima are still being looked for.
template <class V, int N, class Turn>
inline void SoftmaxFewRows(float* scores, int count, Running* running, float* shrink, Turn turn) {
  constexpr float kLowest = -__builtin_inff();
  const int padded = (count + V::kLanes - 1) / V::kLanes * V::kLanes;
  typename V::Float highest[N], shift[N], sum[N];
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) {
    for (int t = count; t < padded; ++t) scores[i * kScoreStride + t] = kLowest;
    highest[i] = V::Set(kLowest);
    sum[i] = V::Zero();
  }
  for (int t = 0; t < padded; t += V::kLanes) {
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) {
      highest[i] = V::Max(highest[i], V::Load(scores + i * kScoreStride + t));
    }
  }
  const auto limit = [running](int i) {
    return running[Smaller(i, N - 1)].highest + Running::kSlack;
  };
  const __m128 largest = V::template LargestOfEach<N>(highest, 0);
  const __m128 limits = _mm_setr_ps(limit(0), limit(1), limit(2), limit(3));
  for (int i = 0; i < N; ++i) shrink[i] = 1;
  if (__builtin_expect(_mm_movemask_ps(_mm_cmpgt_ps(largest, limits)) != 0, 0)) {
    RaiseFew<V, N>(largest, running, shrink);
  }
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) shift[i] = V::Set(-running[i].highest);
  for (int t = 0; t < padded; t += V::kLanes) {
    if (t < N * V::kLanes) turn();
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) {
      float* const at = scores + i * kScoreStride + t;
      const typename V::Float weight = V::Weight(V::Add(V::Load(at), shift[i]));
      V::Store(at, weight);
      sum[i] = V::Add(sum[i], weight);
    }
  }
  alignas(16) float sum_of[4];
  _mm_store_ps(sum_of, V::template SumOfEach<N>(sum, 0));
  for (int i = 0; i < N; ++i) running[i].sum += sum_of[i];
}

/// SoftmaxChunk of `rows` rows of scores, kScoreStride apart; shrink[i] is what it returns. With
/// V::kReducesRows weights may be up to 2^kSlack, and those of less than 2^-100 are that, up to the
/// end of the last vector.   turn()  called about once a row
template <class V, class Turn>
inline void SoftmaxRows(int rows, float* scores, int count, Running* running, float* shrink,
                        Turn turn) {
  for (int i = 0; i < rows;) {
    if constexpr (V::kReducesRows) {
      const int few = Smaller(rows - i, 4);
      ForSubBlock(few, [&]<int N>() {
        if constexpr (N <= 4) {
          SoftmaxFewRows<V, N>(scores + i * kScoreStride, count, running + i, shrink + i, turn);
        }
      });
      i += few;
    } else {
      turn();
      shrink[i] = SoftmaxChunk<V>(scores + i * kScoreStride, count, count, &running[i]);
      ++i;
    }
  }
}

/// SoftmaxChunk of scores[begin .. end) alone, of which there may be none: the rest of [0, width)
/// is weighted 0.
template <class V>
inline float SoftmaxInterval(float* scores, int begin, int end, int width, Running* running) {
  if (begin >= end) {
    __builtin_memset(scores, 0, sizeof(float) * width);
    return 1;
  }
  for (int t = 0; t < begin; ++t) scores[t] = -__builtin_inff();
  return SoftmaxChunk<V>(scores, end, width, running);
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

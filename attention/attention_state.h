// Partial attention, and how two partial results become one.
#pragma once

#include <cmath>
#include <limits>

namespace ziggurat {

/// Attention of one query over some set of keys: the softmax-weighted mean of their values, and the
/// log-sum-exp of their scaled scores. An empty set has lse = -infinity and any output.
template <typename Real>
struct AttentionState {
  Real* output = nullptr;  ///< [head_dim], not owned
  Real lse = -std::numeric_limits<Real>::infinity();
};

/// Makes `into` the attention over both (disjoint) sets of keys. Exact up to rounding, in any
/// order:
///   lse = log(e^a + e^b),  output = (e^a * output_a + e^b * output_b) / e^lse.
template <typename Real>
void Merge(const AttentionState<Real>& from, int head_dim, AttentionState<Real>* into) {
  constexpr Real kEmpty = -std::numeric_limits<Real>::infinity();
  if (from.lse == kEmpty) return;
  if (into->lse == kEmpty) {
    for (int c = 0; c < head_dim; ++c) into->output[c] = from.output[c];
    into->lse = from.lse;
    return;
  }
  const Real highest = from.lse > into->lse ? from.lse : into->lse;
  const Real weight_from = std::exp(from.lse - highest);
  const Real weight_into = std::exp(into->lse - highest);
  const Real sum = weight_from + weight_into;
  for (int c = 0; c < head_dim; ++c) {
    into->output[c] = (weight_into * into->output[c] + weight_from * from.output[c]) / sum;
  }
  into->lse = highest + std::log(sum);
}

}  // namespace ziggurat

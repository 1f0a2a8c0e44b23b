// The softmax that everything in the reference is made of.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace ziggurat::reference {

/// -infinity for no scores.
inline double LogSumExp(const std::vector<double>& scores) {
  if (scores.empty()) return -std::numeric_limits<double>::infinity();
  const double highest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double score : scores) sum += std::exp(score - highest);
  return highest + std::log(sum);
}

/// Softmax of `scores` in place; returns their log-sum-exp.
inline double Softmax(std::vector<double>* scores) {
  const double lse = LogSumExp(*scores);
  if (scores->empty()) return lse;
  const double highest = *std::max_element(scores->begin(), scores->end());
  double sum = 0;
  for (double& score : *scores) sum += score = std::exp(score - highest);
  for (double& score : *scores) score /= sum;
  return lse;
}

/// The near part's share of an attention whose parts have these log-sum-exps (the gate of PoD).
inline double NearShare(double near_lse, double distant_lse) {
  return 1 / (1 + std::exp(distant_lse - near_lse));
}

}  // namespace ziggurat::reference

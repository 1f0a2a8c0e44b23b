// WindowKV: whole windows of tokens, one choice for all heads.

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "attention/cpu/cpu_backend.h"
#include "attention/parallel.h"

namespace ziggurat::cpu {
namespace {

/// Sum of the `best` highest of scores[0 .. length), highest first; a NaN ranks below every
/// number. `room` holds `length` numbers.
double SumOfBest(const float* scores, int length, int best, double* room) {
  for (int i = 0; i < length; ++i) room[i] = scores[i] != scores[i] ? -INFINITY : scores[i];
  std::partial_sort(room, room + best, room + length, std::greater<>());
  return std::accumulate(room, room + best, 0.0);
}

}  // namespace

int CpuBackend::SelectWindows(const float* scores, int num_heads, int candidates, int review,
                              int best, int budget, int32_t* indices) {
  const int windows = (candidates + review - 1) / review;
  const auto length = [&](int w) { return std::min(review, candidates - w * review); };
  std::vector<double> window_scores(windows, 0);
  const size_t elements = static_cast<size_t>(review) * num_heads;
  ParallelRanges(threads_, windows, elements, [&](size_t begin, size_t end) {
    std::vector<double> room(review);
    for (int h = 0; h < num_heads; ++h) {
      const float* of_head = scores + static_cast<size_t>(h) * candidates;
      for (size_t w = begin; w < end; ++w) {
        const int tokens = length(static_cast<int>(w));
        window_scores[w] +=
            SumOfBest(of_head + w * review, tokens, std::min(best, tokens), room.data());
      }
    }
  });
  for (int w = 0; w < windows; ++w) {
    // Divided once: the sums are exact more often than means are, and what is equal is to stay so.
    double& score = window_scores[w];
    score /= static_cast<double>(std::min(best, length(w))) * num_heads;
    if (score != score) score = -INFINITY;  // of +inf and -inf together
  }
  std::vector<int> order(windows);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return window_scores[a] > window_scores[b]; });
  std::vector<char> is_kept(windows, 0);
  int left = budget;
  for (int w : order) {
    if (length(w) > left) continue;
    left -= length(w);
    is_kept[w] = 1;
  }
  int count = 0;
  for (int w = 0; w < windows; ++w) {
    for (int j = w * review; is_kept[w] != 0 && j < w * review + length(w); ++j) {
      indices[count++] = j;
    }
  }
  return count;
}

}  // namespace ziggurat::cpu

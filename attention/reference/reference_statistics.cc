#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "attention/reference/elements.h"
#include "attention/reference/reference_backend.h"

namespace ziggurat::reference {
namespace {

/// exp(scale * q.k - lse): the attention that query head `h` of row `row` pays to key `j`.
double Attention(const AttentionShape& shape, const PromptTail& tail, int row, int h, int j) {
  const size_t query = static_cast<size_t>(row) * shape.num_q_heads + h;
  const size_t key = static_cast<size_t>(j) * shape.num_kv_heads + h / shape.group_size();
  double dot = 0;
  for (int c = 0; c < shape.head_dim; ++c) {
    dot += LoadElement(tail.element, tail.q_rows, query * shape.head_dim + c) *
           LoadElement(tail.element, tail.k, key * shape.head_dim + c);
  }
  return std::exp(shape.scale * dot - tail.lse[query]);
}

/// Scores as they are ranked: a NaN as -infinity.
double Ranked(float score) { return score != score ? -INFINITY : score; }

}  // namespace

void ReferenceBackend::WindowScores(const AttentionShape& shape, const PromptTail& tail, int kernel,
                                    WindowPooling pooling, float* scores) {
  const int candidates = tail.n - tail.rows, group = shape.group_size();
  std::vector<double> mean(std::max(candidates, 0));
  for (int g = 0; g < shape.num_kv_heads; ++g) {
    for (int j = 0; j < candidates; ++j) {
      double sum = 0;
      for (int i = 0; i < tail.rows; ++i) {
        for (int h = g * group; h < (g + 1) * group; ++h) {
          sum += Attention(shape, tail, i, h, j);
        }
      }
      mean[j] = sum / (static_cast<double>(tail.rows) * group);
    }
    for (int j = 0; j < candidates; ++j) {
      double sum = 0, highest = 0;  // edges padded by zeros
      for (int d = -(kernel / 2); d <= kernel / 2; ++d) {
        if (j + d < 0 || j + d >= candidates) continue;
        sum += mean[j + d];
        highest = std::max(highest, mean[j + d]);
      }
      scores[static_cast<size_t>(g) * candidates + j] =
          static_cast<float>(pooling == WindowPooling::kAverage ? sum / kernel : highest);
    }
  }
}

void ReferenceBackend::ColumnSums(const AttentionShape& shape, const PromptTail& tail, int begin,
                                  int end, ScoreRows score_rows, float* sums, size_t stride) {
  const int first = tail.n - tail.rows;
  const int group = score_rows == ScoreRows::kKvHeads ? shape.group_size() : 1;
  for (int r = 0; r < shape.num_q_heads / group; ++r) {
    for (int j = begin; j < end; ++j) {
      double sum = 0;
      for (int i = std::max(j, first); i < tail.n; ++i) {
        for (int h = r * group; h < (r + 1) * group; ++h) {
          sum += Attention(shape, tail, i - first, h, j);
        }
      }
      sums[r * stride + (j - begin)] = static_cast<float>(sum / group);
    }
  }
}

void ReferenceBackend::SelectBest(const float* scores, size_t stride, int num_heads, int candidates,
                                  int best, int32_t* indices) {
  std::vector<int32_t> order(candidates);
  for (int g = 0; g < num_heads; ++g) {
    const float* head = scores + g * stride;
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [head](int32_t a, int32_t b) { return Ranked(head[a]) > Ranked(head[b]); });
    std::sort(order.begin(), order.begin() + best);
    std::copy_n(order.begin(), best, indices + static_cast<size_t>(g) * best);
  }
}

int ReferenceBackend::SelectWindows(const float* scores, int num_heads, int candidates, int review,
                                    int best, int budget, int32_t* indices) {
  const int windows = (candidates + review - 1) / review;
  std::vector<double> window_scores(windows, 0);
  for (int w = 0; w < windows; ++w) {
    const int begin = w * review, length = std::min(review, candidates - begin);
    const int counted = std::min(best, length);
    for (int h = 0; h < num_heads; ++h) {
      std::vector<double> tokens;
      for (int j = begin; j < begin + length; ++j) {
        tokens.push_back(Ranked(scores[static_cast<size_t>(h) * candidates + j]));
      }
      std::sort(tokens.begin(), tokens.end(), std::greater<>());
      double sum = 0;
      for (int i = 0; i < counted; ++i) sum += tokens[i];
      window_scores[w] += sum;
    }
    window_scores[w] /= static_cast<double>(counted) * num_heads;
  }
  for (double& score : window_scores) {
    if (score != score) score = -INFINITY;  // of +inf and -inf together
  }
  std::vector<int> order(windows);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return window_scores[a] > window_scores[b]; });
  int kept = 0;
  for (int w : order) {
    const int begin = w * review, length = std::min(review, candidates - begin);
    if (length > budget - kept) continue;
    for (int j = begin; j < begin + length; ++j) indices[kept++] = j;
  }
  std::sort(indices, indices + kept);
  return kept;
}

double ReferenceBackend::CosineSum(const float* a, const float* b, int rows, int width) {
  double sum = 0;
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
    double dot = 0, squares_a = 0, squares_b = 0;
    for (int i = 0; i < width; ++i) {
      const double x = a[r * width + i], y = b[r * width + i];
      dot += x * y;
      squares_a += x * x;
      squares_b += y * y;
    }
    if (squares_a == 0 || squares_b == 0) {
      sum += squares_a == squares_b ? 1 : 0;
    } else {
      sum += dot / (std::sqrt(squares_a) * std::sqrt(squares_b));
    }
  }
  return sum;
}

}  // namespace ziggurat::reference

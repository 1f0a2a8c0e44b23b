#include <algorithm>
#include <limits>
#include <vector>

#include "attention/reference/elements.h"
#include "attention/reference/reference_backend.h"
#include "attention/reference/softmax.h"

namespace ziggurat::reference {
namespace {

/// scale * q.k of two vectors that start at elements `query` and `key`.
double Score(const AttentionShape& shape, ElementType element, const void* q, size_t query,
             const void* k, size_t key) {
  double dot = 0;
  for (int c = 0; c < shape.head_dim; ++c) {
    dot += LoadElement(element, q, query + c) * LoadElement(element, k, key + c);
  }
  return shape.scale * dot;
}

/// out = sum over tokens of weights[token] * v[token], which starts at element `first`.
void StoreMean(const AttentionShape& shape, ElementType element, const std::vector<double>& weights,
               const void* v, size_t first, void* out, size_t to) {
  const size_t row = static_cast<size_t>(shape.num_kv_heads) * shape.head_dim;
  for (int c = 0; c < shape.head_dim; ++c) {
    double sum = 0;
    for (size_t j = 0; j < weights.size(); ++j) {
      sum += weights[j] * LoadElement(element, v, first + j * row + c);
    }
    StoreElement(element, out, to + c, sum);
  }
}

}  // namespace

void ReferenceBackend::PrefillAttention(const AttentionShape& shape,
                                        const PackedSequences& sequences, const PromptTensors& at) {
  const int dim = shape.head_dim;
  std::vector<double> weights;
  for (int sequence = 0; sequence < sequences.num_sequences(); ++sequence) {
    const size_t first = sequences.offsets[sequence];
    const size_t from = std::max(sequences.offsets[sequence], sequences.first_row);
    const size_t to = std::min(sequences.offsets[sequence + 1], sequences.end_row);
    for (size_t i = from; i < to; ++i) {
      for (int h = 0; h < shape.num_q_heads; ++h) {
        const int g = h / shape.group_size();
        const size_t query = (i * shape.num_q_heads + h) * dim;
        weights.clear();
        for (size_t j = first; j <= i; ++j) {
          const size_t key = (j * shape.num_kv_heads + g) * dim;
          weights.push_back(Score(shape, at.element, at.q, query, at.k, key));
        }
        at.lse[i * shape.num_q_heads + h] = static_cast<float>(Softmax(&weights));
        StoreMean(shape, at.element, weights, at.v, (first * shape.num_kv_heads + g) * dim, at.out,
                  query);
      }
    }
  }
}

void ReferenceBackend::PrefillDistantAttention(const AttentionShape& shape, int n,
                                               const PromptTensors& at,
                                               const DistantPrefill& distant,
                                               DistantCounts* counts) {
  const int dim = shape.head_dim, group = shape.group_size();
  const auto is_distant = [&](int i, int j) {
    return j >= distant.sinks && i - j >= distant.recent;
  };
  for (int i = distant.first_row; i < std::min(n, distant.end_row); ++i) {
    for (int g = 0; g < shape.num_kv_heads; ++g) {
      const bool borrows = distant.borrows[g] != 0;
      // Scores of the group's query heads to all keys, near ones alone, and distant ones alone.
      std::vector<std::vector<double>> all(group), near(group), far(group);
      for (int h = 0; h < group; ++h) {
        const size_t query = (static_cast<size_t>(i) * shape.num_q_heads + g * group + h) * dim;
        for (int j = 0; j <= i; ++j) {
          const size_t key = (static_cast<size_t>(j) * shape.num_kv_heads + g) * dim;
          const bool borrowed = borrows && is_distant(i, j);
          all[h].push_back(borrowed
                               ? Score(shape, at.element, distant.low_q, query, distant.low_k, key)
                               : Score(shape, at.element, at.q, query, at.k, key));
          (borrowed ? far : near)[h].push_back(all[h].back());
        }
      }
      bool skips = !far[0].empty();
      for (int h = 0; h < group; ++h) {
        skips = skips && NearShare(LogSumExp(near[h]), LogSumExp(far[h])) >= distant.skip;
      }
      if (counts != nullptr && !far[0].empty()) ++(skips ? counts->skipped : counts->attended);
      for (int h = 0; h < group; ++h) {
        for (int j = 0; skips && j <= i; ++j) {
          if (is_distant(i, j)) all[h][j] = -std::numeric_limits<double>::infinity();
        }
        const size_t row = static_cast<size_t>(i) * shape.num_q_heads + g * group + h;
        at.lse[row] = static_cast<float>(Softmax(&all[h]));
        StoreMean(shape, at.element, all[h], at.v, static_cast<size_t>(g) * dim, at.out, row * dim);
      }
    }
  }
}

}  // namespace ziggurat::reference

#include "model/calibration/attention_similarity.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compression/cache_plan.h"

namespace ziggurat {
namespace {

/// Entropy in bits of the mean of two distributions.
double MixtureEntropy(absl::Span<const float> p, absl::Span<const float> q) {
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const float mean = (p[i] + q[i]) / 2;
    if (mean > 0) sum -= static_cast<double>(mean) * std::log2(mean);
  }
  return sum;
}

double Entropy(absl::Span<const float> p) { return MixtureEntropy(p, p); }

/// The divergence is H(mean) - mean(H). Rounding must not lead it out of its range.
double DivergenceFrom(double mixture_entropy, double entropy_p, double entropy_q) {
  return std::clamp(mixture_entropy - (entropy_p + entropy_q) / 2, 0.0, 1.0);
}

}  // namespace

double JsDivergence(absl::Span<const float> p, absl::Span<const float> q) {
  return DivergenceFrom(MixtureEntropy(p, q), Entropy(p), Entropy(q));
}

SimilarityMeter::SimilarityMeter(ModelRunner* runner, int last) : runner_(runner), last_(last) {
  const ModelShape& shape = runner->shape();
  sum_.num_layers = shape.num_layers;
  sum_.num_kv_heads = shape.num_kv_heads;
  sum_.values.resize(static_cast<size_t>(shape.num_kv_heads) * shape.num_layers * shape.num_layers);
}

size_t SimilarityMeter::AttentionBytes(const ModelShape& shape, int last, int tokens) {
  return sizeof(float) * shape.num_layers * shape.num_q_heads * std::min(last, tokens) * tokens;
}

absl::Status SimilarityMeter::Add(absl::Span<const int32_t> tokens) {
  const int length = static_cast<int>(tokens.size()), rows = std::min(last_, length);
  attention_.resize(AttentionBytes(runner_->shape(), rows, length) / sizeof(float));
  if (absl::Status status = RunLayers(tokens, rows); !status.ok()) return status;
  if (absl::Status status = Normalize(length, rows); !status.ok()) return status;
  Compare(length, rows);
  ++samples_;
  return absl::OkStatus();
}

absl::Status SimilarityMeter::RunLayers(absl::Span<const int32_t> tokens, int rows) {
  const ModelShape& shape = runner_->shape();
  CachePlan plan;
  plan.layers.resize(shape.num_layers);
  plan.needs.window_rows = rows;
  const PrefillPrompt prompt{tokens, &plan};
  std::vector<LayerMeasured> measured(1);
  std::vector<double> cosines(1);
  const std::vector<LayerWrite> nothing_is_kept(1);
  const absl::StatusOr<std::unique_ptr<PromptBatch>> batch = runner_->BeginPrefill(0, {&prompt, 1});
  if (!batch.ok()) return batch.status();
  absl::Status status;
  for (int layer = 0; layer < shape.num_layers && status.ok(); ++layer) {
    status = (*batch)->AttendLayer(layer, NeverPause, &measured).status();
    if (!status.ok()) break;
    const size_t size = static_cast<size_t>(shape.num_q_heads) * rows * tokens.size();
    status = (*batch)->LastAttention(0, rows, attention_.data() + layer * size);
    // What comes after the last attention is not needed.
    if (!status.ok() || layer + 1 == shape.num_layers) break;
    status = (*batch)->WriteLayer(layer, nothing_is_kept);
    if (status.ok()) status = (*batch)->FinishLayer(layer, NeverPause, &cosines).status();
  }
  return status;
}

absl::Status SimilarityMeter::Normalize(int tokens, int rows) {
  entropies_.resize(attention_.size() / tokens);
  bool is_sound = true;
#pragma omp parallel for schedule(static) reduction(&& : is_sound)
  for (size_t i = 0; i < entropies_.size(); ++i) {
    float* row = attention_.data() + i * tokens;
    double sum = 0;
    for (int t = 0; t < tokens; ++t) sum += row[t];
    is_sound = is_sound && sum > 0 && std::isfinite(sum);
    for (int t = 0; t < tokens; ++t) row[t] = static_cast<float>(row[t] / sum);
    entropies_[i] = Entropy({row, static_cast<size_t>(tokens)});
  }
  if (is_sound) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the attention of the last ", rows, " of ", tokens,
                                          " tokens is not a number in some layer"));
}

void SimilarityMeter::Compare(int tokens, int rows) {
  const int layers = sum_.num_layers, heads = runner_->shape().num_q_heads;
  const size_t n = tokens, group = heads / sum_.num_kv_heads;
  const auto row_at = [&](int layer, int head, int row) {
    return (static_cast<size_t>(layer) * heads + head) * rows + row;
  };
  // Sums of each query head, in an order of their own whatever the threads: [heads, layers,
  // layers].
  std::vector<double> sums(static_cast<size_t>(heads) * layers * layers);
#pragma omp parallel for collapse(2) schedule(dynamic, 1)
  for (int head = 0; head < heads; ++head) {
    for (int layer = 0; layer < layers; ++layer) {
      double* of_layer = sums.data() + (static_cast<size_t>(head) * layers + layer) * layers;
      for (int other = 0; other < layer; ++other) {
        for (int row = 0; row < rows; ++row) {
          const size_t p = row_at(layer, head, row), q = row_at(other, head, row);
          const size_t seen = n - rows + row + 1;
          const double mixture =
              MixtureEntropy({attention_.data() + p * n, seen}, {attention_.data() + q * n, seen});
          of_layer[other] += 1 - DivergenceFrom(mixture, entropies_[p], entropies_[q]);
        }
      }
      of_layer[layer] = rows;
    }
  }
  for (int head = 0; head < heads; ++head) {
    const int kv_head = static_cast<int>(head / group);
    for (int layer = 0; layer < layers; ++layer) {
      for (int other = 0; other <= layer; ++other) {
        const double mean = sums[(static_cast<size_t>(head) * layers + layer) * layers + other] /
                            (static_cast<double>(rows) * static_cast<double>(group));
        sum_.At(kv_head, layer, other) += mean;
        if (other != layer) sum_.At(kv_head, other, layer) += mean;
      }
    }
  }
}

LayerSimilarity SimilarityMeter::Mean() const {
  LayerSimilarity mean = sum_;
  for (double& value : mean.values) value /= samples_;
  return mean;
}

}  // namespace ziggurat

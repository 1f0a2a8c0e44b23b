#include "tests/model/prompt_lab.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <utility>

#include "compression/layer_plan.h"

namespace ziggurat::testing {

std::vector<std::string> CacheOpsBackends() {
  std::vector<std::string> names = {"reference"};
  if (DetectCpuLevel().ok()) names.push_back("cpu");
  return names;
}

std::unique_ptr<AttentionBackend> MakeCacheOpsBackend(const std::string& name) {
  if (name == "reference") return MakeReferenceBackend();
  auto backend = MakeCpuBackend(*DetectCpuLevel(), 2);
  if (!backend.ok()) {
    std::fprintf(stderr, "%s\n", backend.status().ToString().c_str());
    std::abort();
  }
  return *std::move(backend);
}

CachePlan WithNeeds(const PromptLabOptions& options, CachePlan plan) {
  RaiseNeeds({options.num_layers, options.num_q_heads, options.num_kv_heads, options.head_dim},
             {options.tokens, 10}, &plan);
  return plan;
}

PromptLab::PromptLab(const std::string& backend, const PromptLabOptions& options, CachePlan plan,
                     bool measures_recall)
    : options_(options),
      shape_{options.num_q_heads, options.num_kv_heads, options.head_dim,
             1.0f / std::sqrt(static_cast<float>(options.head_dim))},
      plan_(std::move(plan)),
      backend_(MakeCacheOpsBackend(backend)) {
  std::mt19937 random(options.seed);
  std::normal_distribution<float> normal;
  const auto fill = [&](int heads, float spread) {
    std::vector<float> rows(static_cast<size_t>(options.tokens) * heads * options.head_dim);
    for (float& value : rows) value = normal(random) * spread;
    return rows;
  };
  for (int layer = 0; layer < options.num_layers; ++layer) {
    q_.push_back(fill(options.num_q_heads, options.q_spread));
    k_.push_back(fill(options.num_kv_heads, 1.0f));
    v_.push_back(fill(options.num_kv_heads, 1.0f));
  }
  lse_.resize(static_cast<size_t>(options.tokens) * options.num_q_heads);

  ModelShape model;
  model.num_layers = options.num_layers;
  model.num_q_heads = options.num_q_heads;
  model.num_kv_heads = options.num_kv_heads;
  model.head_dim = options.head_dim;
  model.element = ElementType::kF32;
  if (measures_recall) {
    plan_.needs.recall = true;
    if (plan_.needs.window_rows >= 0) {
      plan_.needs.window_rows = std::max(plan_.needs.window_rows, kRecallRows);
    }
  }
  const size_t bytes = LayPromptNeeds(model, options.tokens, plan_.needs, nullptr, &buffers_);
  memory_ = std::make_unique<std::byte[]>(bytes + 64);
  const size_t misaligned = reinterpret_cast<uintptr_t>(memory_.get()) % 64;
  LayPromptNeeds(model, options.tokens, plan_.needs, memory_.get() + (64 - misaligned) % 64,
                 &buffers_);
  prompt_ =
      std::make_unique<PromptLayers>(backend_.get(), shape_, options.tokens, &plan_, buffers_);
}

LayerMeasured PromptLab::Run(int layer) {
  layer_ = layer;
  work_q_ = q_[layer];
  const PromptTensors at = tensors();
  prompt_->Prepare(layer, at);
  if (prompt_->NeedsDistant(layer)) {
    prompt_->AttendDistant(layer, at, 0, prompt_->tokens());
  } else {
    const int offsets[] = {0, options_.tokens};
    backend_->PrefillAttention(shape_, {offsets}, at);
  }
  return prompt_->Measure(layer, at);
}

double PromptLab::Dot(const float* a, const float* b) const {
  double sum = 0;
  for (int i = 0; i < shape_.head_dim; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

PromptLab::Attention PromptLab::PlainAttention(int layer) const {
  Attention attention(shape_.num_q_heads);
  for (int h = 0; h < shape_.num_q_heads; ++h) {
    for (int i = 0; i < options_.tokens; ++i) {
      std::vector<double>& row = attention[h].emplace_back();
      double sum = 0;
      for (int j = 0; j <= i; ++j) {
        row.push_back(std::exp(Score(Q(layer, i, h), K(layer, j, h / group()))));
        sum += row.back();
      }
      for (double& weight : row) weight /= sum;
    }
  }
  return attention;
}

std::vector<std::vector<double>> PromptLab::ReceivedFromLast(int layer, int rows) const {
  const Attention attention = PlainAttention(layer);
  std::vector<std::vector<double>> received(shape_.num_kv_heads,
                                            std::vector<double>(options_.tokens, 0.0));
  for (int h = 0; h < shape_.num_q_heads; ++h) {
    for (int i = options_.tokens - rows; i < options_.tokens; ++i) {
      for (int j = 0; j <= i; ++j) received[h / group()][j] += attention[h][i][j] / group();
    }
  }
  return received;
}

std::vector<double> PlainWindowScores(const PromptLab& lab, int layer, int head, int tokens,
                                      const WindowScoreStatistic& statistic) {
  const int candidates = tokens - statistic.window;
  std::vector<double> scores = lab.ReceivedFromLast(layer, statistic.window)[head];
  scores.resize(candidates);
  for (double& score : scores) score /= statistic.window;
  std::vector<double> pooled(candidates);
  for (int j = 0; j < candidates; ++j) {
    double sum = 0, most = 0;
    for (int o = j - statistic.kernel / 2; o <= j + statistic.kernel / 2; ++o) {
      if (o < 0 || o >= candidates) continue;
      sum += scores[o];
      most = std::max(most, scores[o]);
    }
    pooled[j] = statistic.pooling == ScorePooling::kMax ? most : sum / statistic.kernel;
  }
  return pooled;
}

std::vector<int32_t> PlainBest(const std::vector<double>& scores, int count) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
  order.resize(count);
  std::sort(order.begin(), order.end());
  return order;
}

std::vector<int32_t> RowOf(const int32_t* rows, int head, int width) {
  const int32_t* begin = rows + static_cast<size_t>(head) * width;
  return {begin, begin + width};
}

}  // namespace ziggurat::testing

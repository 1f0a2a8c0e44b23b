// A prompt without a model: random queries, keys and values of some layers, what the plain formulas
// say of their attention, and PromptLayers over them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "compression/cache_plan.h"
#include "model/cache_ops/prompt_layer.h"

namespace ziggurat::testing {

/// "reference", and "cpu" where this machine can run it.
std::vector<std::string> CacheOpsBackends();
std::unique_ptr<AttentionBackend> MakeCacheOpsBackend(const std::string& name);

struct PromptLabOptions {
  int num_layers = 3;
  int num_q_heads = 6;
  int num_kv_heads = 2;
  int head_dim = 16;
  int tokens = 70;
  uint32_t seed = 1;
  float q_spread = 1.5f;  ///< standard deviation of the queries
};

/// `plan`, and what its layers need of a prompt of that length.
CachePlan WithNeeds(const PromptLabOptions& options, CachePlan plan);

class PromptLab {
 public:
  /// [query head][query][key] softmax attention in double, over keys up to the query.
  using Attention = std::vector<std::vector<std::vector<double>>>;

  /// Runs under `plan`, which is copied; its `needs` are what the buffers are made for.
  PromptLab(const std::string& backend, const PromptLabOptions& options, CachePlan plan,
            bool measures_recall = false);

  /// Prepares, attends and measures layer `layer`; layers come in order. The span in the result is
  /// valid until the next call.
  LayerMeasured Run(int layer);
  PromptLayers& prompt() { return *prompt_; }
  AttentionBackend& backend() { return *backend_; }
  /// Of the layer that was run last; q is the output of attention then.
  PromptTensors tensors() {
    return {ElementType::kF32, work_q_.data(), k_[layer_].data(),
            v_[layer_].data(), work_q_.data(), lse_.data()};
  }
  const PromptBuffers& buffers() const { return buffers_; }
  const AttentionShape& shape() const { return shape_; }

  /// Rows of the inputs: of token t and (query or KV) head h.
  const float* Q(int layer, int t, int h) const { return At(q_[layer], shape_.num_q_heads, t, h); }
  const float* K(int layer, int t, int h) const { return At(k_[layer], shape_.num_kv_heads, t, h); }
  const float* V(int layer, int t, int h) const { return At(v_[layer], shape_.num_kv_heads, t, h); }
  const float* Output(int t, int h) const { return At(work_q_, shape_.num_q_heads, t, h); }
  double Dot(const float* a, const float* b) const;
  /// scale * q.k
  double Score(const float* q, const float* k) const { return Dot(q, k) * shape_.scale; }

  Attention PlainAttention(int layer) const;
  /// Mean over the query heads of a KV head of the attention that each key receives from the last
  /// `rows` queries, summed over them: [KV head][key].
  std::vector<std::vector<double>> ReceivedFromLast(int layer, int rows) const;
  int group() const { return shape_.group_size(); }

 private:
  const float* At(const std::vector<float>& rows, int heads, int t, int h) const {
    return rows.data() + (static_cast<size_t>(t) * heads + h) * shape_.head_dim;
  }

  PromptLabOptions options_;
  AttentionShape shape_;
  CachePlan plan_;
  std::unique_ptr<AttentionBackend> backend_;
  std::vector<std::vector<float>> q_, k_, v_;  ///< [layer]
  std::vector<float> work_q_, lse_;
  std::unique_ptr<std::byte[]> memory_;
  PromptBuffers buffers_;
  std::unique_ptr<PromptLayers> prompt_;
  int layer_ = 0;
};

/// SnapKV's scores: mean over the window and the group, pooled over neighbours.
std::vector<double> PlainWindowScores(const PromptLab& lab, int layer, int head, int tokens,
                                      const WindowScoreStatistic& statistic);

/// The indices of the `count` largest, ties to the lower one, ascending.
std::vector<int32_t> PlainBest(const std::vector<double>& scores, int count);

/// A part of a kept list, or of the selection: row `head` of rows of `width`.
std::vector<int32_t> RowOf(const int32_t* rows, int head, int width);

}  // namespace ziggurat::testing
